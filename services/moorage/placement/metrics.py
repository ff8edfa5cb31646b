"""Prometheus metrics of allocation candidates."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from moorage.telemetry import SECONDS

from .core.call import Search


class CandidateMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "moorage_placement_candidates_duration_seconds",
            "Time to find the allocation candidates of a request",
            registry=registry,
            buckets=SECONDS,
        )
        self._found = Counter(
            "moorage_placement_candidates", "Allocation candidates that were answered", registry=registry
        )
        self._steps = Counter(
            "moorage_placement_search_steps", "Steps of searches for allocation candidates", registry=registry
        )
        self._bounded = Counter(
            "moorage_placement_searches_bounded",
            "Searches for allocation candidates that ended at their bound, before everything was tried",
            registry=registry,
        )

    def searched(self, search: Search, seconds: float) -> None:
        self._seconds.observe(seconds)
        self._found.inc(search.found)
        self._steps.inc(search.steps)
        self._bounded.inc(search.bounded)
