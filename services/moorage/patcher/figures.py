"""What is counted of the carrying out of decisions, when somebody collects it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .worker import Patcher


class State(Collector):
    def __init__(self, patcher: Patcher, state: Mapping[str, Any]) -> None:
        self._patcher, self._state = patcher, state

    def collect(self) -> Iterable[Metric]:
        desk = self._patcher.desk
        active = GaugeMetricFamily("moorage_worker_active", "1 for the one of its kind that does what only one may do")
        active.add_metric([], float(self._state.get("role") == "active"))
        phases = GaugeMetricFamily("moorage_rollouts", "Groups that have been decided, by phase", labels=["phase"])
        for phase, count in Tally(status.phase for status in list(desk.statuses.values())).items():
            phases.add_metric([phase], count)
        backlog = GaugeMetricFamily(
            "moorage_patcher_backlog_groups", "Groups that wait for their turn or are worked on"
        )
        backlog.add_metric([], len(desk.dirty) + len(desk.busy))
        return [active, phases, backlog]
