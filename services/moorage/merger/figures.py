"""What is counted of decisions. Children are bound once: a decision costs a few additions."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moorage.model.explanations import Attempt
from moorage.telemetry import SECONDS

if TYPE_CHECKING:
    from .worker import Started


class Figures:
    def __init__(self, registry: CollectorRegistry) -> None:
        decisions = Counter(
            "moorage_decisions",
            "Tries to decide a group: placed, pending, failed, or dropped (decided or withdrawn by others meanwhile)",
            ["outcome"],
            registry=registry,
        )
        self._outcomes = {one: decisions.labels(one).inc for one in ("placed", "pending", "failed", "dropped")}
        steps = Histogram(
            "moorage_decision_step_duration_seconds",
            "Time of one step of a try: ask (all controllers), propose (choose and assign), commit (in the log)",
            ["step"],
            registry=registry,
            buckets=SECONDS,
        )
        self.asked = steps.labels("ask").observe
        self.proposed = steps.labels("propose").observe
        self.committed = steps.labels("commit").observe
        self.decided = Histogram(
            "moorage_decision_duration_seconds", "Time of a try", registry=registry, buckets=SECONDS
        ).observe

    def outcome(self, attempt: Attempt | None) -> None:
        self._outcomes["dropped" if attempt is None else attempt.phase.lower()]()


class State(Collector):
    """Counted when somebody collects it."""

    def __init__(self, started: Started) -> None:
        self._started = started

    def collect(self) -> Iterable[Metric]:
        active = GaugeMetricFamily("moorage_worker_active", "1 for the one of its kind that does what only one may do")
        pending = GaugeMetricFamily(
            "moorage_pending_groups", "Groups that wait, by the first reason", labels=["reason"]
        )
        current = self._started.pending
        active.add_metric([], float(bool(current)))
        if current:
            for reason, count in Tally(
                one.attempt.reasons[0].code if one.attempt is not None and one.attempt.reasons else "Undecided"
                for one in current[0].waiting.groups.values()
            ).items():
                pending.add_metric([reason], count)
        conflicts = CounterMetricFamily(
            "moorage_ledger_conflicts",
            "Commits that others came before, and that were checked again",
            value=self._started.decider.committer.conflicts,
        )
        return [active, pending, conflicts]
