"""Prints data on stdout and everything else on stderr, with colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

#: The file that a lone dash stands for.
STDIN = "/dev/stdin"
#: ANSI colour codes of states and phases.
_COLOURS = {
    "Running": 32, "Ready": 32, "Placed": 32, "ok": 32, "answered": 32,
    "warning": 33, "Pending": 33, "Deciding": 33, "Deploying": 33, "Stale": 33, "Terminating": 33, "restarting": 33, "stale": 33,
    "Failed": 31, "Degraded": 31, "down": 31, "unhealthy": 31, "timeout": 31, "error": 31,
}  # fmt: skip


def out(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str) -> str:
    colour = _COLOURS.get(text.strip())
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and has_colour() else text


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def as_yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text.rstrip("\n")
