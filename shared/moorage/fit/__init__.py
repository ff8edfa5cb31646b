"""Fits the pods of shapes onto nodes: filters, packing, joint assignment, conflicts, explanations. Pure functions over
columns of nodes, and the only code that packs."""

from __future__ import annotations

from .asked_parts import asks_parts, without_parts
from .assign import assign, keeps_rules
from .cluster_fit import MAX_COMBINED, Fit, by_weight, unsupported_reason
from .cluster_nodes import Assigned, Unassigned
from .combinations import combinations, grants_of, needs_by_weight
from .conflicts import ConflictCache, conflicts, envelope
from .explain import Rejection, Shortage, explain, largest_shortage
from .fit_cache import FitCache
from .node_filter import any_with_label
from .packing import PackingSolutions
from .protocols import Ids, Mask, NamedRows, Rows

__all__ = [
    "MAX_COMBINED",
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
    "asks_parts",
    "assign",
    "by_weight",
    "combinations",
    "conflicts",
    "envelope",
    "explain",
    "grants_of",
    "keeps_rules",
    "largest_shortage",
    "needs_by_weight",
    "unsupported_reason",
    "without_parts",
]
