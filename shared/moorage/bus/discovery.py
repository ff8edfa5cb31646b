"""Makes every worker a NATS service: `nats micro ls`, `info` and `stats` and `moorage check` find it, with its health and the
subjects that it serves. Finds the workers that answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from typing import Any

import msgspec
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


class FoundWorker(msgspec.Struct):
    """A worker that answered a ping. `role`: active or standby, if one of its kind is active; `seq`: the last commit of the decision
    log that it has folded, if it tells."""

    kind: str
    id: str
    version: str
    pid: str
    ok: bool
    missing: str
    unrecorded: int
    role: str = ""
    seq: int | None = None


class _Ping(msgspec.Struct):
    name: str = ""
    id: str = ""
    version: str = ""
    metadata: dict[str, str] | None = None


_ping = msgspec.json.Decoder(_Ping).decode


async def find_workers(
    conn: Connection, seconds: float, enough: Callable[[list[FoundWorker]], bool]
) -> list[FoundWorker]:
    """Returns all workers that answer a ping, as soon as there are enough of them or time is up."""
    found: list[FoundWorker] = []
    complete = asyncio.Event()

    def on_answer(_: str, data: bytes) -> None:
        worker = _worker(data)
        if worker is not None:
            found.append(worker)
            if enough(found):
                complete.set()

    inbox = f"{conn.nc.new_inbox()}.ping"
    subscription = await conn.subscribe(inbox, on_answer)
    try:
        await conn.publish("$SRV.PING", b"", reply=inbox)
        with contextlib.suppress(TimeoutError):  # the caller sees which workers have not answered
            async with asyncio.timeout(seconds):
                await complete.wait()
                await asyncio.sleep(0.02)  # more workers of the same kind may answer
    finally:
        await subscription.unsubscribe()
    return sorted(found, key=lambda worker: (worker.kind, worker.pid))


def _worker(data: bytes) -> FoundWorker | None:
    """Returns None for the answer of a service that is not part of the mesh."""
    try:
        answer = _ping(data)
    except msgspec.DecodeError:
        return None
    if not answer.name.startswith("moorage-"):
        return None
    meta = answer.metadata or {}
    unrecorded, seq = meta.get("unrecorded", ""), meta.get("seq", "")
    return FoundWorker(
        kind=answer.name.removeprefix("moorage-"),
        id=answer.id,
        version=answer.version,
        pid=meta.get("pid", ""),
        ok=meta.get("ok") == "true",
        missing=meta.get("missing", ""),
        unrecorded=int(unrecorded) if unrecorded.isdecimal() else 0,
        role=meta.get("role", ""),
        seq=int(seq) if seq.isdecimal() else None,
    )
