"""Publishes the events of resource classes and what belongs to them, and republishes those that were lost when a store or the broker
died.

An object has the event of its last change and the event's id; a deleted one leaves a tombstone that has them. Mergers publish on
the same subjects how many devices classes have, so an event is looked for among all that are kept.
"""

from __future__ import annotations

from functools import partial

import msgspec

from moorage.bus import Bucket, Bus, Entry, subjects
from moorage.bus.outbox import Outbox, RecordedEvent
from moorage.mesh import stores
from moorage.model.base import Model
from moorage.model.resource_classes import FleetObject, is_fleet_object_key

#: Changes of the bucket whose events are compared with the kept ones.
BACK = 512
#: Begins the keys of tombstones, before the key of the object.
_DELETED = "deleted."
_object = msgspec.json.Decoder(FleetObject).decode


class Tombstone(Model, kw_only=True):
    """The trace of a deleted object, written before the deletion."""

    kind: str
    name: str
    cluster: str = ""
    uid: str = ""
    told: str = ""


class _EventId(msgspec.Struct):
    id: str = ""


_event_id = msgspec.json.Decoder(_EventId).decode
_tombstone = msgspec.json.Decoder(Tombstone).decode


class ClassEvents:
    def __init__(self, bus: Bus, bucket: Bucket) -> None:
        self._bus, self._bucket = bus, bucket
        self._outbox = Outbox(bus, self._recorded)

    async def start(self) -> None:
        await self._forget_old()
        self._bus.on_reconnect(self._outbox.recheck)
        self._outbox.start()
        self._outbox.check()

    async def deleting(self, key: str, found: FleetObject, ident: str) -> None:
        """Stores which event tells of a deletion that follows."""
        await self._bucket.put(_DELETED + key, msgspec.json.encode(trace_of(found, ident)))

    async def tell(self, change: str, found: Tombstone, cause: str = "") -> None:
        data = {"kind": found.kind, "name": found.name, "cluster": found.cluster, "uid": found.uid}
        subject = subjects.class_event(change, found.name)
        await self._bus.emit(subject, data, cause=cause, id=found.told, once=True)

    async def _recorded(self) -> list[RecordedEvent]:
        """Returns the events of the newest changes that are not kept."""
        entries = await self._bucket.newest(">", BACK)
        told = [(entry, *change) for entry in entries if (change := _change(entry)) is not None]
        kept = await self._kept() if told else set()
        return [
            RecordedEvent(
                subjects.class_event(change, found.name),
                found.told,
                partial(self._bucket.written_at, entry.key),
                partial(self._republish, entry, change, found),
            )
            for entry, change, found in told
            if found.told not in kept
        ]

    async def _kept(self) -> set[str]:
        log = self._bus.log(stores.EVENTS)
        found: set[str] = set()
        reader = await log.follow(
            await log.first(), lambda _, data: found.add(_event_id(data).id), keys=subjects.CLASS_EVENTS
        )
        await reader.stop()
        return found

    async def _republish(self, entry: Entry, change: str, found: Tombstone) -> None:
        now = await self._bucket.get(entry.key.removeprefix(_DELETED))
        if change == "deleted":
            is_true = now is None or _object(now.value).metadata.uid != found.uid  # else it was not carried out
        else:
            is_true = now is not None and now.revision == entry.revision
        if is_true:
            await self.tell(change, found)

    async def _forget_old(self) -> None:
        """Removes the tombstones whose events would not be kept any more."""
        kept_since = await self._bus.log(stores.EVENTS).kept_since()
        for entry in await self._bucket.newest(f"{_DELETED}>", await self._bucket.last()) if kept_since else ():
            written = await self._bucket.written_at(entry.key)
            if written is not None and kept_since is not None and written < kept_since:
                await self._bucket.delete(entry.key)


def _change(entry: Entry) -> tuple[str, Tombstone] | None:
    """Returns the last change of an object, or its deletion, with what is told of it."""
    if entry.key.startswith(_DELETED):
        return "deleted", _tombstone(entry.value)
    if not is_fleet_object_key(entry.key):
        return None
    found = _object(entry.value)
    if len(found.told) != 2:
        return None
    change, ident = found.told
    return change, trace_of(found, ident)


def trace_of(found: FleetObject, ident: str) -> Tombstone:
    meta = found.metadata
    return Tombstone(kind=found.kind, name=meta.name, cluster=meta.cluster, uid=meta.uid, told=ident)
