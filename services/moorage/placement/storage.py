"""Makes changes durable: providers and custom names are records of a bucket, allocations are entries of the decision log.

Operations see the changes of those before them at once, and each is answered once it and all before it are durable. After a
crash what is durable is what a prefix of the operations made. Only the holder of the lease writes; what a deposed one still
writes counts nothing.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from moorage.bus import Bucket, Bus, BusError, NoAnswer, new_id, until_done
from moorage.bus.failpoints import reached
from moorage.bus.fenced_bucket import FencedBucket
from moorage.collections import LruDict
from moorage.fleet import Fleet
from moorage.ledger import MAX_BYTES, Capacity, Changes, Committed, Committer, LedgerFollower, encode_entry
from moorage.mesh import stores
from moorage.model.base import Model
from moorage.model.claims import Allocation, Commit
from moorage.model.placement_events import RecordedChange
from moorage.web import LEADER

from .core.call import Answer
from .core.errors import Refused
from .core.records import Change, Provider
from .core.state import State
from .events import DELETIONS, PlacementEvents, provider_changes
from .steps import Operation, Steps

log = structlog.get_logger("placement")

#: Bytes of one entry of the decision log. The rest of a commit is its envelope.
MAX_ENTRY = MAX_BYTES - 4096
_PROVIDER, _CLASS, _TRAIT = "provider.", "class.", "trait."
#: The key of the events of the newest deletions.
_DELETIONS = "deletions"


class Deposed(Exception):
    """Another placement worker took over, or this one does not know what is durable. It must end."""


class Stored(Model, kw_only=True):
    """A record of the bucket. `generation` is that of the writer's lease; `exchanged` the commit of the newest exchange of
    inventories in the provider's record; `told` the event of the provider's last change; `created` the time of a custom name;
    `deletions` the events of providers that were deleted last; `url` the address of the active worker, which believes every
    caller if `unchecked`."""

    generation: int = 0
    provider: Provider | None = None
    exchanged: int = 0
    told: RecordedChange | None = None
    created: float = 0
    deletions: list[RecordedChange] = []
    url: str = ""
    unchecked: bool = False


_decode = msgspec.json.Decoder(Stored).decode
_encode = msgspec.json.Encoder().encode


class Storage:
    """The state, and the only way to change it. `failed` is set when this worker must end."""

    def __init__(self, bus: Bus, follower: LedgerFollower, generation: int) -> None:
        self.state = State()
        self.failed = asyncio.Event()
        self._bus = bus
        self._bucket: Bucket = bus.bucket(stores.PROVIDERS)
        self._records = FencedBucket(self._bucket, generation)
        self._follower = follower
        self._generation = generation
        # Allocations take nothing of the fleet's nodes here; the committer wants a capacity all the same.
        self._committer = Committer(bus, follower, Capacity(Fleet(), follower.ledger))
        self._steps = Steps()
        self._events = PlacementEvents(bus, follower, self.state)
        self._last = _done()  # the operation before is durable
        self._last_record = _done()  # the operation before that wrote records is durable
        self._exchanged: dict[str, int] = {}  # by provider: the newest exchange that its record has
        self._appending: set[str] = set()
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
                loaded[key] = _decode(value)
            else:
                loaded.pop(key, None)

        await self._bucket.mirror(learn)
        self._follower.on_fold.append(self._folded)
        self._follower.on_reload.append(lambda _: self._end())
        held = self._follower.ledger.allocations
        self.state.restore(held.consumers.values(), held.writes)
        self.state.apply(self._loaded(loaded))
        self._open = True
        await self._events.begin()
        await self._redo_exchanges()
        await self.commit(self._return_unknown)
        await self._put(LEADER, Stored(generation=self._generation, url=url, unchecked=unchecked))

    def _loaded(self, records: dict[str, Stored]) -> Change:
        found = Change({}, {}, {})
        for key, stored in records.items():
            kind, _, name = key.partition(".")
            if kind == "provider" and stored.provider is not None:
                found.providers[name] = stored.provider
                if stored.exchanged:
                    self._exchanged[name] = stored.exchanged
                if stored.told is not None:
                    self._events.record(name, stored.told)
            elif key == _DELETIONS:
                for told in stored.deletions:
                    self._events.record(told.data.provider, told)
            elif kind == "class":
                found.classes[name] = stored.created
            elif kind == "trait":
                found.traits[name] = stored.created
        return found

    async def _redo_exchanges(self) -> None:
        """Writes inventories that were exchanged together with allocations, and whose records were not written."""
        held = self._follower.ledger.allocations.exchanges
        for uuid, exchange in held.items():
            provider = self.state.providers.get(uuid)
            if provider is None or self._exchanged.get(uuid, 0) >= exchange.seq:
                continue
            grown = provider.generation + (2 if exchange.inventories else 1)
            new = msgspec.structs.replace(provider, inventories=exchange.inventories, generation=grown)
            change = Change({uuid: new})
            self.state.apply(change)
            self._exchanged[uuid] = exchange.seq
            told = provider_changes(change, {uuid: provider}, self.state, "")
            await self._put_providers(change.providers, told)
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

    async def commit(self, operation: Operation, cause: str = "") -> Answer:
        """Runs an operation, makes its change durable, and returns its answer. Raises Deposed if that is not possible. `cause` is
        the id of the request."""
        if self.failed.is_set():
            raise Deposed
        answer = await self._steps.run(operation)
        before = self._last
        if answer.change is None:
            await _durable(before)  # what it has read
            return answer
        entry = self._entry(answer.change, cause)
        replaced = {uuid: self.state.providers.get(uuid) for uuid in answer.change.providers}
        self.state.apply(answer.change)
        told = provider_changes(answer.change, replaced, self.state, cause)
        done = self._last = asyncio.get_running_loop().create_future()
        wait_for = self._last_record
        if answer.change.has_records:
            wait_for, self._last_record = before, done
        # Also if the client does not wait.
        self._bus.spawn(self._persist(answer.change, entry, told, wait_for, before, done))
        await _durable(done)
        return answer

    def _entry(self, change: Change, cause: str) -> Allocation | None:
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
            forgotten=self.state.forgettable(),
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
            for name, created in change.classes.items():
                if created is not None:
                    await self._put_name(_CLASS, name, created)
            seq = await self._append(entry) if entry is not None else 0
            await self._write_records(change, told, seq)
            await _durable(before)
            await self._events.publish(told.values(), entry)
        except BaseException as error:
            self._fail(done, error)
            raise
        done.set_result(None)

    def _fail(self, operation: asyncio.Future[None], error: BaseException) -> None:
        """Ends this worker: the state has changes that are not durable."""
        if not self.failed.is_set() and not isinstance(error, Deposed | asyncio.CancelledError):
            log.error("a change could not be made durable", error=f"{type(error).__name__}: {error}")
        self.failed.set()
        operation.set_exception(Deposed())
        operation.exception()  # retrieved, if nobody waits

    async def _append(self, entry: Allocation) -> int:
        self._appending.add(entry.id)
        try:
            outcome = await self._committer.commit(entry)
        finally:
            self._appending.discard(entry.id)
        if not isinstance(outcome, Committed):
            log.error("an allocation was refused by the decision log", reason=outcome.message)
            raise Deposed
        reached("placement.reshaped" if entry.inventories else "placement.committed")
        return outcome.seq

    async def _write_records(self, change: Change, told: dict[str, RecordedChange], seq: int) -> None:
        if not change.has_records:
            return
        self._exchanged.update(dict.fromkeys(change.exchanges, seq))
        await self._put_providers(change.providers, told)
        for name, created in change.traits.items():
            await self._put_name(_TRAIT, name, created)
        for name, created in change.classes.items():
            if created is None:
                await self._put_name(_CLASS, name, None)
        reached("placement.recorded")
        if change.exchanges:
            self._recorded = max(self._recorded, seq)

    async def _put_providers(self, providers: dict[str, Provider | None], told: dict[str, RecordedChange]) -> None:
        """Writes records with the events of their changes; those of deletions first, as nothing is left of their records."""
        deleted = [told[uuid] for uuid, provider in providers.items() if provider is None and uuid in told]
        if deleted:
            newest = LruDict(DELETIONS, self._events.deletions.items())
            newest.update((change.data.provider, change) for change in deleted)
            await self._put(_DELETIONS, self._deletions(list(newest.values())))
        for uuid, provider in providers.items():
            exchanged = self._exchanged.get(uuid, 0)
            value = None if provider is None else self._stored(provider, exchanged, told.get(uuid))
            await self._put(f"{_PROVIDER}{uuid}", value)
            if uuid in told:
                self._events.record(uuid, told[uuid])

    async def _put_name(self, prefix: str, name: str, created: float | None) -> None:
        await self._put(f"{prefix}{name}", None if created is None else self._stored(created=created))

    def _stored(
        self,
        provider: Provider | None = None,
        exchanged: int = 0,
        told: RecordedChange | None = None,
        created: float = 0,
    ) -> Stored:
        return Stored(generation=self._generation, provider=provider, exchanged=exchanged, told=told, created=created)

    def _deletions(self, changes: list[RecordedChange]) -> Stored:
        return Stored(generation=self._generation, deletions=changes)

    async def _put(self, key: str, value: Stored | None) -> None:
        async for attempt in until_done((NoAnswer, BusError), first=0.05):
            with attempt:
                if value is None:
                    await self._records.delete(key)
                else:
                    await self._records.put(key, _encode(value))

    # -- what others wrote ----------------------------------------------------------------------------------------

    def _folded(self, commit: Commit, changes: Changes) -> None:
        """Ends this worker if another one's allocation took effect: the state does not have it."""
        self._events.folded(changes.seq, commit, changes.refused or ())
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
        stored = _decode(value) if value is not None else None
        if stored is not None and stored.generation > self._generation:
            self._end()
        elif self._is_late(key, stored, revision):
            log.warning("a record of a deposed worker is replaced", key=key)
            self._bus.spawn(self._restore(key))

    def _is_late(self, key: str, stored: Stored | None, revision: int) -> bool:
        if key == LEADER:
            return False
        if stored is None:
            return self._current(key) is not None
        return stored.generation < self._generation and self._records.differs(key, revision)

    def _current(self, key: str) -> Stored | None:
        kind, _, name = key.partition(".")
        if key == _DELETIONS:
            return self._deletions(list(self._events.deletions.values()))
        if kind == "provider":
            provider = self.state.providers.get(name)
            if provider is None:
                return None
            return self._stored(provider, self._exchanged.get(name, 0), self._events.recorded(name))
        known = (self.state.classes if kind == "class" else self.state.traits).get(name)
        return None if known is None else self._stored(created=known)

    async def _restore(self, key: str) -> None:
        """Writes the record as this worker knows it, in the order of operations."""
        before, done = self._last_record, asyncio.get_running_loop().create_future()
        self._last_record = done
        try:
            await _durable(before)
            await self._put(key, self._current(key))
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
