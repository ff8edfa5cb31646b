"""Stores standalone intents. Each is stored by itself, then the record of the group that it names is updated: two writes,
so every store repairs records that were left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from moorage.bus import Bus, Conflict, Entry, NoAnswer, subjects
from moorage.bus.failpoints import reached
from moorage.mesh import stores
from moorage.model.groups import GroupRecord
from moorage.model.names import token
from moorage.model.problems import Refused, conflict, not_found
from moorage.model.reasons import Warn

from .cache import CachedGroup
from .core import transitions, validate
from .core.transitions import Transition
from .core.validate import AcceptedIntent
from .store import Done, GroupStore, application_of, matches, record_of

_encode = msgspec.json.Encoder().encode
_data = msgspec.json.Decoder(dict[str, Any])
#: Seconds before a record is repaired: mostly the store that wrote the intent is about to update it.
_REPAIR_AFTER = 0.2


class StandaloneIntents:
    def __init__(self, bus: Bus, store: GroupStore) -> None:
        self._bus, self._store, self._cache = bus, store, store.cache
        self._documents = bus.bucket(stores.DOCUMENTS)

    async def apply(
        self, intent: AcceptedIntent, cause: str, if_match: int | None = None, *, again: bool = False
    ) -> Done:
        """`again`: the request was sent before and may have been carried out."""
        group = str(intent.group)
        outcome = await self._write(intent, if_match, again=again)
        reached("intents.attached")
        done = await self._update_group(group, cause)
        if done is None:
            if outcome != "unchanged":
                event = "updated" if outcome == "updated" else "accepted"
                await self._store.events.publish(group, 0, "", event, cause=cause)
            return Done(group, 0, "", outcome, (_no_group(group),))
        return done._replace(outcome=outcome)

    async def _write(self, intent: AcceptedIntent, if_match: int | None, *, again: bool) -> str:
        """Returns the outcome: created, updated or unchanged."""
        key = _key(intent.document.kind, intent.document.metadata.project, intent.document.metadata.name)
        value = _encode(intent.document)

        async def changed(entry: Entry | None) -> bytes:
            is_same = entry is not None and _data.decode(entry.value) == _data.decode(value)
            if not (is_same and again):
                matches(if_match, None if entry is None else entry.revision)
            if entry is not None and is_same:
                return entry.value
            # An intent that contradicts the group's other documents is not stored at all.
            await self._check_group(intent)
            return value

        async with self._store.lock(key):
            try:
                before, after = await self._documents.modify(key, changed)
            except Conflict:
                raise Refused(conflict(f"{intent.key} keeps changing; try again")) from None
            assert after is not None
            self._cache.remember_intent(key, intent, after.revision)
        return "created" if before is None else "unchanged" if before is after else "updated"

    def check(self, intent: AcceptedIntent, record: GroupRecord | None) -> Done:
        """Returns the result of applying the intent, and stores nothing."""
        group = str(intent.group)
        if record is None or not record.document:
            outcome = "unchanged" if self._cache.has_intent(intent) else "created"
            return Done(group, 0, "", outcome, (_no_group(group),))
        change = transitions.refresh_intents(record, application_of(record), self._cache.intents_with(intent))
        after = change.record or record
        return Done(group, after.revision, after.state, change.outcome, change.warnings, after)

    async def delete(self, kind: str, project: str, name: str, cause: str, if_match: int | None = None) -> Done:
        key = _key(kind, project, name)
        entry = await self._documents.get(key)
        if entry is None:
            raise Refused(not_found(f"{kind} {project}/{name}"))
        matches(if_match, entry.revision)
        group = str(validate.read_stored(_data.decode(entry.value)).group)
        try:
            await self._documents.delete(key, entry.revision)
        except Conflict:
            raise Refused(conflict(f"{kind} {project}/{name} changed meanwhile; try again")) from None
        self._cache.forget_intent(key)
        done = await self._update_group(group, cause)
        return (done or Done(group, 0, "", ""))._replace(outcome="deleted")

    async def _check_group(self, intent: AcceptedIntent) -> None:
        """Raises Refused where the group cannot be resolved with this intent."""
        record = await self._store.record(str(intent.group))
        if record is not None and record.document:
            change = transitions.refresh_intents(record, application_of(record), self._cache.intents_with(intent))
            self._store.check_grants(change)

    async def _update_group(self, group: str, cause: str) -> Done | None:
        """Makes the group's record hold the intents that name it now. None: there is no such group yet."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            if entry is None:
                return Transition(None, "absent")
            record = record_of(entry)
            if not record.document:
                return Transition(None, "unchanged")  # described by resources, and not instantiated yet
            return transitions.refresh_intents(record, application_of(record), self._cache.intents_of(group))

        done = await self._store.change(group, plan, cause)
        return None if done.outcome == "absent" else done

    async def repair(self) -> None:
        """Updates groups whose record lacks intents that name them: a store died between its two writes, or two writes
        crossed. The first store to see it does it; the others then find nothing to do."""
        while True:
            await self._cache.stale_added.wait()
            await asyncio.sleep(_REPAIR_AFTER)
            self._cache.stale_added.clear()
            stale, self._cache.stale = self._cache.stale, set()
            for group in stale:
                if not self._cache.is_behind(group):
                    continue
                self._cache.stale.discard(group)
                try:
                    await self._update_group(group, "")
                except Refused as refusal:
                    self._bus.count("refused_intents")
                    event = {"group": group, "problem": refusal.problem}
                    await self._bus.emit(subjects.intent_event("refused", group), event)
                except NoAnswer:
                    self._cache.mark_if_behind(group)


def _no_group(group: str) -> Warn:
    message = f"group {group} has nothing to place yet; the intent takes effect once it has"
    return Warn(code="NoGroup", message=message)


def _key(kind: str, project: str, name: str) -> str:
    return ".".join(token(part) for part in (kind, project, name))
