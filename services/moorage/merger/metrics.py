"""Prometheus metrics of decisions. Label children are bound once, so counting is a few additions."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

from moorage.ledger.metrics import LEDGER_CONFLICTS
from moorage.model.attempts import Attempt
from moorage.telemetry import ACTIVE, SECONDS, MetricValue

if TYPE_CHECKING:
    from .worker import Started


class DecisionMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        decisions = Counter(
            "moorage_decisions",
            "Attempts to decide a group: placed, pending, failed, or dropped (decided or withdrawn elsewhere meanwhile)",
            ["outcome"],
            registry=registry,
        )
        self._outcomes = {
            outcome: decisions.labels(outcome).inc for outcome in ("placed", "pending", "failed", "dropped")
        }
        steps = Histogram(
            "moorage_deciding_duration_seconds",
            "Duration of a step of an attempt: ask (all controllers), propose (choose and assign), commit (to the log)",
            ["step"],
            registry=registry,
            buckets=SECONDS,
        )
        self.asked = steps.labels("ask").observe
        self.proposed = steps.labels("propose").observe
        self.committed = steps.labels("commit").observe
        self.decided = Histogram(
            "moorage_decision_duration_seconds",
            "Duration of an attempt to decide a group",
            registry=registry,
            buckets=SECONDS,
        ).observe
        self._devices = Histogram(
            "moorage_device_choice_seconds",
            "Duration of the choice of nodes for pods that need devices, by the algorithm",
            ["algorithm"],
            registry=registry,
            buckets=SECONDS,
        )

        moves = Counter(
            "moorage_device_moves",
            "Pods whose devices failed: they got others of their node or of their cluster, wait for some, or were placed elsewhere",
            ["outcome"],
            registry=registry,
        )
        self._moves = {outcome: moves.labels(outcome).inc for outcome in ("node", "cluster", "waiting", "elsewhere")}

    def devices_chosen(self, algorithm: str, seconds: float) -> None:
        self._devices.labels(algorithm).observe(seconds)

    def devices_moved(self, outcome: str, pods: int) -> None:
        self._moves[outcome](pods)

    def outcome(self, attempt: Attempt | None) -> None:
        self._outcomes["dropped" if attempt is None else attempt.phase.lower()]()


class RecordMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        records = Counter(
            "moorage_records",
            "Decisions by whether what they were made from is recorded: written, or lost (no time or no broker)",
            ["outcome"],
            registry=registry,
        )
        self.written, self.lost = records.labels("written").inc, records.labels("lost").inc


def merger_metrics(started: Started) -> Iterable[MetricValue]:
    """Yields the metrics that are computed when they are collected."""
    yield MetricValue(*ACTIVE, float(started.wait_loop is not None))
    waiting = started.wait_loop.waiting.groups.values() if started.wait_loop is not None else ()
    reasons = Tally(
        w.attempt.reasons[0].code if w.attempt is not None and w.attempt.reasons else "Undecided" for w in waiting
    )
    yield MetricValue("moorage_pending_groups", "Waiting groups by their first reason", reasons, "reason")
    conflicts = started.decider.committer.conflicts
    yield MetricValue(*LEDGER_CONFLICTS, conflicts)
