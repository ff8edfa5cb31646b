"""Logs, metrics, traces: how a worker tells what it does."""

from .logs import configure

__all__ = ["configure"]
