"""Prometheus metrics of a worker's messages. Label children are bound when serving begins, so counting is a few additions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from moorage.telemetry import SECONDS


class ServeMetrics:
    """Counts the requests of one subject by outcome."""

    __slots__ = ("answered", "busy", "failed", "refused", "rejected", "seconds")

    def __init__(self, requests: Counter, seconds: Histogram, subject: str) -> None:
        self.answered = requests.labels(subject, "answered").inc
        self.refused = requests.labels(subject, "refused").inc
        self.rejected = requests.labels(subject, "rejected").inc
        self.failed = requests.labels(subject, "failed").inc
        self.busy = requests.labels(subject, "busy").inc
        self.seconds: Callable[[float], None] = seconds.labels(subject).observe


class AskMetrics:
    """Counts the asks of one kind to one controller."""

    __slots__ = ("answered", "seconds", "skipped", "timeout")

    def __init__(self, asks: Counter, seconds: Histogram, controller: str, question: str) -> None:
        self.answered = asks.labels(controller, question, "answered").inc
        self.timeout = asks.labels(controller, question, "timeout").inc
        self.skipped = asks.labels(controller, question, "skipped").inc
        self.seconds: Callable[[float], None] = seconds.labels(controller, question).observe


class SubjectStats(NamedTuple):
    """The requests of one served subject since the start. `errors` were unreadable, failed or turned away as too many;
    `handled` came as far as the handler, which took `nanoseconds` for all of them."""

    subject: str
    queue: str
    requests: int
    errors: int
    handled: int
    nanoseconds: int


class BusMetrics(Collector):
    def __init__(self, registry: CollectorRegistry, counts: dict[str, int], nc: Any) -> None:
        self._counts, self._nc = counts, nc
        self._requests = Counter(
            "moorage_requests",
            "Requests and hints by outcome: answered, refused (readable but not allowed), rejected (unreadable, kept in "
            "MOORAGE_REJECTED), failed (an error of the worker), busy (too many at once)",
            ["subject", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "moorage_request_duration_seconds",
            "Time to handle a request",
            ["subject"],
            registry=registry,
            buckets=SECONDS,
        )
        self._asks = Counter(
            "moorage_asks",
            "Asks to controllers by outcome; timeout: no answer before the deadline, skipped: not asked, because the group does not concern it",
            ["controller", "question", "outcome"],
            registry=registry,
        )
        self._took = Histogram(
            "moorage_ask_duration_seconds",
            "Time until a controller answered",
            ["controller", "question"],
            registry=registry,
            buckets=SECONDS,
        )
        self._asked: dict[str, AskMetrics] = {}
        self._queues: dict[str, str] = {}  # of each served subject
        registry.register(self)

    def served(self, subject: str, queue: str) -> ServeMetrics:
        self._queues[subject] = queue
        return ServeMetrics(self._requests, self._seconds, subject)

    def asked(self, name: str, subject: str) -> AskMetrics:
        found = self._asked.get(subject)
        if found is None:
            found = self._asked[subject] = AskMetrics(self._asks, self._took, name, subject.rpartition(".")[2])
        return found

    def endpoints(self) -> list[SubjectStats]:
        """Returns the stats of every served subject."""
        requests, errors, handled, seconds = (dict.fromkeys(self._queues, 0.0) for _ in range(4))
        for metric in (*self._requests.collect(), *self._seconds.collect()):
            for sample in metric.samples:
                subject = sample.labels["subject"]
                match sample.name:
                    case "moorage_requests_total":
                        requests[subject] += sample.value
                        if sample.labels["outcome"] in ("rejected", "failed", "busy"):
                            errors[subject] += sample.value
                    case "moorage_request_duration_seconds_count":
                        handled[subject] += sample.value
                    case "moorage_request_duration_seconds_sum":
                        seconds[subject] += sample.value
        return [
            SubjectStats(
                subject,
                queue,
                int(requests[subject]),
                int(errors[subject]),
                int(handled[subject]),
                int(seconds[subject] * 1e9),
            )
            for subject, queue in self._queues.items()
        ]

    def collect(self) -> Iterable[Metric]:
        incidents = CounterMetricFamily(
            "moorage_incidents",
            "Rare events by kind: reconnects, errors and the like",
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
