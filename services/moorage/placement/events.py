"""Publishes events of providers and allocations, and republishes those that were lost when the worker or the broker died.

The newest event of a provider is stored in its record; those of the newest deletions are stored together, before the records
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
from moorage.model.placement_events import AllocationChange, ProviderChange, RecordedChange

from .core.records import Change, Provider
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
    data: ProviderChange | AllocationChange


def provider_changes(
    change: Change, before: Mapping[str, Provider | None], state: State, cause: str
) -> dict[str, RecordedChange]:
    """Returns the events of the providers that a change wrote; the state has the change, `before` what was there. A write that
    changes nothing has none."""
    found: dict[str, RecordedChange] = {}
    for uuid, new in change.providers.items():
        old = before.get(uuid)
        shown = new or old
        if shown is None or (event := _kind(old, new)) is None:
            continue
        kind, fields = event
        generation = state.generation(uuid) if new is not None else shown.generation + state.writes(uuid)
        data = ProviderChange(
            provider=uuid, name=shown.name, parent=shown.parent or "", generation=generation, changed=fields
        )
        found[uuid] = RecordedChange(id=new_id(), change=kind, cause=cause, time=now_text(), data=data)
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


def provider_event(change: RecordedChange) -> Published:
    subject = subjects.placement_event("provider", change.change, change.data.provider)
    return Published(subject, change.id, change.cause, change.data)


class PlacementEvents:
    """The events of the newest changes. `deletions` has those of providers that were deleted last, to be stored."""

    def __init__(self, bus: Bus, follower: LedgerFollower, state: State) -> None:
        self.deletions = LruDict[str, RecordedChange](DELETIONS)
        self._bus, self._follower, self._state = bus, follower, state
        self._log = bus.log(LOG)
        self._start = follower.ledger.seq
        self._read_start = False
        self._providers = LruDict[str, RecordedChange](NEWEST)  # by uuid, those in records
        self._allocations = LruDict[str, tuple[int, Published]](NEWEST)  # by subject, with the commit
        self._outbox = Outbox(bus, self._recorded_providers, self._recorded_allocations)

    async def begin(self) -> None:
        """Publishes what the worker before did not, before another change replaces it."""
        await self._outbox.republish_missing()
        self._bus.on_reconnect(self._outbox.recheck)
        self._outbox.start()

    # -- what is recorded ---------------------------------------------------------------------------------------------

    def recorded(self, uuid: str) -> RecordedChange | None:
        """Returns the event of a provider's record, unless many others were written since."""
        return self._providers.get(uuid)

    def record(self, uuid: str, change: RecordedChange) -> None:
        """Remembers the event that is stored with a record, or with the deletions."""
        (self.deletions if change.change == "deleted" else self._providers)[uuid] = change

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
        events = [provider_event(change) for change in changes]
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
        there = self._state.providers
        changes = [change for uuid, change in self._providers.items() if uuid in there]
        changes += [change for uuid, change in self.deletions.items() if uuid not in there]
        return [
            RecordedEvent(
                provider_event(change).subject,
                change.id,
                partial(_stored_at, change),
                partial(self._publish_if_newest, change),
            )
            for change in changes
        ]

    async def _publish_if_newest(self, change: RecordedChange) -> None:
        uuid = change.data.provider
        if (self.deletions if change.change == "deleted" else self._providers).get(uuid) is change:
            await self._publish(provider_event(change))

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
