"""Names this process in `ps` and `top`, so that the workers of a mesh can be told apart."""

from __future__ import annotations


def set_title(what: str) -> None:
    try:
        from setproctitle import setproctitle
    except ImportError:  # it is installed on Linux only: on macOS it is not safe after a fork
        return
    setproctitle(f"moorage: {what}")
