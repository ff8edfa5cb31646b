"""The columnar view of all clusters: updated in place, followed from Redis, asked by tick for what changed."""

from __future__ import annotations

from .clusters import Clusters
from .fleet import BOUNDLESS, Change, Fleet
from .follower import Follower
from .patches import CORDONED, GONE, STALE, Epoch, Malformed, Patch
from .rows import HOSTNAME, Row, exclusive_cores, name_problem, row
from .store import FAILURES, Changed, Store, Superseded, still_wanted
from .writer import Flush, Writer

__all__ = [
    "BOUNDLESS",
    "CORDONED",
    "FAILURES",
    "GONE",
    "HOSTNAME",
    "STALE",
    "Change",
    "Changed",
    "Clusters",
    "Epoch",
    "Fleet",
    "Flush",
    "Follower",
    "Malformed",
    "Patch",
    "Row",
    "Store",
    "Superseded",
    "Writer",
    "exclusive_cores",
    "name_problem",
    "row",
    "still_wanted",
]
