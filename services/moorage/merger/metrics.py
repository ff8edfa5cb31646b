"""What is counted of decisions. Children are bound once: a decision costs a few additions."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

from moorage.model.attempts import Attempt
from moorage.telemetry import ACTIVE, SECONDS, MetricValue

if TYPE_CHECKING:
    from .worker import Started


class DecisionMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        decisions = Counter(
            "moorage_decisions",
            "Tries to decide a group: placed, pending, failed, or dropped (decided or withdrawn by others meanwhile)",
            ["outcome"],
            registry=registry,
        )
        self._outcomes = {one: decisions.labels(one).inc for one in ("placed", "pending", "failed", "dropped")}
        steps = Histogram(
            "moorage_deciding_duration_seconds",
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


def merger_metrics(started: Started) -> Iterable[MetricValue]:
    """What is counted when somebody collects it."""
    yield MetricValue(*ACTIVE, float(started.wait_loop is not None))
    waiting = started.wait_loop.waiting.groups.values() if started.wait_loop is not None else ()
    reasons = Tally(
        one.attempt.reasons[0].code if one.attempt is not None and one.attempt.reasons else "Undecided"
        for one in waiting
    )
    yield MetricValue("moorage_pending_groups", "Groups that wait, by the first reason", reasons, "reason")
    conflicts = started.decider.committer.conflicts
    yield MetricValue(
        "moorage_ledger_conflicts_total", "Commits that others came before, and that were checked again", conflicts
    )
