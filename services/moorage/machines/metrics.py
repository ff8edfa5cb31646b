"""Metrics of one process: slots and writes of the one that acts, and how long hand-overs and answers to the API server took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Histogram

from moorage.machine_groups.cluster import ClusterMachines
from moorage.telemetry import ACTIVE, SECONDS, MetricValue, ProcessHealth

_OUTCOMES = ("allowed", "denied", "failed")


class MachineMetrics:
    """`writes` counts requests by purpose. `acts`: whether this process is the one that writes; the slots are told by it alone."""

    def __init__(self, state: ClusterMachines, health: ProcessHealth | None, acts: Callable[[], bool]) -> None:
        self._state, self._acts = state, acts
        self.writes: Counter[str] = Counter()
        registry = health.registry if health is not None else CollectorRegistry()
        self._handover = Histogram(
            "moorage_machines_handover_seconds",
            "Time from a slot being given to a guest, or from the begin of its window, until its gate is off",
            registry=registry,
            buckets=SECONDS,
        )
        admission = Histogram(
            "moorage_machines_admission_seconds",
            "Time to answer the API server, by outcome: allowed, denied, failed (not understood)",
            ["outcome"],
            registry=registry,
            buckets=SECONDS,
        )
        self._admission = {outcome: admission.labels(outcome) for outcome in _OUTCOMES}
        if health is not None:
            health.add_values(self._values)

    def observe_admission(self, outcome: str, seconds: float) -> None:
        self._admission[outcome].observe(seconds)

    def observe_handovers(self) -> None:
        """Takes the times of the hand-overs since the last call."""
        for seconds in self._state.take_handover_times():
            self._handover.observe(seconds)

    def _values(self) -> Iterable[MetricValue]:
        acts = self._acts()
        yield MetricValue(*ACTIVE, float(acts))
        about = "Requests that changed something, by purpose"
        yield MetricValue("moorage_machines_writes_total", about, dict(self.writes), "kind")
        if acts:
            about = "Slots of a machine type (GROUP/TYPE) by state: reserved, granted (a guest gets it), used, short (no room)"
            yield MetricValue("moorage_machines_slots", about, self._state.slot_counts(), ("machine", "state"))
