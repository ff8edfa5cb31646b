"""Counts what the agent does, under the names `moorage_node_*`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

#: Upper bounds of the buckets of admission times, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    def __init__(self) -> None:
        self.admissions: Counter[tuple[str, ...]] = Counter()
        self.plugin_calls: Counter[tuple[str, ...]] = Counter()
        self.updates: Counter[str] = Counter()
        self.drift = 0
        self._durations = [0] * (len(BUCKETS) + 1)
        self._duration_sum = 0.0
        self.pools: Mapping[str, int] = {}
        self.exclusive: Mapping[int, int] = {}

    def count_call(self, plugin: str, method: str, outcome: str) -> None:
        self.plugin_calls[plugin, method, outcome] += 1

    def observe_admission(self, outcome: str, code: str, seconds: float) -> None:
        self.admissions[outcome, code] += 1
        self._duration_sum += seconds
        self._durations[next((i for i, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))] += 1

    def text(self) -> str:
        """Returns all metrics in the text format of Prometheus."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _counter(
            "admissions_total", "Pods that were admitted or refused", ("outcome", "code"), self.admissions
        )
        yield "# HELP moorage_node_admission_duration_seconds Time from the question to the answer"
        yield "# TYPE moorage_node_admission_duration_seconds histogram"
        total = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._durations, strict=True):
            total += count
            yield f'moorage_node_admission_duration_seconds_bucket{{le="{bound}"}} {total}'
        yield f"moorage_node_admission_duration_seconds_sum {self._duration_sum}"
        yield f"moorage_node_admission_duration_seconds_count {total}"
        names = ("plugin", "method", "outcome")
        yield from _counter("plugin_calls_total", "Calls of plugins", names, self.plugin_calls)
        updates: dict[tuple[str, ...], int] = {(outcome,): count for outcome, count in self.updates.items()}
        yield from _counter("updates_total", "Updates of running containers", ("outcome",), updates)
        yield from _counter("drift_total", "Settings of containers that others had changed", (), {(): self.drift})
        pools: dict[tuple[str, ...], int] = {(name,): count for name, count in self.pools.items()}
        yield from _family("gauge", "pool_cpus", "CPUs of a pool", ("pool",), pools)
        zones: dict[tuple[str, ...], int] = {(str(zone),): count for zone, count in self.exclusive.items()}
        yield from _family("gauge", "exclusive_cpus", "CPUs of a zone that containers have alone", ("zone",), zones)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]) -> Iterator[str]:
    return _family("counter", name, text, labels, values)


def _family(
    kind: str, name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]
) -> Iterator[str]:
    yield f"# HELP moorage_node_{name} {text}"
    yield f"# TYPE moorage_node_{name} {kind}"
    for key, value in sorted(values.items()):
        shown = ",".join(f'{label}="{_escaped(part)}"' for label, part in zip(labels, key, strict=True))
        yield f"moorage_node_{name}{{{shown}}} {value}" if shown else f"moorage_node_{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
