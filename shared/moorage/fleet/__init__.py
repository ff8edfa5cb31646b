"""The fleet as columns of clusters and nodes, updated in place, followed from Redis. Changes since a tick can be queried."""

from __future__ import annotations

from .change import FleetChange
from .class_status import ClassStatus, DeviceCount, device_properties, format_units, selected_rows
from .cluster_labels import Clusters
from .delta import CORDONED, GONE, STALE, Epoch, FleetDelta, Malformed, NamedPods
from .excerpt import Excerpt, ExcerptFleet, FleetCopy, copy_of
from .fleet import BOUNDLESS, Fleet
from .follower import FleetFollower
from .normalize import (
    HOSTNAME,
    NodeRow,
    exclusive_cores,
    name_problem,
    normalize_node,
    with_additions,
    with_devices,
    with_parts_of,
)
from .part_class import PartClass
from .parts import FleetParts
from .redis_store import FAILURES, FleetStore, GenerationChanged, StoreSuperseded, still_wanted
from .writer import FleetFlush, FleetWriter

__all__ = [
    "BOUNDLESS",
    "CORDONED",
    "FAILURES",
    "GONE",
    "HOSTNAME",
    "STALE",
    "ClassStatus",
    "Clusters",
    "DeviceCount",
    "Epoch",
    "Excerpt",
    "ExcerptFleet",
    "Fleet",
    "FleetChange",
    "FleetCopy",
    "FleetDelta",
    "FleetFlush",
    "FleetFollower",
    "FleetParts",
    "FleetStore",
    "FleetWriter",
    "GenerationChanged",
    "Malformed",
    "NamedPods",
    "NodeRow",
    "PartClass",
    "StoreSuperseded",
    "copy_of",
    "device_properties",
    "exclusive_cores",
    "format_units",
    "name_problem",
    "normalize_node",
    "selected_rows",
    "still_wanted",
    "with_additions",
    "with_devices",
    "with_parts_of",
]
