"""Parses text from outside: Kubernetes quantities into amounts (CPU in milli, all else whole units), needs, YAML and JSON
documents. Also redacts secret values."""

from __future__ import annotations

from .bandwidth import has_ambiguous_unit, parse_bandwidth
from .needs import need_amount
from .quantities import (
    CAPACITY_MAX,
    NEED_MAX,
    canonical_quantity,
    format_amount,
    parse_amount,
    parse_nanos,
    readable_amount,
    readable_quantity,
)
from .versions import parse_version

__all__ = [
    "CAPACITY_MAX",
    "NEED_MAX",
    "canonical_quantity",
    "format_amount",
    "has_ambiguous_unit",
    "need_amount",
    "parse_amount",
    "parse_bandwidth",
    "parse_nanos",
    "parse_version",
    "readable_amount",
    "readable_quantity",
]
