"""Makes changes durable, in the order of operations: as records of a bucket, and allocations as entries of the decision log.

Operations see the changes of those before them at once, and each is answered once it and all before it are durable. After a
crash what is durable is what a prefix of the operations made. Only the holder of the lease writes; what a deposed one still
writes counts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import Any

import msgspec
import structlog

from moorage.bus import Bucket, Bus, new_id
from moorage.bus.failpoints import reached
from moorage.ledger import MAX_BYTES, Capacity, Changes, Committed, Committer, Dropped, LedgerFollower, encode_entry
from moorage.mesh import stores
from moorage.model.claims import Allocation, Commit
from moorage.model.placement_events import RecordedChange

from .core.call import Answer
from .core.errors import CONCURRENT_UPDATE, Refused, conflict
from .core.records import Change
from .core.state import State
from .events import Before, PlacementEvents, recorded_changes
from .provider_records import ProviderRecords, Stored, decode
from .steps import Operation, Steps, run_in_slices

log = structlog.get_logger("placement")

#: Bytes of one entry of the decision log. The rest of a commit is its envelope.
MAX_ENTRY = MAX_BYTES - 4096
#: Times that the room of nodes may be lost to others, after it was seen free, until a request is refused.
ATTEMPTS = 10
#: Seconds between looks at what changed on clusters.
KEEP_UP_EVERY = 0.1
#: Seconds without a request after which these looks take no more than a share of this worker's time, and the most seconds
#: between two then: what changes again and again is read once.
IDLE_AFTER, IDLE_SHARE, IDLE_EVERY = 10.0, 0.005, 10.0


class Deposed(Exception):
    """Another placement worker took over, or this one does not know what is durable. It must end."""


class Storage:
    """The state, and the only way to change it. `failed` is set when this worker must end."""

    def __init__(self, bus: Bus, follower: LedgerFollower, generation: int, capacity: Capacity) -> None:
        self.state = State()
        self.failed = asyncio.Event()
        self._bus = bus
        self._bucket: Bucket = bus.bucket(stores.PROVIDERS)
        self._follower = follower
        self._generation = generation
        self._capacity = capacity
        self._committer = Committer(bus, follower, capacity)
        self._steps = Steps(self._sync, capacity.refresh)
        self.state.reported.follow(capacity.fleet, follower.ledger)
        self._events = PlacementEvents(bus, follower, self.state)
        self._records = ProviderRecords(self._bucket, generation, self.state, self._events)
        self._last = _done()  # the operation before is durable
        self._last_record = _done()  # the operation before that wrote records is durable
        self._appending: set[str] = set()
        self._taking: dict[str, asyncio.Future[bool]] = {}  # by consumer, its change that takes nodes of clusters
        self._alone: asyncio.Future[bool] | None = None  # such a change that nothing else may cross
        self._changes: dict[str, Change] = {}  # by entry: what the state shows once the entry is in the log
        self._recorded = 0  # exchanges up to this commit are in the records
        self._open = False

    @property
    def seq(self) -> int:
        """The last commit of the decision log that is folded."""
        return self._follower.ledger.seq

    @property
    def conflicts(self) -> int:
        """Appends that came after another commit, and were checked and tried again."""
        return self._committer.conflicts

    # -- starting -------------------------------------------------------------------------------------------------

    async def open(self, url: str, unchecked: bool = False) -> None:
        """Ends what an older lease may still write, loads everything, and tells others its address."""
        if self._follower.ledger.allocations.generation:  # a log without any is not fenced: what comes late is noticed
            fence = Allocation(id=new_id(), generation=self._generation)
            if not isinstance(await self._committer.commit(fence), Committed):
                raise Deposed
        loaded: dict[str, Stored] = {}

        def learn(key: str, value: bytes | None, revision: int) -> None:
            if self._open:
                self._changed(key, value, revision)
            elif value is not None:
                self._records.learn(key, revision)
                loaded[key] = decode(value)
            else:
                loaded.pop(key, None)

        await self._bucket.mirror(learn)
        self._follower.on_fold.append(self._folded)
        self._follower.on_fold.append(lambda _, changes: self.state.reported.folded(changes))
        await self._read_fleet()
        self._follower.on_reload.append(lambda _: self._end())
        held = self._follower.ledger.allocations
        self.state.restore(held.consumers.values(), held.writes)
        self.state.apply(self._records.load(loaded))
        self._open = True
        await self._events.begin()
        await self._redo_exchanges()
        await self.commit(self._return_unknown)
        self._steps.asked_at = -math.inf  # nobody did yet
        await self._records.put_leader(url, unchecked)
        self._bus.spawn(self._keep_up())

    def _sync(self) -> None:
        """Shows nodes and parts of clusters as they are now."""
        self._capacity.refresh()
        self.state.sync()

    async def _read_fleet(self) -> None:
        self._sync()
        while self.state.reported.is_behind:
            await asyncio.sleep(0)
            self._sync()

    async def _keep_up(self) -> None:
        """Shows what changes on clusters also while nobody asks, so that requests need not wait for that."""
        loop, took = asyncio.get_running_loop(), 0.0
        while not self.failed.is_set():
            pause = KEEP_UP_EVERY
            if self.state.reported.is_behind:  # what was not read yet is read once
                pause = 0
            elif loop.time() - self._steps.asked_at > IDLE_AFTER:
                pause = min(max(pause, took / IDLE_SHARE), IDLE_EVERY)
            await asyncio.sleep(pause)
            began = time.thread_time()
            self._steps.sync()
            took = time.thread_time() - began

    async def _redo_exchanges(self) -> None:
        """Writes inventories that were exchanged together with allocations, and whose records were not written."""
        held = self._follower.ledger.allocations.exchanges
        for uuid, exchange in held.items():
            provider = self.state.providers.get(uuid)
            if provider is None or self._records.exchanged.get(uuid, 0) >= exchange.seq:
                continue
            grown = provider.generation + (2 if exchange.inventories else 1)
            new = msgspec.structs.replace(provider, inventories=exchange.inventories, generation=grown)
            change = Change({uuid: new})
            self.state.apply(change)
            self._records.exchanged[uuid] = exchange.seq
            told = recorded_changes(change, Before({uuid: provider}, {}), self.state, "")
            await self._records.put_providers(change.providers, told)
            for event in told.values():
                self._events.record(event)
            await self._events.publish(told.values(), None)
        self._recorded = max((exchange.seq for exchange in held.values()), default=0)

    def _return_unknown(self) -> Answer:
        """Gives back what consumers hold of providers that are not there, and makes the classes that providers name. Only
        operations that were never answered leave such behind: a crash or a backup came between their writes."""
        writes = self.state.without_unknown()
        classes = self.state.unknown_classes()
        if writes:
            log.warning("allocations of unknown providers are given back", consumers=len(writes))
        return Answer(change=Change(classes=classes, consumers=writes) if writes or classes else None)

    # -- changing -------------------------------------------------------------------------------------------------

    async def commit(self, operation: Operation, cause: str = "", alone: bool = False) -> Answer:
        """Runs an operation, makes its change durable, and returns its answer. Raises Deposed if that is not possible. `cause` is
        the id of the request. `alone`: nothing else is looked at or changed until the change is made."""
        if alone:
            return await self._commit_alone(operation, cause)
        lost = refused = 0
        while lost < ATTEMPTS:
            if self.failed.is_set():
                raise Deposed
            try:
                answer = await self._steps.run(operation)
            except Refused as why:
                # An allocation that is still being committed may be the reason, and may yet be given up.
                if why.status != 409 or not self._taking or refused == ATTEMPTS:
                    raise
                refused += 1
                await asyncio.wait(set(self._taking.values()))
                continue
            if answer.change is None:
                await _durable(self._last)  # what it has read
                return answer
            if (other := self._crossed_by(answer.change)) is not None:
                await asyncio.wait([other])
            elif not answer.change.takes_nodes:
                return await self._commit(answer, answer.change, cause)
            elif await self._take_nodes(answer.change, cause):
                return answer
            else:
                lost += 1  # others took the room meanwhile: there is an answer to that
        raise conflict("Others keep taking the room of these nodes.", CONCURRENT_UPDATE)

    async def _commit_alone(self, operation: Operation, cause: str) -> Answer:
        """Runs an operation whose change is made in steps."""
        for _ in range(ATTEMPTS):
            async with self._steps.alone():
                if self.failed.is_set():
                    raise Deposed
                while self._taking:  # what these change is in the log soon
                    await asyncio.wait(set(self._taking.values()))
                answer = await self._steps.in_steps(operation)
                change = answer.change
                if change is None:
                    await _durable(self._last)
                    return answer
                if not change.takes_nodes:
                    entry = self._entry(change, cause, self.state.gone())
                    replaced = Before.of(change, self.state)
                    await run_in_slices(self.state.apply_in_steps(change))
                    done = self._persisted(change, entry, replaced, cause)
                elif await self._take_nodes(change, cause, in_steps=True):
                    return answer
                else:
                    continue  # others took the room meanwhile: there is an answer to that
            await _durable(done)
            return answer
        raise conflict("Others keep taking the room of these nodes.", CONCURRENT_UPDATE)

    async def _commit(self, answer: Answer, change: Change, cause: str) -> Answer:
        """Makes a change durable that nothing can refuse any more."""
        entry = self._entry(change, cause, self.state.gone())
        replaced = Before.of(change, self.state)
        self.state.apply(change)
        await _durable(self._persisted(change, entry, replaced, cause))
        return answer

    def _persisted(
        self, change: Change, entry: Allocation | None, replaced: Before, cause: str
    ) -> asyncio.Future[None]:
        """Begins to make a change durable that the state has; `replaced` is what was there. Also if the client does not
        wait, it ends."""
        before = self._last
        told = recorded_changes(change, replaced, self.state, cause)
        done = self._last = asyncio.get_running_loop().create_future()
        wait_for = self._last_record
        if change.has_records:
            wait_for, self._last_record = before, done
        self._bus.spawn(self._persist(change, entry, told, wait_for, before, done))
        return done

    def _crossed_by(self, change: Change) -> asyncio.Future[bool] | asyncio.Future[None] | None:
        """Returns a change under way whose end the change must wait for, to be made anew then."""
        if self._alone is not None:
            return self._alone
        for write in change.consumers:
            if write.consumer.uuid in self._taking:
                return self._taking[write.consumer.uuid]
        if self._must_be_alone(change):
            return next(iter(self._taking.values()), None) or (None if self._last.done() else self._last)
        return None

    def _must_be_alone(self, change: Change) -> bool:
        """Returns whether a change takes nodes of clusters and changes made providers, or what is held of them."""
        if not change.takes_nodes:
            return False
        before = (self.state.consumers.get(write.consumer.uuid) for write in change.consumers)
        held = [c.allocations for c in before if c is not None] + [w.consumer.allocations for w in change.consumers]
        return change.has_records or any(p in self.state.providers for allocations in held for p in allocations)

    async def _take_nodes(self, change: Change, cause: str, *, in_steps: bool = False) -> bool:
        """Makes a change durable that decisions and other claims may refuse, by having taken the room. The state shows it
        once it is in the log; `in_steps`, of a change that is made alone. Returns whether it is."""
        entry = self._entry(change, cause, [])
        assert entry is not None
        self._capacity.hold_allocation(entry)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._taking.update(dict.fromkeys((write.consumer.uuid for write in change.consumers), done))
        if self._must_be_alone(change):
            self._alone = done
        self._bus.spawn(self._persist_taking(change, entry, self._last_record, self._last, done, in_steps))
        return await asyncio.shield(done)

    async def _persist_taking(
        self,
        change: Change,
        entry: Allocation,
        wait_for: asyncio.Future[None],
        before: asyncio.Future[None],
        done: asyncio.Future[bool],
        in_steps: bool,
    ) -> None:
        taken = False
        try:
            await _durable(wait_for)
            replaced = Before.of(change, self.state)
            async with self._steps.quiet() if change.has_trees else contextlib.nullcontext():
                if not in_steps:
                    self._changes[entry.id] = change
                seq = await self._append(entry)
                if in_steps and seq is not None:
                    await run_in_slices(self.state.apply_in_steps(change))
            if seq is not None:
                told = recorded_changes(change, replaced, self.state, entry.cause)
                await self._write_records(change, told, seq)
                await _durable(before)
                await self._events.publish(told.values(), entry)
                taken = True
        except BaseException as error:
            self._fail(done, error)
            raise
        finally:
            self._changes.pop(entry.id, None)
            for write in change.consumers:
                self._taking.pop(write.consumer.uuid, None)
            if self._alone is done:
                self._alone = None
        done.set_result(taken)

    def _entry(self, change: Change, cause: str, forgotten: list[str]) -> Allocation | None:
        """Returns the entry of the log for a change. Raises Refused if it is too large."""
        if not (change.consumers or change.exchanges):
            return None
        entry = Allocation(
            id=new_id(),
            generation=self._generation,
            cause=cause,
            writes=list(change.consumers),
            inventories=change.exchanges,
            recorded=self._recorded,
            forgotten=forgotten,
        )
        if len(encode_entry(entry)) > MAX_ENTRY:
            raise Refused(413, f"The allocations of one request may have {MAX_ENTRY} bytes.")
        self.state.forget_writes(entry.forgotten)
        return entry

    async def _persist(
        self,
        change: Change,
        entry: Allocation | None,
        told: dict[str, RecordedChange],
        wait_for: asyncio.Future[None],
        before: asyncio.Future[None],
        done: asyncio.Future[None],
    ) -> None:
        """Writes a change after those that it builds on: records in the order of operations, entries after the records."""
        try:
            await _durable(wait_for)
            await self._records.put_new_classes(change, told)
            seq = await self._append(entry) if entry is not None else 0
            if seq is None:
                raise Deposed  # nothing else can take what it changes
            await self._write_records(change, told, seq)
            await _durable(before)
            await self._events.publish(told.values(), entry)
        except BaseException as error:
            self._fail(done, error)
            raise
        done.set_result(None)

    def _fail(self, operation: asyncio.Future[Any], error: BaseException) -> None:
        """Ends this worker: the state has changes that are not durable."""
        if not self.failed.is_set() and not isinstance(error, Deposed | asyncio.CancelledError):
            log.error("a change could not be made durable", error=f"{type(error).__name__}: {error}")
        self.failed.set()
        operation.set_exception(Deposed())
        operation.exception()  # retrieved, if nobody waits

    async def _append(self, entry: Allocation) -> int | None:
        """Returns the sequence of the entry in the log; None if others took the room."""
        self._appending.add(entry.id)
        try:
            outcome = await self._committer.commit(entry)
        finally:
            self._appending.discard(entry.id)
        if isinstance(outcome, Dropped) and not outcome.code:
            return None
        if not isinstance(outcome, Committed):
            log.error("an allocation was refused by the decision log", reason=outcome.message)
            raise Deposed
        reached("placement.reshaped" if entry.inventories else "placement.committed")
        return outcome.seq

    async def _write_records(self, change: Change, told: dict[str, RecordedChange], seq: int) -> None:
        if not change.has_records:
            return
        self._records.exchanged.update(dict.fromkeys(change.exchanges, seq))
        await self._records.put(change, told)
        for event in told.values():
            self._events.record(event)
        reached("placement.recorded")
        if change.exchanges:
            self._recorded = max(self._recorded, seq)

    # -- what others wrote ----------------------------------------------------------------------------------------

    def _folded(self, commit: Commit, changes: Changes) -> None:
        """Ends this worker if another one's allocation took effect: the state does not have it."""
        self._events.folded(changes.seq, commit, changes.refused or ())
        for entry in commit.entries_of(Allocation):
            change = self._changes.pop(entry.id, None)
            if change is not None and entry.id not in changes.refused:
                self.state.apply(change)
        for entry in commit.entries_of(Allocation):
            if entry.id not in self._appending and entry.id not in (changes.refused or ()):
                log.warning("another placement worker wrote an allocation", generation=entry.generation)
                self._end()

    def _end(self) -> None:
        """Ends this worker. Another one, or itself after its restart, loads what is durable."""
        self.failed.set()
        self._bus.closed.set()

    def _changed(self, key: str, value: bytes | None, revision: int) -> None:
        """Looks at a change of the bucket. A worker that was stopped may have written it after it was deposed."""
        stored = decode(value) if value is not None else None
        if stored is not None and stored.generation > self._generation:
            self._end()
        elif self._records.is_late(key, stored, revision):
            log.warning("a record of a deposed worker is replaced", key=key)
            self._bus.spawn(self._restore(key))

    async def _restore(self, key: str) -> None:
        """Writes the record as this worker knows it, in the order of operations."""
        before, done = self._last_record, asyncio.get_running_loop().create_future()
        self._last_record = done
        try:
            await _durable(before)
            await self._records.restore(key)
        except BaseException as error:
            self._fail(done, error)
            raise
        done.set_result(None)


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


async def _durable(operation: asyncio.Future[None]) -> None:
    await asyncio.shield(operation)
