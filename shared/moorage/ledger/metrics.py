"""What a fleet has, what of it is free and claimed, and how old what is known of it is: added up when somebody collects
it. Base units: cores and bytes."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterable

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moorage.fleet import Fleet, FleetFollower
from moorage.telemetry import MetricValue

from .ledger import Ledger

_BYTES = ("memory", "storage", "ephemeral-storage", "hugepages-")
_KINDS = {
    "allocatable": "What usable nodes have for pods",
    "requested": "What pods that were reported ask for",
    "claimed": "What decisions have claimed and no reported pod takes yet",
    "free": "What is neither requested nor claimed",
}


def followed(follower: FleetFollower, ledger: Ledger) -> Iterable[MetricValue]:
    """How current a worker's view is."""
    yield MetricValue("moorage_fleet_current", "1 while the fleet is followed in Redis", float(follower.healthy))
    yield MetricValue("moorage_ledger_sequence", "Last commit of the decision log that is folded", ledger.seq)
    yield MetricValue("moorage_claims", "Claims that count", len(ledger.claims))


def clusters(fleet: Fleet) -> Iterable[MetricValue]:
    now = time.time()
    known = np.flatnonzero(fleet.known).tolist()
    tally = Tally(fleet.state(cid) for cid in known)
    states = {state: tally[state] for state in ("Ready", "Stale", "Cordoned")}
    yield MetricValue("moorage_clusters", "Clusters by state", states, "state")
    oldest = now - min((fleet.as_of(cid) for cid in known), default=now)
    about = "Age of the newest report of the cluster that was silent longest"
    yield MetricValue("moorage_oldest_report_age_seconds", about, max(0.0, oldest))


def unit_of(resource: str) -> tuple[str, float]:
    """Its unit, and how many of ours are one."""
    if resource == "cpu":
        return "core", 1000.0
    return ("byte", 1.0) if resource.startswith(_BYTES) else ("integer", 1.0)


class CapacityCollector(Collector):
    """Of usable nodes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        fleet = self._fleet
        rows = fleet.usable[: fleet.n] & (fleet.cluster[: fleet.n] >= 0)
        metrics = {
            kind: GaugeMetricFamily(f"moorage_fleet_{kind}", text, labels=["resource", "unit"])
            for kind, text in _KINDS.items()
        }
        for resource, column in sorted(fleet.stored.items()):
            unit, per = unit_of(resource)
            found = {
                "allocatable": int(column.allocatable[: fleet.n][rows].sum()),
                "claimed": 0 if column.claimed is None else int(column.claimed[: fleet.n][rows].sum()),
                "free": int(column.free[: fleet.n][rows].sum()),
            }
            found["requested"] = found["allocatable"] - found["claimed"] - found["free"]
            for kind, amount in found.items():
                metrics[kind].add_metric([resource, unit], amount / per)
        return metrics.values()
