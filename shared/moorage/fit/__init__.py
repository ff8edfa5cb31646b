"""Fits the pods of shapes onto nodes: filters, packing, joint assignment, conflicts, explanations. Pure functions over
columns of nodes, and the only code that packs."""

from __future__ import annotations

from .assign import Assigned, Unassigned, assign, still_fits
from .cluster_fit import Fit, unsupported_reason
from .conflicts import ConflictCache, conflicts, envelope
from .explain import Rejection, Shortage, explain, largest_shortage
from .fit_cache import FitCache
from .node_filter import any_with_label
from .packing import PackingSolutions
from .protocols import Ids, Mask, NamedRows, Rows

__all__ = [
    "Assigned",
    "ConflictCache",
    "Fit",
    "FitCache",
    "Ids",
    "Mask",
    "NamedRows",
    "PackingSolutions",
    "Rejection",
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
