"""The bus: the one wrapper around NATS that every worker uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from moorage.mesh import Store, subjects
from moorage.model.replies import Reply
from moorage.telemetry import claim_health

from . import discovery as _service
from . import provision as _provision
from .connection import MAX_PAYLOAD, Incoming, new_id, now_text
from .connection import connect as _connect
from .errors import BusError, Conflict, NoAnswer
from .fanout import FanOut
from .kv import Bucket, Entry
from .lease import Lease
from .log import Log
from .objects import Objects
from .ordered_consumer import OrderedConsumer
from .settings import Settings, setting

__all__ = [
    "MAX_PAYLOAD",
    "Bucket",
    "Bus",
    "BusError",
    "Conflict",
    "Entry",
    "Incoming",
    "Lease",
    "Log",
    "NoAnswer",
    "Objects",
    "OrderedConsumer",
    "Reply",
    "Settings",
    "new_id",
    "now_text",
    "setting",
    "subjects",
]


class Bus(FanOut):
    @classmethod
    async def connect(cls, settings: Settings, *, worker: str, timeout: float = 10) -> Bus:
        nc, closed, owner = await _connect(settings, worker, timeout)
        bus = cls(nc, worker, closed, claim_health(worker))
        owner.append(bus)
        try:
            await bus.open()
        except BaseException:
            await bus.close()
            raise
        bus.set_waiting_for("what it starts with")
        return bus

    def set_waiting_for(self, what: str) -> None:
        """Sets what /readyz names as missing until there is a health callback."""
        self.vitals.waiting_for = what

    def set_health(self, health: Callable[[], dict[str, Any]]) -> None:
        """Sets the health callback used by /readyz, without answering on the bus."""
        self.vitals.health = health

    async def announce(self, health: Callable[[], dict[str, Any]]) -> None:
        """Makes the worker a NATS service, and ready as this health callback says."""
        await _service.announce(self, health)
        self.set_health(health)
        # nats-py swallows a cancellation that arrives while it writes, so a worker cancelled while it starts ends here.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    async def provision(self, stores: Iterable[Store]) -> None:
        """Creates or updates these stores. Needs an administrator."""
        await _provision.provision(self, stores)

    def bucket(self, name: str) -> Bucket:
        return Bucket(self, name)

    def log(self, name: str, subject: str = subjects.LEDGER_COMMIT) -> Log:
        """The stream of this name; `subject` is the one on which `Log.append` publishes."""
        return Log(self, name, subject)

    def objects(self, name: str) -> Objects:
        return Objects(self, name)
