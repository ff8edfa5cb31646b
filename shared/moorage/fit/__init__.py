"""Shapes onto nodes: pure functions over columns, and the only place that packs."""

from __future__ import annotations

from .assign import Assigned, Unassigned, assign, still_fits
from .rooms import Room, Rooms, unsupported
from .rows import Ids, Mask, NamedRows, Rows

__all__ = [
    "Assigned",
    "Ids",
    "Mask",
    "NamedRows",
    "Room",
    "Rooms",
    "Rows",
    "Unassigned",
    "assign",
    "still_fits",
    "unsupported",
]
