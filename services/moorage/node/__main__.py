"""Runs a node agent with the settings that `moorage node run` hands over, in a process without the libraries of the command line."""

from __future__ import annotations

import sys
from typing import Any


def main(arguments: list[str]) -> int:
    # structlog would import it to print exceptions in colour: 3 MB.
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rich", None)
    from moorage.telemetry import configure

    from .settings import decode
    from .worker import CANNOT_RUN, run_agent, serve

    settings = decode(arguments[0])
    configure("node")
    _set_title(f"moorage: node {settings.node}")
    try:
        return serve(run_agent(settings))
    except CANNOT_RUN as error:
        sys.stderr.write(f"moorage: the agent cannot run: {error}\n")
        return 1


def _set_title(title: str) -> None:
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(title)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
