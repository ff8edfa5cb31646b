"""What a worker knows of itself for those who look after it: its metrics, and whether something is missing. One per
process; the bus and the worker fill it in, the endpoint shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# Half as many series again, and nobody asks.
disable_created_metrics()  # type: ignore[no-untyped-call]
#: Of kinds of which one does what only one may do.
ACTIVE = ("moorage_worker_active", "1 for the one of its kind that does what only one may do, 0 for who stands by")
#: From half a millisecond, the time of one step, to more than any deadline.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def version_of_moorage() -> str:
    try:
        return version("moorage")
    except PackageNotFoundError:
        return "0.0.0"


class MetricValue(NamedTuple):
    """A number, or one for each value of a label. Names of counters end in `_total`."""

    name: str
    about: str
    value: float | Mapping[Any, float]
    label: str = ""


class ProcessHealth:
    def __init__(self, worker: str, restarts: int = 0) -> None:
        self.worker, self.restarts = worker, restarts
        self.registry = CollectorRegistry()
        self.registry.register(_WorkerCollector(self))
        ProcessCollector(registry=self.registry)
        self.claimed = False
        #: Before there is a health to ask: what the worker waits for.
        self.waiting_for = "NATS"
        self.connected: Callable[[], bool] = lambda: False
        self.health: Callable[[], dict[str, Any]] | None = None

    def add_values(self, read: Callable[[], Iterable[MetricValue]]) -> None:
        """Numbers that are read only when somebody collects them."""
        self.registry.register(_ValuesCollector(read))

    def missing(self) -> list[str]:
        """Nothing: ready."""
        if self.health is None:
            return [self.waiting_for]
        missing = [] if self.connected() else ["NATS"]
        health = self.health()
        missing += [str(one) for one in health.get("missing", ())]
        return missing or ([] if health.get("ok", True) else ["it does not say what"])


class _ValuesCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[MetricValue]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        for name, about, value, label in self._read():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(name.removesuffix("_total"), about, labels=[label] if label else [])
            if isinstance(value, Mapping):
                for key, number in value.items():
                    metric.add_metric([key], number)
            else:
                metric.add_metric([], value)
            yield metric


class _WorkerCollector(Collector):
    def __init__(self, vitals: ProcessHealth) -> None:
        self._vitals = vitals

    def collect(self) -> Iterable[Metric]:
        me = self._vitals
        about = GaugeMetricFamily("moorage_worker_info", "Which worker this is", labels=["worker", "version"])
        about.add_metric([me.worker, version_of_moorage()], 1)
        ready = GaugeMetricFamily("moorage_worker_ready", "1 while nothing is missing", value=float(not me.missing()))
        restarts = CounterMetricFamily(
            "moorage_worker_restarts", "How often the supervisor has started this worker again", value=me.restarts
        )
        return [about, ready, restarts]


CURRENT: ContextVar[ProcessHealth | None] = ContextVar("vitals", default=None)


def claim_health(worker: str) -> ProcessHealth:
    """This process's, for its bus. Where none is configured, or a second bus comes, one that nobody shows."""
    found = CURRENT.get()
    if found is None or found.claimed:
        found = ProcessHealth(worker)
    found.claimed = True
    return found
