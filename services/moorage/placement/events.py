"""Publishes events of providers, custom names and allocations, and republishes those that were lost when the worker or the broker
died.

The newest event of a provider or name is stored in its record; those of the newest deletions are stored together, before the records
go. An allocation's event has the ids of its entry in the decision log and of its consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
import nats.errors
import structlog

from moorage.bus import Bus, BusError, new_id, now_text, subjects
from moorage.bus.outbox import Outbox, RecordedEvent
from moorage.collections import LruDict
from moorage.ledger import LOG, LedgerFollower, decode_commit
from moorage.model.allocations import ConsumerWrite
from moorage.model.claims import Allocation, Commit
from moorage.model.placement_events import AllocationChange, NameChange, ProviderChange, RecordedChange

from .core.records import Addition, Change, Provider
from .core.state import State

log = structlog.get_logger("placement")

#: Events that are compared with the kept ones: more than can be under way when a worker dies.
NEWEST = 256
#: Commits from before the start that are looked at.
BACK = 512
#: Deletions whose events are stored.
DELETIONS = 64
#: Events that are published at a time.
_SLICE = 50


class Published(NamedTuple):
    """An event to publish."""

    subject: str
    id: str
    cause: str
    data: ProviderChange | AllocationChange | NameChange


class Before(NamedTuple):
    """The state before a change: the records of providers, and of additions to nodes and parts."""

    providers: Mapping[str, Provider | None]
    additions: Mapping[str, Addition | None]

    @classmethod
    def of(cls, change: Change, state: State) -> Before:
        return cls(
            {uuid: state.providers.get(uuid) for uuid in change.providers},
            {uuid: state.additions.get(uuid) for uuid in change.additions},
        )


def recorded_changes(change: Change, before: Before, state: State, cause: str) -> dict[str, RecordedChange]:
    """Returns the events of the records that a change wrote, by their keys; the state has the change. A write that changes nothing
    has none."""
    found: dict[str, RecordedChange] = {}

    def add(kind: str, data: ProviderChange | None = None, name: NameChange | None = None) -> None:
        event = RecordedChange(id=new_id(), change=kind, cause=cause, time=now_text(), data=data, name=name)
        found[event.key] = event

    for uuid, new in change.providers.items():
        old = before.providers.get(uuid)
        shown = new or old
        if shown is None or (event := _kind(old, new)) is None:
            continue
        kind, fields = event
        generation = state.generation(uuid) if new is not None else shown.generation + state.writes(uuid)
        parent = shown.parent or ""
        add(kind, ProviderChange(provider=uuid, name=shown.name, parent=parent, generation=generation, changed=fields))
    for uuid, addition in change.additions.items():
        was = before.additions.get(uuid)
        added = addition or was
        fields = tuple(f for f in ("traits", "aggregates") if getattr(addition, f, ()) != getattr(was, f, ()))
        if added is not None and (fields or getattr(was, "generation", 0) != getattr(addition, "generation", 0)):
            generation = state.generation(uuid)
            add("changed", ProviderChange(provider=uuid, name=added.name, generation=generation, changed=fields))
    for kind, names in (("class", change.classes), ("trait", change.traits)):
        for name, created in names.items():
            add("deleted" if created is None else "created", name=NameChange(name=name, kind=kind))
    return found


def _kind(old: Provider | None, new: Provider | None) -> tuple[str, tuple[str, ...]] | None:
    if new is None:
        return "deleted", ()
    if old is None:
        return "created", ()
    fields = ("name", "parent", "inventories", "traits", "aggregates")
    changed = tuple(field for field in fields if getattr(old, field) != getattr(new, field))
    return ("changed", changed) if changed or old.generation != new.generation else None


def allocation_change(entry: Allocation, write: ConsumerWrite) -> Published:
    new = write.consumer
    change = "deleted" if not new.allocations else "created" if write.expected is None else "changed"
    data = AllocationChange(
        consumer=new.uuid,
        project=new.project,
        user=new.user,
        type=new.type or "",
        generation=new.generation,
        allocations=new.allocations,
    )
    subject = subjects.placement_event("allocation", change, new.uuid)
    return Published(subject, f"{entry.id}.{new.uuid}", entry.cause, data)


def recorded_event(change: RecordedChange) -> Published:
    if change.data is not None:
        subject = subjects.placement_event("provider", change.change, change.data.provider)
        return Published(subject, change.id, change.cause, change.data)
    assert change.name is not None
    subject = subjects.placement_event(change.name.kind, change.change, change.name.name)
    return Published(subject, change.id, change.cause, change.name)


class PlacementEvents:
    """The events of the newest changes. `deletions` has those of what was deleted last, to be stored."""

    def __init__(self, bus: Bus, follower: LedgerFollower, state: State) -> None:
        self.deletions = LruDict[str, RecordedChange](DELETIONS)
        self._bus, self._follower, self._state = bus, follower, state
        self._log = bus.log(LOG)
        self._start = follower.ledger.seq
        self._read_start = False
        self._changes = LruDict[str, RecordedChange](NEWEST)  # by key, those in records
        self._allocations = LruDict[str, tuple[int, Published]](NEWEST)  # by subject, with the commit
        self._outbox = Outbox(bus, self._recorded_providers, self._recorded_allocations)

    async def begin(self) -> None:
        """Publishes what the worker before did not, before another change replaces it."""
        await self._outbox.republish_missing()
        self._bus.on_reconnect(self._outbox.recheck)
        self._outbox.start()

    # -- what is recorded ---------------------------------------------------------------------------------------------

    def recorded(self, key: str) -> RecordedChange | None:
        """Returns the event of a record, unless many others were written since."""
        return self._changes.get(key)

    def record(self, change: RecordedChange) -> None:
        """Remembers the event that is stored with a record, or with the deletions."""
        (self.deletions if change.change == "deleted" else self._changes)[change.key] = change

    def folded(self, seq: int, commit: Commit, refused: Iterable[str] = ()) -> None:
        """Remembers the allocations of a commit."""
        for entry in commit.entries_of(Allocation):
            if entry.id not in refused:
                for write in entry.writes:
                    event = allocation_change(entry, write)
                    self._allocations[event.subject] = seq, event

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(self, changes: Iterable[RecordedChange], entry: Allocation | None) -> None:
        """Publishes the events of a change that is durable. What cannot be published now is published later."""
        events = [recorded_event(change) for change in changes]
        if entry is not None:
            events += [allocation_change(entry, write) for write in entry.writes]
        try:
            for number, event in enumerate(events, 1):
                await self._publish(event)
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
        except (nats.errors.Error, BusError, OSError) as error:
            log.warning("events are published later", error=f"{type(error).__name__}: {error}")
            self._outbox.check()

    async def _publish(self, event: Published) -> None:
        await self._bus.emit(event.subject, event.data, cause=event.cause, id=event.id, once=True)

    # -- comparing ----------------------------------------------------------------------------------------------------

    async def _recorded_providers(self) -> list[RecordedEvent]:
        changes = [change for change in self._changes.values() if self._is_there(change)]
        changes += [change for change in self.deletions.values() if not self._is_there(change)]
        return [
            RecordedEvent(
                recorded_event(change).subject,
                change.id,
                partial(_stored_at, change),
                partial(self._publish_if_newest, change),
            )
            for change in changes
        ]

    def _is_there(self, change: RecordedChange) -> bool:
        """Returns whether the record of an event is there."""
        if change.name is not None:
            return change.name.name in (self._state.classes if change.name.kind == "class" else self._state.traits)
        return change.key in self._state.providers or change.key in self._state.additions

    async def _publish_if_newest(self, change: RecordedChange) -> None:
        if (self.deletions if change.change == "deleted" else self._changes).get(change.key) is change:
            await self._publish(recorded_event(change))

    async def _recorded_allocations(self) -> list[RecordedEvent]:
        if not self._read_start:
            await self._remember_start()
        return [
            RecordedEvent(
                subject, event.id, partial(self._log.appended_at, seq), partial(self._publish_if_last, subject, event)
            )
            for subject, (seq, event) in self._allocations.items()
        ]

    async def _publish_if_last(self, subject: str, event: Published) -> None:
        found = self._allocations.get(subject)
        if found is not None and found[1] is event:
            await self._publish(event)

    async def _remember_start(self) -> None:
        """Reads the log's last commits up to the start. An entry counts if what it wrote is what stood then."""
        found: dict[int, bytes] = {}
        first = max(await self._log.first(), self._start - BACK + 1)
        if first <= self._start:
            await (await self._log.follow(first, found.__setitem__)).stop()
        later, self._allocations = self._allocations, LruDict(NEWEST)
        for seq, data in found.items():
            try:
                if seq <= self._start:
                    self.folded(seq, decode_commit(data))
            except msgspec.DecodeError:
                continue  # the ledger counts it
        held = self._follower.ledger.allocations
        for subject, (_, event) in list(self._allocations.items()):
            assert isinstance(event.data, AllocationChange)
            if (held.generation_of(event.data.consumer) or 0) < event.data.generation and event.data.allocations:
                del self._allocations[subject]  # the log refused it
        for subject, item in later.items():
            self._allocations[subject] = item
        self._read_start = True


async def _stored_at(change: RecordedChange) -> str | None:
    return change.time.rstrip("Z")
