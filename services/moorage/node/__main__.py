"""Runs a node agent with the settings that `moorage node run` hands over, in a process without the libraries of the command line."""

from __future__ import annotations

import sys
from typing import Any


def main(arguments: list[str]) -> int:
    from .settings import decode

    settings = decode(arguments[0])
    _leave_out("rich")  # structlog prints exceptions in colour with it: 3 MB
    _leave_out("aiohttp")  # nats-py speaks WebSockets with it: 8 MB
    from moorage.telemetry import configure

    from .worker import CANNOT_RUN, run_agent, serve

    configure("node")
    _set_title(f"moorage: node {settings.node}")
    try:
        return serve(run_agent(settings))
    except CANNOT_RUN as error:
        sys.stderr.write(f"moorage: the agent cannot run: {error}\n")
        return 1


def _leave_out(name: str) -> None:
    """Makes an optional library look as if it was not installed, before it is imported for what an agent does not do."""
    modules: dict[str, Any] = sys.modules
    modules.setdefault(name, None)


def _set_title(title: str) -> None:
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(title)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
