"""Logs, metrics, traces and health of a worker."""

from __future__ import annotations

from . import tracing
from .endpoint import from_env, listen, serve_health, url_of
from .health import ACTIVE, CURRENT, SECONDS, MetricValue, ProcessHealth, claim_health, version_of_moorage
from .logs import HANDLED, Handled, configure_logs, handling, level_from_env
from .tracing import configure_traces, end_traces

__all__ = [
    "ACTIVE",
    "HANDLED",
    "SECONDS",
    "Handled",
    "MetricValue",
    "ProcessHealth",
    "claim_health",
    "configure",
    "end_traces",
    "from_env",
    "handling",
    "level_from_env",
    "listen",
    "serve_health",
    "tracing",
    "url_of",
    "version_of_moorage",
]


def configure(worker: str, *, restarts: int = 0) -> ProcessHealth:
    """Sets up logs, metrics and traces of this process, which is from now on this worker. Call it after the fork."""
    configure_logs(worker)
    process_health = ProcessHealth(worker, restarts)
    CURRENT.set(process_health)
    configure_traces(worker)
    return process_health
