"""Shapes onto nodes: pure functions over columns, and the only place that packs."""

from __future__ import annotations

from .assign import Assigned, Unassigned, assign, still_fits
from .conflicts import Pairs, conflicts, envelope
from .explain import Figure, Scarce, explain, scarcest
from .fit_cache import Room, Rooms, unsupported
from .node_filter import carries
from .protocols import Ids, Mask, NamedRows, Rows

__all__ = [
    "Assigned",
    "Figure",
    "Ids",
    "Mask",
    "NamedRows",
    "Pairs",
    "Room",
    "Rooms",
    "Rows",
    "Scarce",
    "Unassigned",
    "assign",
    "carries",
    "conflicts",
    "envelope",
    "explain",
    "scarcest",
    "still_fits",
    "unsupported",
]
