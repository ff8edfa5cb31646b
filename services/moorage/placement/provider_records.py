"""Reads and writes the records of providers, additions to nodes and parts, and custom names, with the events of their changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from moorage.bus import Bucket, BusError, NoAnswer, until_done
from moorage.bus.fenced_bucket import FencedBucket
from moorage.collections import LruDict
from moorage.mesh import stores
from moorage.model.base import Model
from moorage.model.placement_events import RecordedChange
from moorage.web import LEADER

from .core.records import Addition, Change, Provider
from .core.state import State
from .events import DELETIONS, PlacementEvents

_PROVIDER, _ADDED, _CLASS, _TRAIT = "provider.", stores.ADDED_PREFIX, "class.", "trait."
#: The key of the events of the newest deletions.
_DELETIONS = "deletions"


class Stored(Model, kw_only=True):
    """A record of the bucket. `generation` is that of the writer's lease; `exchanged` the commit of the newest exchange of
    inventories in the provider's record; `told` the event of the record's last change; `addition` what a node or part of a cluster has besides; `created` the time of a custom name;
    `deletions` the events of providers and names that were deleted last; `url` the address of the active worker, which believes every
    caller if `unchecked`."""

    generation: int = 0
    provider: Provider | None = None
    exchanged: int = 0
    told: RecordedChange | None = None
    addition: Addition | None = None
    created: float = 0
    deletions: list[RecordedChange] = []
    url: str = ""
    unchecked: bool = False


decode = msgspec.json.Decoder(Stored).decode
_encode = msgspec.json.Encoder().encode


class ProviderRecords:
    """The records in the bucket, of which this worker is the only writer."""

    def __init__(self, bucket: Bucket, generation: int, state: State, events: PlacementEvents) -> None:
        self._bucket, self._generation = FencedBucket(bucket, generation), generation
        self._state, self._events = state, events
        self.exchanged: dict[str, int] = {}  # by provider: the newest exchange that its record has

    def learn(self, key: str, revision: int) -> None:
        """Learns the revision of a record that was read."""
        self._bucket.learn(key, revision)

    def load(self, records: Mapping[str, Stored]) -> Change:
        """Returns what records have, and learns the events of their changes."""
        found = Change({}, {}, {}, additions={})
        made = [stored.provider for stored in records.values() if stored.provider is not None]
        # As they were made: the bucket has them as they were written last.
        found.providers.update((one.uuid, one) for one in sorted(made, key=lambda one: one.created))
        for key, stored in records.items():
            kind, _, name = key.partition(".")
            if stored.told is not None:
                self._events.record(stored.told)
            if kind == "provider" and stored.provider is not None:
                if stored.exchanged:
                    self.exchanged[name] = stored.exchanged
            elif key == _DELETIONS:
                for told in stored.deletions:
                    self._events.record(told)
            elif kind == "added" and stored.addition is not None:
                found.additions[name] = stored.addition
            elif kind == "class":
                found.classes[name] = stored.created
            elif kind == "trait":
                found.traits[name] = stored.created
        return found

    async def put(self, change: Change, told: Mapping[str, RecordedChange]) -> None:
        """Writes the records of a change but for new classes."""
        await self._put_deletions(told.values())
        await self.put_providers(change.providers, told)
        for uuid, addition in change.additions.items():
            await self._put(f"{_ADDED}{uuid}", None if addition is None else self._added(addition, told.get(uuid)))
        for name, created in change.traits.items():
            await self._put_name(_TRAIT, name, created, told)
        for name, created in change.classes.items():
            if created is None:
                await self._put_name(_CLASS, name, None, told)

    async def put_new_classes(self, change: Change, told: Mapping[str, RecordedChange]) -> None:
        for name, created in change.classes.items():
            if created is not None:
                await self._put_name(_CLASS, name, created, told)

    async def put_providers(self, providers: Mapping[str, Provider | None], told: Mapping[str, RecordedChange]) -> None:
        """Writes records with the events of their changes."""
        for uuid, provider in providers.items():
            exchanged = self.exchanged.get(uuid, 0)
            value = None if provider is None else self._stored(provider, exchanged, told.get(uuid))
            await self._put(f"{_PROVIDER}{uuid}", value)

    async def put_leader(self, url: str, unchecked: bool) -> None:
        await self._put(LEADER, Stored(generation=self._generation, url=url, unchecked=unchecked))

    def is_late(self, key: str, stored: Stored | None, revision: int) -> bool:
        """Returns whether a worker that was deposed wrote a record."""
        if key == LEADER:
            return False
        if stored is None:
            return self._current(key) is not None
        return stored.generation < self._generation and self._bucket.differs(key, revision)

    async def restore(self, key: str) -> None:
        """Writes a record as the state has it."""
        await self._put(key, self._current(key))

    def _current(self, key: str) -> Stored | None:
        kind, _, name = key.partition(".")
        if key == _DELETIONS:
            return self._deletions(list(self._events.deletions.values()))
        if kind == "provider":
            provider = self._state.providers.get(name)
            if provider is None:
                return None
            return self._stored(provider, self.exchanged.get(name, 0), self._events.recorded(name))
        if kind == "added":
            addition = self._state.additions.get(name)
            return None if addition is None else self._added(addition, self._events.recorded(name))
        known = (self._state.classes if kind == "class" else self._state.traits).get(name)
        return None if known is None else self._stored(created=known, told=self._events.recorded(key))

    async def _put_deletions(self, told: Iterable[RecordedChange]) -> None:
        """Writes the events of deletions before the records go, as nothing is left of these."""
        deleted = [change for change in told if change.change == "deleted"]
        if deleted:
            newest = LruDict(DELETIONS, self._events.deletions.items())
            newest.update((change.key, change) for change in deleted)
            await self._put(_DELETIONS, self._deletions(list(newest.values())))

    async def _put_name(
        self, prefix: str, name: str, created: float | None, told: Mapping[str, RecordedChange]
    ) -> None:
        event = told.get(f"{prefix}{name}")
        await self._put(f"{prefix}{name}", None if created is None else self._stored(created=created, told=event))

    def _stored(
        self,
        provider: Provider | None = None,
        exchanged: int = 0,
        told: RecordedChange | None = None,
        created: float = 0,
    ) -> Stored:
        return Stored(generation=self._generation, provider=provider, exchanged=exchanged, told=told, created=created)

    def _added(self, addition: Addition, told: RecordedChange | None) -> Stored:
        return Stored(generation=self._generation, addition=addition, told=told)

    def _deletions(self, changes: list[RecordedChange]) -> Stored:
        return Stored(generation=self._generation, deletions=changes)

    async def _put(self, key: str, value: Stored | None) -> None:
        async for attempt in until_done((NoAnswer, BusError), first=0.05):
            with attempt:
                if value is None:
                    await self._bucket.delete(key)
                else:
                    await self._bucket.put(key, _encode(value))
