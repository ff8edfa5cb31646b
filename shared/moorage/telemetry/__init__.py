"""Logs, metrics, traces: how a worker tells what it does."""

from __future__ import annotations

from . import traces
from .endpoint import from_env, listen, shown, url_of
from .logs import HANDLED, Handled, configure_logs, handling
from .traces import NotInstalled, configure_traces, end_traces
from .vitals import CURRENT, SECONDS, Vitals, take

__all__ = [
    "HANDLED",
    "SECONDS",
    "Handled",
    "NotInstalled",
    "Vitals",
    "configure",
    "end_traces",
    "from_env",
    "handling",
    "listen",
    "shown",
    "take",
    "traces",
    "url_of",
]


def configure(worker: str, *, release: str = "", restarts: int = 0) -> Vitals:
    """What a process does first, once it knows which worker it is (and after the fork)."""
    configure_logs(worker)
    vitals = Vitals(worker, release=release, restarts=restarts)
    CURRENT.set(vitals)
    configure_traces(worker)
    return vitals
