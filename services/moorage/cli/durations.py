"""Parses durations: `300ms`, `10s`, `2m`, `1h`, or a number of seconds."""

from __future__ import annotations

import re

from .exit_codes import USAGE, Failure

_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def seconds(text: str) -> float:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise Failure(f"{text!r} is not a duration; examples: 300ms, 10s, 2m, 1h", USAGE)
    return float(match[1]) * _UNITS[match[2]]
