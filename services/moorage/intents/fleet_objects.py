"""Stores resource classes and what belongs to them: objects of the whole fleet, each under a key of its own."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.bus import Bus, Conflict, Entry, new_id, now_text
from moorage.bus.failpoints import reached
from moorage.classes import ALGORITHM_KEY
from moorage.device_algorithms import algorithm_names
from moorage.mesh import stores
from moorage.model.problems import Refused, Violation, changed_since, conflict, invalid, not_found
from moorage.model.resource_classes import CLASS_GRANT, FLEET_KINDS, FleetObject, StoredMetadata, fleet_object_key

from .class_events import ClassEvents, trace_of
from .core import fleet_documents
from .core.fleet_documents import AcceptedObject

_decode = msgspec.json.Decoder(FleetObject).decode
_encode = msgspec.json.Encoder(order="deterministic").encode
#: The key that says that the first grant was made; it may be deleted.
_STARTED = "started"
FIRST_GRANT = "everyone"


class FleetObjects:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket(stores.CLASSES)
        self._events = ClassEvents(bus, self._bucket)

    async def start(self) -> None:
        await self._make_first_grant()
        await self._events.start()

    async def _make_first_grant(self) -> None:
        """Makes the grant of all classes to all projects, once for ever."""
        if await self._bucket.get(_STARTED) is not None:
            return
        spec = {"projects": ["*"], "classes": ["*"], "algorithms": ["*"]}
        meta = StoredMetadata(name=FIRST_GRANT, uid=new_id(), creation_timestamp=now_text())
        grant = FleetObject(kind=CLASS_GRANT.kind, metadata=meta, spec=spec)
        for key, value in ((grant.key, _encode(grant)), (_STARTED, b"1")):
            try:
                await self._bucket.create(key, value)
            except Conflict:
                pass  # another store makes it, too

    async def apply(
        self, found: AcceptedObject, cause: str, if_match: int | None = None, *, again: bool = False
    ) -> dict[str, Any]:
        """`again`: the request was sent before and may have been carried out."""
        given, uid, ident = found.object, new_id(), new_id()

        async def changed(entry: Entry | None) -> bytes:
            before = None if entry is None else _decode(entry.value)
            after = fleet_documents.merged(before, given, uid, now_text())
            if entry is not None and entry.value == _encode(after):
                if not again:
                    _matches(if_match, entry)
                return entry.value
            _matches(if_match, entry)
            after.told = ["created" if before is None else "changed", ident]
            return _encode(after)

        try:
            before, after = await self._bucket.modify(given.key, changed)
        except Conflict:
            raise Refused(conflict(f"{given.kind}/{given.metadata.name} keeps changing; try again")) from None
        assert after is not None
        outcome = "created" if before is None else "unchanged" if before is after else "updated"
        if outcome != "unchanged":
            reached("intents.class.stored")
            await self._events.tell("created" if before is None else "changed", trace_of(given, ident), cause)
        return self._reply(found, outcome, after.revision)

    async def check(self, found: AcceptedObject, *, unsaved: bool = False) -> dict[str, Any]:
        """Returns the result of applying the object, and stores nothing. `unsaved`: it does not matter what is stored."""
        entry = None if unsaved else await self._bucket.get(found.object.key)
        before = None if entry is None else _decode(entry.value)
        after = fleet_documents.merged(before, found.object, "", "")
        outcome = "created" if entry is None else "unchanged" if entry.value == _encode(after) else "updated"
        return self._reply(found, outcome, entry.revision if entry is not None else 0)

    async def delete(
        self, kind: str, name: str, cluster: str, cause: str, if_match: int | None = None
    ) -> dict[str, Any]:
        key = fleet_object_key(kind, name, cluster)
        entry = await self._bucket.get(key)
        if entry is None:
            raise Refused(not_found(f"{kind} {name}" + (f" of cluster {cluster}" if cluster else "")))
        _matches(if_match, entry)
        found, ident = _decode(entry.value), new_id()
        await self._events.deleting(key, found, ident)
        try:
            await self._bucket.delete(key, entry.revision)
        except Conflict:
            raise Refused(conflict(f"{kind} {name} changed meanwhile; try again")) from None
        reached("intents.class.deleted")
        await self._events.tell("deleted", trace_of(found, ident), cause)
        return {"name": name, "group": "", "revision": entry.revision, "outcome": "deleted"}

    async def set_algorithm(self, name: str) -> dict[str, Any]:
        """Sets the algorithm for needs whose class names none."""
        if name not in algorithm_names():
            message = f"no algorithm is called {name!r}; there are {', '.join(algorithm_names())}"
            raise Refused(invalid([Violation(path="algorithm", code="BadValue", message=message)]))
        await self._bucket.put(ALGORITHM_KEY, name.encode())
        return {"algorithm": name}

    @staticmethod
    def _reply(found: AcceptedObject, outcome: str, revision: int) -> dict[str, Any]:
        reply = {"name": found.object.metadata.name, "group": "", "revision": revision, "outcome": outcome}
        return {**reply, "warnings": list(found.warnings)} if found.warnings else reply


def is_fleet_kind(kind: object) -> bool:
    return isinstance(kind, str) and kind in FLEET_KINDS


def _matches(expected: int | None, entry: Entry | None) -> None:
    found = None if entry is None else entry.revision
    if expected is not None and (found is None or expected not in (0, found)):
        raise Refused(changed_since(expected, found))
