"""The columnar view of all clusters: updated in place, followed from Redis, asked by tick for what changed."""

from __future__ import annotations

from .cluster_labels import Clusters
from .delta import CORDONED, GONE, STALE, Epoch, Malformed, Patch
from .fleet import BOUNDLESS, Change, Fleet
from .follower import Follower
from .normalize import HOSTNAME, Row, exclusive_cores, name_problem, row
from .redis_store import FAILURES, Changed, Store, Superseded, still_wanted
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
