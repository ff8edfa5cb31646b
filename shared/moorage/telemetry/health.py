"""Metrics and readiness of a process. The bus and the worker fill them in, and the endpoint serves them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# They would add half as many series again, and nothing uses them.
disable_created_metrics()  # type: ignore[no-untyped-call]
#: Name and help of a metric that workers with one active process have.
ACTIVE = ("moorage_worker_active", "1 if this worker is the leader, 0 if it is a standby")
#: Buckets of histograms: from half a millisecond, the time of one step, to more than any deadline.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@cache
def version_of_moorage() -> str:
    try:
        return version("moorage")
    except PackageNotFoundError:
        return "0.0.0"


class MetricValue(NamedTuple):
    """A number, or one for each value of a label, with its help text; with several labels, one for each tuple of their values. Names
    of counters end in `_total`."""

    name: str
    about: str
    value: float | Mapping[Any, float]
    label: str | tuple[str, ...] = ""


class ProcessHealth:
    """The metrics registry of one process, and what it still needs to be ready."""

    def __init__(self, worker: str, restarts: int = 0) -> None:
        self.worker, self.restarts = worker, restarts
        self.registry = CollectorRegistry()
        self.registry.register(_WorkerCollector(self))
        ProcessCollector(registry=self.registry)
        self.claimed = False
        #: What the worker waits for while it starts, until `health` is set.
        self.waiting_for = "NATS"
        self.connected: Callable[[], bool] = lambda: False
        self.health: Callable[[], dict[str, Any]] | None = None

    def add_values(self, read: Callable[[], Iterable[MetricValue]]) -> None:
        """Adds metrics whose values are read when Prometheus collects them."""
        self.registry.register(_ValuesCollector(read))

    def missing(self) -> list[str]:
        """Returns what keeps the worker from being ready; empty if it is ready."""
        if self.health is None:
            return [self.waiting_for]
        missing = [] if self.connected() else ["NATS"]
        health = self.health()
        missing += [str(one) for one in health.get("missing", ())]
        return missing or ([] if health.get("ok", True) else ["unknown; see its log"])


class _ValuesCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[MetricValue]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        for name, about, value, label in self._read():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            labels = (label,) if isinstance(label, str) and label else label
            metric = family(name.removesuffix("_total"), about, labels=labels)
            if isinstance(value, Mapping):
                for key, number in value.items():
                    metric.add_metric(key if isinstance(key, tuple) else [key], number)
            else:
                metric.add_metric([], value)
            yield metric


class _WorkerCollector(Collector):
    def __init__(self, process_health: ProcessHealth) -> None:
        self._process_health = process_health

    def collect(self) -> Iterable[Metric]:
        worker = self._process_health
        info = GaugeMetricFamily("moorage_worker_info", "Name and version of this worker", labels=["worker", "version"])
        info.add_metric([worker.worker, version_of_moorage()], 1)
        ready = GaugeMetricFamily("moorage_worker_ready", "1 if the worker is ready", value=float(not worker.missing()))
        restarts = CounterMetricFamily(
            "moorage_worker_restarts", "Restarts of this worker by its supervisor", value=worker.restarts
        )
        return [info, ready, restarts]


CURRENT: ContextVar[ProcessHealth | None] = ContextVar("process_health", default=None)


def claim_health(worker: str) -> ProcessHealth:
    """Returns the health of this process for its bus; if none is configured or another bus has it, one that is not served."""
    found = CURRENT.get()
    if found is None or found.claimed:
        found = ProcessHealth(worker)
    found.claimed = True
    return found
