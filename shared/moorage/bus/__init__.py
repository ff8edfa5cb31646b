"""The bus: one wrapper around NATS for every worker, and the one table of its subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from . import provision as _provision
from . import service as _service
from . import subjects
from .connection import Connection, Incoming, Reply, new_id, now_text
from .connection import connect as _connect
from .errors import BusError, Conflict, NoAnswer
from .lease import Lease
from .settings import Settings
from .stores import Bucket, Entry, Follower, Log, Mirror, Objects

__all__ = [
    "Bucket",
    "Bus",
    "BusError",
    "Conflict",
    "Entry",
    "Follower",
    "Incoming",
    "Lease",
    "Log",
    "Mirror",
    "NoAnswer",
    "Objects",
    "Reply",
    "Settings",
    "new_id",
    "now_text",
    "subjects",
]


class Bus(Connection):
    @classmethod
    async def connect(cls, settings: Settings, *, worker: str, timeout: float = 10) -> Bus:
        nc, closed, owner = await _connect(settings, worker, timeout)
        bus = cls(nc, worker, closed)
        owner.append(bus)
        await bus.open()
        return bus

    async def announce(self, health: Callable[[], dict[str, Any]]) -> None:
        await _service.announce(self, health)
        # nats-py swallows a cancellation that meets it while it writes: who was told to end while starting ends here.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    async def provision(self) -> None:
        await _provision.provision(self)

    def bucket(self, name: str) -> Bucket:
        return Bucket(self, name)

    def log(self, name: str) -> Log:
        return Log(self, name, subjects.LOGS[name])

    def objects(self, name: str) -> Objects:
        return Objects(self, name)
