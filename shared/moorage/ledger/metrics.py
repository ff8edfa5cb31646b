"""Prometheus metrics of the fleet's capacity and of its clusters, computed when they are collected, in cores and bytes."""

from __future__ import annotations

import math
import time
from collections import Counter as Tally
from collections.abc import Iterable

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moorage.fleet import Fleet, FleetFollower
from moorage.telemetry import MetricValue

from .ledger import Ledger

#: Name and description of metrics that several workers have.
LEDGER_SEQUENCE = ("moorage_ledger_sequence", "Sequence number of the last folded commit of the decision log")
LEDGER_CONFLICTS = (
    "moorage_ledger_conflicts_total",
    "Commits refused because another commit came first; they are checked and tried again",
)

_BYTES = ("memory", "storage", "ephemeral-storage", "hugepages-")
_KINDS = {
    "allocatable": "Allocatable amounts of usable nodes",
    "requested": "Amounts that reported pods request",
    "claimed": "Amounts that decisions claimed and reported pods do not request yet",
    "free": "Amounts that are neither requested nor claimed",
}


def follower_metrics(follower: FleetFollower, ledger: Ledger) -> Iterable[MetricValue]:
    """Yields how current a worker's view of the fleet and the ledger is."""
    yield MetricValue(
        "moorage_fleet_current", "1 while the fleet in Redis is followed, else 0", float(follower.healthy)
    )
    yield MetricValue(*LEDGER_SEQUENCE, ledger.seq)
    yield MetricValue("moorage_claims", "Claims that use capacity", len(ledger.claims))


def cluster_metrics(fleet: Fleet) -> Iterable[MetricValue]:
    now = time.time()
    known = np.flatnonzero(fleet.known).tolist()
    tally = Tally(fleet.state(cid) for cid in known)
    states = {state: tally[state] for state in ("Ready", "Stale", "Cordoned")}
    yield MetricValue("moorage_clusters", "Clusters by state", states, "state")
    ages = (fleet.report_age(cid, now) for cid in known)
    about = "Age of the newest report of the cluster that was silent longest, among those that reported since the start"
    yield MetricValue("moorage_oldest_report_age_seconds", about, max(filter(math.isfinite, ages), default=0.0))


def unit_of(resource: str) -> tuple[str, float]:
    """Returns the unit in which a resource is exported, and how many of the internal units make one."""
    if resource == "cpu":
        return "core", 1000.0
    return ("byte", 1.0) if resource.startswith(_BYTES) else ("integer", 1.0)


class CapacityCollector(Collector):
    """Exports allocatable, requested, claimed and free capacity, summed up over usable nodes."""

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
