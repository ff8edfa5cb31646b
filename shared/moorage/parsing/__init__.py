"""Quantities: exact, strict, fast. The one place where text becomes amounts (CPU in milli, all else whole units)."""

from __future__ import annotations

from .needs import need_amount
from .quantities import (
    CAPACITY_MAX,
    NEED_MAX,
    canonical,
    format_amount,
    parse_amount,
    parse_cpu_milli,
    parse_nanos,
    parse_whole,
)

__all__ = [
    "CAPACITY_MAX",
    "NEED_MAX",
    "canonical",
    "format_amount",
    "need_amount",
    "parse_amount",
    "parse_cpu_milli",
    "parse_nanos",
    "parse_whole",
]
