"""What is counted of every worker's messages. Children are bound when serving begins: a request costs a few additions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from moorage.telemetry import SECONDS


class ServeMetrics:
    """The requests of one subject, by what became of them."""

    __slots__ = ("answered", "busy", "failed", "refused", "rejected", "seconds")

    def __init__(self, requests: Counter, seconds: Histogram, subject: str) -> None:
        self.answered = requests.labels(subject, "answered").inc
        self.refused = requests.labels(subject, "refused").inc
        self.rejected = requests.labels(subject, "rejected").inc
        self.failed = requests.labels(subject, "failed").inc
        self.busy = requests.labels(subject, "busy").inc
        self.seconds: Callable[[float], None] = seconds.labels(subject).observe


class AskMetrics:
    """One controller asked one kind of question."""

    __slots__ = ("answered", "seconds", "timeout")

    def __init__(self, asks: Counter, seconds: Histogram, controller: str, question: str) -> None:
        self.answered = asks.labels(controller, question, "answered").inc
        self.timeout = asks.labels(controller, question, "timeout").inc
        self.seconds: Callable[[float], None] = seconds.labels(controller, question).observe


class BusMetrics(Collector):
    def __init__(self, registry: CollectorRegistry, counts: dict[str, int], nc: Any) -> None:
        self._counts, self._nc = counts, nc
        self._requests = Counter(
            "moorage_requests",
            "Requests and hints by what became of them: answered, refused (understood, and said no to), rejected (not "
            "readable, kept as such), failed (our fault), busy (too many at once)",
            ["subject", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "moorage_request_duration_seconds", "Time to handle one", ["subject"], registry=registry, buckets=SECONDS
        )
        self._asks = Counter(
            "moorage_asks",
            "Questions to controllers; timeout: no answer before the deadline",
            ["controller", "question", "outcome"],
            registry=registry,
        )
        self._took = Histogram(
            "moorage_ask_duration_seconds",
            "Time until a controller's answer came",
            ["controller", "question"],
            registry=registry,
            buckets=SECONDS,
        )
        self._asked: dict[str, AskMetrics] = {}
        registry.register(self)

    def served(self, subject: str) -> ServeMetrics:
        return ServeMetrics(self._requests, self._seconds, subject)

    def asked(self, name: str, subject: str) -> AskMetrics:
        found = self._asked.get(subject)
        if found is None:
            found = self._asked[subject] = AskMetrics(self._asks, self._took, name, subject.rpartition(".")[2])
        return found

    def collect(self) -> Iterable[Metric]:
        incidents = CounterMetricFamily(
            "moorage_incidents",
            "What should be rare, by what it was: reconnects, errors and the like",
            labels=["incident"],
        )
        for name, count in sorted(self._counts.items()):
            incidents.add_metric([name], count)
        stats = self._nc.stats
        messages = CounterMetricFamily("moorage_bus_messages", "Messages to and from NATS", labels=["direction"])
        size = CounterMetricFamily("moorage_bus_bytes", "Bytes of messages to and from NATS", labels=["direction"])
        for direction in ("in", "out"):
            messages.add_metric([direction], stats[f"{direction}_msgs"])
            size.add_metric([direction], stats[f"{direction}_bytes"])
        return [incidents, messages, size]
