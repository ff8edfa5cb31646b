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
from .connection import MAX_PAYLOAD
from .discovery import FoundWorker, find_workers
from .errors import BusError, Conflict, NoAnswer
from .fanout import FanOut
from .ids import new_id, now_text, time_text
from .kv import Bucket, Entry
from .lease import Lease
from .log import Log
from .objects import Objects
from .ordered_consumer import OrderedConsumer
from .retry import until_done
from .server import Incoming
from .settings import Settings, setting

__all__ = [
    "MAX_PAYLOAD",
    "Bucket",
    "Bus",
    "BusError",
    "Conflict",
    "Entry",
    "FoundWorker",
    "Incoming",
    "Lease",
    "Log",
    "NoAnswer",
    "Objects",
    "OrderedConsumer",
    "Reply",
    "Settings",
    "find_workers",
    "new_id",
    "now_text",
    "setting",
    "subjects",
    "time_text",
    "until_done",
]


class Bus(FanOut):
    @classmethod
    async def connect(cls, settings: Settings, *, worker: str, timeout: float = 10) -> Bus:
        """Connects a worker. Raises NoAnswer if the broker does not answer in time."""
        bus = cls(worker, claim_health(worker))
        try:
            await bus.open(settings, timeout)
        except BaseException:
            await bus.close()
            raise
        bus.set_waiting_for("what it starts with")
        return bus

    def set_waiting_for(self, what: str) -> None:
        """Sets what the worker waits for before it is ready, until its health is known."""
        self.process_health.waiting_for = what

    def set_health(self, health: Callable[[], dict[str, Any]]) -> None:
        """Sets the health callback used by /readyz."""
        self.process_health.health = health

    async def announce(self, health: Callable[[], dict[str, Any]]) -> None:
        """Registers the worker as a NATS service with this health, which /readyz uses, too."""
        await _service.announce(self, health)
        self.set_health(health)
        # nats-py swallows a cancellation while it writes: a worker that was cancelled while starting ends here.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    async def provision(self, stores: Iterable[Store]) -> None:
        """Creates or updates these stores. Needs an administrator."""
        await _provision.provision(self, stores)

    def bucket(self, name: str) -> Bucket:
        return Bucket(self, name)

    def log(self, name: str, subject: str = subjects.LEDGER_COMMIT) -> Log:
        """Returns the stream of this name; `subject` is the one on which `Log.append` publishes."""
        return Log(self, name, subject)

    def objects(self, name: str) -> Objects:
        return Objects(self, name)
