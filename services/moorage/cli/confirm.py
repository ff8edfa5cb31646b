"""Asks before something is lost."""

from __future__ import annotations

import sys

from .exit_codes import FAILED, Failure
from .terminal import note


def confirm(consequence: str, *, yes: bool) -> None:
    """Asks whether to go on, unless that was said before. Scripts, which have no terminal, are told and not stopped."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        note(f"{consequence}; continuing, because there is no terminal to ask on")
        return
    sys.stderr.write(f"{consequence}. Continue? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure("nothing was changed", FAILED)
