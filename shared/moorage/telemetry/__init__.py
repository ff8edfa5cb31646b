"""Logs, metrics, traces: how a worker tells what it does."""

from __future__ import annotations

from . import tracing
from .endpoint import from_env, listen, shown, url_of
from .health import ACTIVE, CURRENT, SECONDS, Figure, Vitals, release, take
from .logs import HANDLED, Handled, configure_logs, handling
from .tracing import configure_traces, end_traces

__all__ = [
    "ACTIVE",
    "HANDLED",
    "SECONDS",
    "Figure",
    "Handled",
    "Vitals",
    "configure",
    "end_traces",
    "from_env",
    "handling",
    "listen",
    "release",
    "shown",
    "take",
    "tracing",
    "url_of",
]


def configure(worker: str, *, restarts: int = 0) -> Vitals:
    """What a process does first, once it knows which worker it is (and after the fork)."""
    configure_logs(worker)
    vitals = Vitals(worker, restarts)
    CURRENT.set(vitals)
    configure_traces(worker)
    return vitals
