"""Intents of their own: each is stored by itself, then the record of the group that it names follows. Two writes, so whoever
sees a record that did not follow mends it."""

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


class StandaloneIntents:
    def __init__(self, bus: Bus, store: GroupStore) -> None:
        self._bus, self._store, self._copies = bus, store, store.copies
        self._documents = bus.bucket(stores.DOCUMENTS)

    async def apply(
        self, given: AcceptedIntent, cause: str, if_match: int | None = None, *, again: bool = False
    ) -> Done:
        key = _key(given.document.kind, given.document.metadata.project, given.document.metadata.name)
        group = str(given.group)
        value = _encode(given.document)

        async def changed(entry: Entry | None) -> bytes:
            same = entry is not None and _data.decode(entry.value) == _data.decode(value)
            if not (same and again):
                matches(if_match, None if entry is None else entry.revision)
            if entry is not None and same:
                return entry.value
            # An intent that is refused together with the group's other documents is not stored at all.
            await self._planned_with(given)
            return value

        async with self._store.lock(key):
            try:
                before, after = await self._documents.modify(key, changed)
            except Conflict:
                raise Refused(conflict(f"{given.key} keeps changing; try again")) from None
            assert after is not None
            outcome = "created" if before is None else "unchanged" if before is after else "updated"
            self._copies.hold(key, given, after.revision)
        reached("intents.attached")
        done = await self._refresh(group, cause)
        if done is None:
            if outcome != "unchanged":
                event = "updated" if outcome == "updated" else "accepted"
                await self._store.events.publish(group, 0, "", event, cause=cause)
            return Done(group, 0, "", outcome, (_early(group),))
        return done._replace(outcome=outcome)

    def check(self, given: AcceptedIntent, record: GroupRecord | None) -> Done:
        group = str(given.group)
        if record is None or not record.document:
            return Done(group, 0, "", "unchanged" if self._copies.has(given) else "created", (_early(group),))
        change = transitions.reattached(record, application_of(record), self._copies.of_with(given))
        after = change.record or record
        return Done(group, after.revision, after.state, change.outcome, change.warnings, after)

    async def delete(self, kind: str, project: str, name: str, cause: str, if_match: int | None = None) -> Done:
        key = _key(kind, project, name)
        entry = await self._documents.get(key)
        if entry is None:
            raise Refused(not_found(f"{kind} {project}/{name}"))
        matches(if_match, entry.revision)
        given = validate.stored(_data.decode(entry.value))
        try:
            await self._documents.delete(key, entry.revision)
        except Conflict:
            raise Refused(conflict(f"{kind} {project}/{name} changed at this moment; try again")) from None
        self._copies.drop(key)
        group = str(given.group)
        done = await self._refresh(group, cause)
        return (done or Done(group, 0, "", ""))._replace(outcome="deleted")

    async def _planned_with(self, given: AcceptedIntent) -> None:
        """Raises Refused where the group cannot be resolved with this intent."""
        record = await self._store.record(str(given.group))
        if record is not None and record.document:
            transitions.reattached(record, application_of(record), self._copies.of_with(given))

    async def _refresh(self, group: str, cause: str) -> Done | None:
        """The group follows the intents that name it now. None: there is no such group yet."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            if entry is None:
                return Transition(None, "absent")
            record = record_of(entry)
            if not record.document:
                return Transition(None, "unchanged")  # only resources so far
            return transitions.reattached(record, application_of(record), self._copies.of(group))

        done = await self._store.change(group, plan, cause)
        return None if done.outcome == "absent" else done

    async def mend(self) -> None:
        """Groups whose record does not hold the intents that name them: a writer died between its two writes, or two
        crossed. Whoever sees it first mends it; the others then find nothing to do."""
        while True:
            await self._copies.woken.wait()
            await asyncio.sleep(0.2)  # mostly somebody is about to do it
            self._copies.woken.clear()
            stale, self._copies.stale = self._copies.stale, set()
            for group in stale:
                if not self._copies.lags(group):
                    continue
                self._copies.stale.discard(group)
                try:
                    await self._refresh(group, "")
                except Refused as refusal:
                    self._bus.count("refused_intents")
                    await self._bus.emit(
                        subjects.intent_event("refused", group), {"group": group, "problem": refusal.problem}
                    )
                except NoAnswer:
                    self._copies.wake(group)


def _early(group: str) -> Warn:
    message = f"there is nothing of {group} yet to place; the intent counts as soon as there is"
    return Warn(code="NoGroup", message=message)


def _key(kind: str, project: str, name: str) -> str:
    return ".".join(token(t) for t in (kind, project, name))
