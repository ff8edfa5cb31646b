"""Makes every worker a NATS service: `nats micro ls`, `info` and `stats` and `moorage check` find it, with its health and the
subjects that it serves."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg
from nats.micro.service import EndpointInfo, EndpointStats, Service, ServiceConfig, ServiceInfo, ServiceStats

from moorage.telemetry import version_of_moorage

from .connection import Connection


class WorkerService(Service):
    """A service whose metadata is the worker's health at the moment of the answer.

    nats.micro would subscribe to endpoints itself, in one task each and without our limits and bounds. Endpoints are
    therefore those of `Connection.serve`, and their statistics are read from the same counters as the metrics."""

    def __init__(self, conn: Connection, health: Callable[[], dict[str, Any]]) -> None:
        self._conn, self._health = conn, health
        self._pid = str(os.getpid())
        self._state = {"pid": self._pid}
        super().__init__(
            conn.nc,
            ServiceConfig(
                name=f"moorage-{conn.worker}",
                version=version_of_moorage(),
                description=f"Moorage {conn.worker}",
                metadata=self._state,  # kept by reference, so answers have what `_refresh` writes
            ),
        )

    def _refresh(self) -> None:
        health = self._health()
        self._state.clear()
        self._state |= {name: str(value) for name, value in health.items() if isinstance(value, str | int | float)}
        self._state |= {
            "pid": self._pid,
            "ok": "true" if health.get("ok", True) else "false",
            "missing": ", ".join(health.get("missing", [])),
        }

    def info(self) -> ServiceInfo:
        self._refresh()
        info = super().info()
        info.endpoints = [
            EndpointInfo(name=_name(endpoint.subject), subject=endpoint.subject, queue_group=endpoint.queue)
            for endpoint in self._conn.metrics.endpoints()
        ]
        return info

    def stats(self) -> ServiceStats:
        self._refresh()
        stats = super().stats()
        stats.endpoints = [
            EndpointStats(
                name=_name(endpoint.subject),
                subject=endpoint.subject,
                queue_group=endpoint.queue,
                num_requests=endpoint.requests,
                num_errors=endpoint.errors,
                processing_time=endpoint.nanoseconds,
                average_processing_time=endpoint.nanoseconds // max(1, endpoint.handled),
            )
            for endpoint in self._conn.metrics.endpoints()
        ]
        return stats

    async def _handle_ping_request(self, msg: Msg) -> None:
        self._refresh()
        await super()._handle_ping_request(msg)


def _name(subject: str) -> str:
    """Returns the name of an endpoint, for which nats.micro allows letters, digits, `-` and `_` only."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", subject.removeprefix("moorage.")).strip("-")


async def announce(conn: Connection, health: Callable[[], dict[str, Any]]) -> None:
    await WorkerService(conn, health).start()
    await conn.settle()
