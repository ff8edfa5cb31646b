"""Quantities: exact, strict, fast. The one place where text becomes amounts (CPU in milli, all else whole units)."""

from __future__ import annotations

from .needs import need_amount
from .quantities import CAPACITY_MAX, NEED_MAX, amount, canonical, cpu_milli, nanos, show, whole

__all__ = ["CAPACITY_MAX", "NEED_MAX", "amount", "canonical", "cpu_milli", "nanos", "need_amount", "show", "whole"]
