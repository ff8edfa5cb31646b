"""Prints data on stdout and everything else on stderr, with colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

#: ANSI colour codes of states and phases.
_COLOURS = {
    "Running": 32, "Ready": 32, "Placed": 32, "ok": 32, "answered": 32,
    "Pending": 33, "Deciding": 33, "Deploying": 33, "Stale": 33, "Terminating": 33, "restarting": 33, "stale": 33,
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


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, heading: bool = True) -> str:
    """Formats a table like kubectl: three spaces between columns, no lines, `-` for empty cells."""
    cells = [[_cell(c) for c in row] for row in rows]
    widths = [len(h) for h in headers]
    for row in cells:
        widths = [max(w, len(c)) for w, c in zip(widths, row, strict=True)]
    lines = ["   ".join(h.ljust(w) for h, w in zip(headers, widths, strict=True)).rstrip()] if heading else []
    lines += ["   ".join(paint(c.ljust(w)) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
