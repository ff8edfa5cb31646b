"""The fleet as columns of clusters and nodes, updated in place, followed from Redis. A tick tells what changed since."""

from __future__ import annotations

from .cluster_labels import Clusters
from .delta import CORDONED, GONE, STALE, Epoch, FleetDelta, Malformed
from .fleet import BOUNDLESS, Fleet, FleetChange
from .follower import FleetFollower
from .normalize import HOSTNAME, NodeRow, exclusive_cores, name_problem, normalize_node
from .redis_store import FAILURES, Changed, FleetStore, StoreSuperseded, still_wanted
from .writer import FleetFlush, FleetWriter

__all__ = [
    "BOUNDLESS",
    "CORDONED",
    "FAILURES",
    "GONE",
    "HOSTNAME",
    "STALE",
    "Changed",
    "Clusters",
    "Epoch",
    "Fleet",
    "FleetChange",
    "FleetDelta",
    "FleetFlush",
    "FleetFollower",
    "FleetStore",
    "FleetWriter",
    "Malformed",
    "NodeRow",
    "StoreSuperseded",
    "exclusive_cores",
    "name_problem",
    "normalize_node",
    "still_wanted",
]
