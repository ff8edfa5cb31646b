"""Shapes onto nodes: pure functions over columns, and the only place that packs."""

from __future__ import annotations

from .assign import Assigned, Unassigned, assign, still_fits
from .conflicts import ConflictCache, conflicts, envelope
from .explain import Quantity, Shortage, explain, largest_shortage
from .fit_cache import Fit, FitCache, unsupported_reason
from .node_filter import any_with_label
from .protocols import Ids, Mask, NamedRows, Rows

__all__ = [
    "Assigned",
    "ConflictCache",
    "Fit",
    "FitCache",
    "Ids",
    "Mask",
    "NamedRows",
    "Quantity",
    "Rows",
    "Shortage",
    "Unassigned",
    "any_with_label",
    "assign",
    "conflicts",
    "envelope",
    "explain",
    "largest_shortage",
    "still_fits",
    "unsupported_reason",
]
