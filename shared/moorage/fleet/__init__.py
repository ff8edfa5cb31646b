"""The columnar view of all clusters: updated in place, followed from Redis, asked by tick for what changed."""

from __future__ import annotations

from .clusters import Clusters
from .fleet import BOUNDLESS, Change, Fleet
from .patches import CORDONED, GONE, STALE, Epoch, Malformed, Patch
from .rows import HOSTNAME, Row, name_problem, row
from .writer import Flush, Writer

__all__ = [
    "BOUNDLESS",
    "CORDONED",
    "GONE",
    "HOSTNAME",
    "STALE",
    "Change",
    "Clusters",
    "Epoch",
    "Fleet",
    "Flush",
    "Malformed",
    "Patch",
    "Row",
    "Writer",
    "name_problem",
    "row",
]
