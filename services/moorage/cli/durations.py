"""Parses durations (`300ms`, `10s`, `2m`, `1h`, or a number of seconds), and formats ages as kubectl does."""

from __future__ import annotations

import re
import time
from datetime import datetime

from .exit_codes import USAGE, Failure

_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def seconds(text: str) -> float:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise Failure(f"{text!r} is not a duration; examples: 300ms, 10s, 2m, 1h", USAGE)
    return float(match[1]) * _UNITS[match[2]]


def age(since: str | None) -> str:
    """Formats the time since an RFC 3339 time, in at most two units: `45s`, `3m12s`, `5h`, `12d`. "" without a time."""
    if not since:
        return ""
    return _rounded(max(0, int(time.time() - datetime.fromisoformat(since).timestamp())))


def _rounded(passed: int) -> str:
    minutes, hours, days = passed // 60, passed // 3600, passed // 86400
    if passed < 120:
        return f"{passed}s"
    if minutes < 10:
        return _two(minutes, "m", passed % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    return _two(days, "d", hours % 24, "h") if days < 8 else f"{days}d"


def _two(large: int, unit: str, small: int, smaller_unit: str) -> str:
    return f"{large}{unit}" + (f"{small}{smaller_unit}" if small else "")
