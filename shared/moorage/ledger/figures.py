"""What a fleet has, what of it is free and claimed, and how old what is known of it is: added up when somebody collects
it. Base units: cores and bytes."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moorage.fleet import Fleet

from .state import Ledger

_BYTES = ("memory", "storage", "ephemeral-storage", "hugepages-")
_KINDS = {
    "allocatable": "What usable nodes have for pods",
    "requested": "What pods that were reported ask for",
    "claimed": "What decisions have claimed and no reported pod takes yet",
    "free": "What is neither requested nor claimed",
}


def unit_of(resource: str) -> tuple[str, float]:
    """Its unit, and how many of ours are one."""
    if resource == "cpu":
        return "core", 1000.0
    return ("byte", 1.0) if resource.startswith(_BYTES) else ("integer", 1.0)


class FleetFigures(Collector):
    def __init__(self, fleet: Fleet, ledger: Callable[[], Ledger], healthy: Callable[[], bool]) -> None:
        self._fleet, self._ledger, self._healthy = fleet, ledger, healthy

    def collect(self) -> Iterable[Metric]:
        ledger = self._ledger()
        yield GaugeMetricFamily(
            "moorage_fleet_current", "1 while the fleet is followed in Redis", value=float(self._healthy())
        )
        yield from self._clusters()
        yield from self._capacity()
        yield GaugeMetricFamily("moorage_claims", "Claims that count", value=len(ledger.claims))
        yield GaugeMetricFamily("moorage_ledger_sequence", "Last commit of the log that is folded", value=ledger.seq)

    def _clusters(self) -> Iterable[Metric]:
        fleet, now = self._fleet, time.time()
        states = GaugeMetricFamily("moorage_clusters", "Clusters by state", labels=["state"])
        known = np.flatnonzero(fleet.known).tolist()
        tally = Tally(fleet.state(cid) for cid in known)
        for state in ("Ready", "Stale", "Cordoned"):
            states.add_metric([state], tally[state])
        yield states
        oldest = min((fleet.as_of(cid) for cid in known), default=now)
        yield GaugeMetricFamily(
            "moorage_oldest_report_age_seconds",
            "Age of the newest report of the cluster that was silent longest",
            value=max(0.0, now - oldest),
        )

    def _capacity(self) -> Iterable[Metric]:
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
