"""Carries out the plans for running containers: what a plan wants is sent to the runtime, what is in force is read back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import grpc.aio
import structlog

from moorage.bus.failpoints import reached

from .containers import ContainerIndex, ContainerRecord
from .core.adjustment import Adjusted, Key, Properties, Update, Wanted, adjust, drift
from .metrics import Metrics
from .nri_connection import NriFailed
from .runtime import EXITED, RUNNING

log = structlog.get_logger("node")

#: Updates that are sent to the runtime at once, and questions: answers are read as they come, and stay in memory until then.
_AT_ONCE, _READ_AT_ONCE = 32, 8


class Updater(Protocol):
    """Changes and reads containers by whichever way the agent is attached."""

    async def update(self, record: ContainerRecord, properties: Mapping[str, str]) -> None: ...

    async def read(self, record: ContainerRecord, properties: Mapping[str, str]) -> dict[str, str] | None:
        """Returns what is in force; None if the container does not run any more."""

    def unchanged(self, record: ContainerRecord) -> bool:
        """Returns whether what is in force is certainly what was read last."""


class Adjuster:
    """Moves all containers to what they should have. Runs one at a time; changes that come meanwhile are seen by the next."""

    def __init__(
        self,
        index: ContainerIndex,
        updater: Updater,
        wanted: Callable[[ContainerRecord], Wanted | None],
        metrics: Metrics,
    ) -> None:
        self._index, self.updater, self._wanted, self._metrics = index, updater, wanted, metrics
        self._lock = asyncio.Lock()
        self._slots, self._read_slots = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(_READ_AT_ONCE)
        #: Containers that are not as they should be, with why.
        self.failed: dict[Key, str] = {}
        #: What all containers should have and had when they were looked at last.
        self._settled: dict[Key, Properties] = {}

    async def put_right(self) -> None:
        """Reads what is in force everywhere, and puts right what others changed."""
        async with self._lock:
            before = {record.id: record.applied for record in self._index.live()}
            wanted = await self._read(everything=True)
            settled = {key: want.properties for key, want in wanted.items()}
            if settled == self._settled and all(before.get(r.id) is r.applied for r in self._index.live()):
                return
            for key in drift(wanted, {key: self._applied(key) for key in wanted}):
                record = self._index.named(*key)
                if record is not None and before.get(record.id) and before[record.id] != record.applied:
                    self._metrics.drift += 1
                    log.warning("a container was changed by others", pod=record.pod, container=record.name)
            outcome = await self._carry_out(wanted, all_or_nothing=False)
            self._settled = settled if not outcome.failed and not outcome.done else {}

    async def read_new(self) -> None:
        """Reads what is in force in containers that were not read since they started."""
        async with self._lock:
            await self._read(everything=False)

    async def adjust(self, *, all_or_nothing: bool = False) -> Adjusted:
        """Moves all containers. With `all_or_nothing`, a failure gives every one back what it had."""
        async with self._lock:
            return await self._carry_out(await self._read(everything=False), all_or_nothing)

    async def _read(self, *, everything: bool) -> dict[Key, Wanted]:
        """Returns what each container should have, after reading what those have of which it is not known."""
        wanted: dict[Key, Wanted] = {}
        unread: list[tuple[ContainerRecord, Properties]] = []
        for record in list(self._index.live()):
            want = self._wanted(record)
            if want is None or self._index.named(record.uid, record.name) is not record:
                continue
            wanted[record.uid, record.name] = want
            known = want.properties.keys() <= record.applied.keys()
            if record.state == RUNNING and not (known and (not everything or self.updater.unchanged(record))):
                unread.append((record, want.properties))
        if unread:
            await asyncio.gather(*(self._read_one(record, properties) for record, properties in unread))
        gone = [key for key in wanted if (found := self._index.named(*key)) is None or found.state == EXITED]
        for key in gone:
            del wanted[key]
        return wanted

    async def _read_one(self, record: ContainerRecord, properties: Properties) -> None:
        try:
            async with self._read_slots:
                found = await self.updater.read(record, properties)
        except (grpc.aio.AioRpcError, NriFailed):
            return  # while the runtime is away, what was read before counts
        if found is None:
            record.state = EXITED
        else:
            after = {**record.applied, **found}
            record.applied = record.applied if after == record.applied else after

    def _applied(self, key: Key) -> Properties:
        record = self._index.named(*key)
        return record.applied if record is not None else {}

    async def _carry_out(self, wanted: dict[Key, Wanted], all_or_nothing: bool) -> Adjusted:
        # A container that was created and not started yet has what it was created with.
        actual = {key: self._applied(key) for key in wanted}
        plan = adjust(wanted, actual, all_or_nothing=all_or_nothing)
        reads: list[Properties | None] | None = None
        while True:
            try:
                batch = next(plan) if reads is None else plan.send(reads)
            except StopIteration as done:
                outcome: Adjusted = done.value
                self.failed = dict(outcome.failed)
                return outcome
            if reads is not None:
                reached("node.shrunk")
            reads = await self._batch(batch)

    async def _batch(self, batch: Sequence[Update]) -> list[Properties | None]:
        return list(await asyncio.gather(*map(self._update, batch)))

    async def _update(self, update: Update) -> Properties | None:
        record = self._index.named(*update.key)
        if record is None:
            return None
        async with self._slots:
            try:
                await self.updater.update(record, update.properties)
                found = await self.updater.read(record, update.properties) if record.state == RUNNING else {}
            except (grpc.aio.AioRpcError, NriFailed, OSError, ValueError) as error:
                words = (error.details() if isinstance(error, grpc.aio.AioRpcError) else "") or str(error)
                self._metrics.updates["failed"] += 1
                log.warning("a container cannot be updated", pod=record.pod, container=record.name, error=words)
                return None
        if found is None:
            record.state = EXITED
            return None
        # What cannot be read back, because the container does not run yet, is what the runtime has accepted.
        found = {**update.properties, **found} if record.state != RUNNING or not found else found
        record.applied = {**record.applied, **found}
        self._metrics.updates["ok"] += 1
        return found
