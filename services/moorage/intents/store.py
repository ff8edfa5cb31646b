"""Stores groups in their bucket, by one method that makes all changes. Any of this may run concurrently, in one process and
in many: a change is planned from what was read, and planned again if that is no longer current when it is written. The
cache makes most reads free; before it makes a request fail or write nothing, the bucket itself is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from moorage.bus import Bus, Conflict, Entry, NoAnswer, new_id, now_text, subjects
from moorage.bus.failpoints import reached
from moorage.classes import ClassCatalog, asked_classes
from moorage.mesh import stores
from moorage.model.groups import Decide, GroupRecord
from moorage.model.names import GroupName, group_tokens, project_of
from moorage.model.problems import Problem, Refused, changed_since, conflict, not_found
from moorage.telemetry import tracing

from .cache import CachedGroup, GroupCache
from .core import transitions, validate
from .core.transitions import Head, Transition
from .core.validate import Accepted
from .events import GroupEvents
from .old_revisions import OldRevisions
from .tombstones import Tombstone, Tombstones

_encode = msgspec.json.Encoder().encode
_records = msgspec.json.Decoder(GroupRecord)

ATTEMPTS = 20
#: Seconds within which a deletion by another store is known here. A request that creates a group and that was received earlier
#: than this before the deletion came before it, even if it is carried out later.
MIRRORED = 0.5
#: A larger record would not fit into one message to the mirrors of the bucket.
MAX_RECORD = 4 << 20


class Done(NamedTuple):
    """The group as it is after a change."""

    group: str
    revision: int
    state: str
    outcome: str
    warnings: tuple[Any, ...] = ()
    record: GroupRecord | None = None


#: Plans a change from the cached group, and from the stored entry if that was read.
Plan = Callable[["CachedGroup | None", "Entry | None"], Awaitable[Transition]]


def matches(expected: int | None, found: int | None) -> None:
    if expected is not None and (found is None or expected not in (0, found)):
        raise Refused(changed_since(expected, found))


def record_of(entry: Entry) -> GroupRecord:
    return _records.decode(entry.value)


def application_of(record: GroupRecord) -> Accepted:
    return validate.application(record.document, GroupName.parse(record.group))


def _stamped(change: Transition, record: GroupRecord) -> bytes:
    """Encodes the record with a new id for its event and the trace of the request."""
    record.told = [change.event, new_id()]
    record.resolved.traceparent = tracing.traceparent()
    value = _encode(record)
    if len(value) > MAX_RECORD:
        detail = f"the record of {record.group} has {len(value)} bytes; at most {MAX_RECORD} are stored"
        raise Refused(Problem(title="Too large", status=413, code="TooLarge", detail=detail))
    return value


def _unchanged(group: str, known: CachedGroup | None, change: Transition) -> Done:
    head = known.head if known is not None else None
    state, revision = (head.state, head.revision) if head is not None else ("", 0)
    return Done(group, revision, state, change.outcome, change.warnings)


def _carried_out(group: str, change: Transition) -> Done:
    record = change.record
    assert record is not None
    return Done(group, record.revision, record.state, change.outcome, change.warnings, record)


class GroupStore:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._groups = bus.bucket(stores.GROUPS)
        self._revisions = bus.bucket(stores.REVISIONS)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.catalog = ClassCatalog()
        self.cache = GroupCache(self._groups, bus.bucket(stores.DOCUMENTS))
        self.old_revisions = OldRevisions(self._revisions, bus.bucket(stores.STATUS))
        self.tombstones = Tombstones(bus, self._revisions, self.cache.known)
        self.events = GroupEvents(bus, self._groups, self._revisions, self.cache)

    async def start(self) -> None:
        await self._bus.bucket(stores.CLASSES).mirror(self.catalog.put)
        await self.tombstones.start()
        await self.cache.start()
        self.events.start()

    # Reading

    async def record(self, group: str) -> GroupRecord | None:
        entry = await self._groups.get(group_tokens(group))
        return None if entry is None else record_of(entry)

    async def older(self, group: str, revision: int) -> GroupRecord | None:
        entry = await self._revisions.get(f"{group_tokens(group)}.{revision}")
        return None if entry is None else record_of(entry)

    async def last_revision(self, group: str) -> int:
        """Returns the last revision of a deleted group of this name; 0 if there was none, or if it is forgotten."""
        return await self.tombstones.read(group_tokens(group))

    # Applications

    async def apply(
        self,
        application: Accepted,
        data: dict[str, Any],
        cause: str,
        if_match: int | None = None,
        *,
        again: bool = False,
    ) -> Done:
        """`if_match`: the record must be at this revision of the bucket; 0: it must exist. `again`: the request was sent
        before and may have been carried out."""
        group = str(application.group)
        received = asyncio.get_running_loop().time()

        async def plan(known: CachedGroup | None, _entry: Entry | None) -> Transition:
            if known is None and self.tombstones.learned_at(group_tokens(group)) > received + MIRRORED:
                # Its client has asked again meanwhile, and deleted what that made.
                raise Refused(conflict(f"group {group} was deleted while it was to be applied"))
            if not again:
                matches(if_match, None if known is None else known.at)
            last = await self.last_revision(group) if known is None and group_tokens(group) in self.tombstones else 0
            head = known.head if known is not None else None
            change = transitions.apply_document(head, application, data, self.cache.intents_of(group), now_text(), last)
            if again and change.record is not None:
                matches(if_match, None if known is None else known.at)
            return change

        return await self.change(group, plan, cause, whole=False)

    def check(self, application: Accepted, data: dict[str, Any]) -> Done:
        """Returns the result of applying the document, and stores nothing."""
        group = str(application.group)
        head = self.cache.head(group)
        change = transitions.apply_document(head, application, data, self.cache.intents_of(group), now_text())
        self.check_grants(change)
        if change.record is None:
            # Nothing would change. It is resolved all the same, so that the answer can tell where it would be placed.
            assert head is not None
            ended = Head(head.group, head.revision - 1, "Terminated", "", head.created)
            record = transitions.apply_document(
                ended, application, data, self.cache.intents_of(group), head.resolved.instantiated
            ).record
            return Done(group, head.revision, head.state, "unchanged", record=record)
        return Done(group, change.record.revision, "Instantiated", change.outcome, change.warnings, change.record)

    def check_grants(self, change: Transition) -> None:
        """Raises Refused if grants do not let the group use the resource classes that it asks for."""
        resolved = change.record.resolved if change.record is not None else None
        for app in resolved.apps if resolved is not None else ():
            for asked in asked_classes(shape.groups for shape in app.shapes):
                project = project_of(resolved.group) if resolved is not None else ""
                if (why := self.catalog.grants.problem(project, asked)) is not None:
                    raise Refused(Problem(title="Not allowed", status=403, code="ClassForbidden", detail=why))

    # Life cycle

    async def act(self, group: str, verb: str, cause: str) -> Done:
        if verb not in transitions.VERBS:
            known = ", ".join(transitions.VERBS)
            raise Refused(
                Problem(title="Unknown verb", status=400, code="UnknownVerb", detail=f"{verb!r} is not one of {known}")
            )
        if verb == "delete":
            return await self.delete_group(group, cause)

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            if entry is None:
                raise Refused(not_found(f"group {group}"))
            record = record_of(entry)
            if verb == "update":
                transitions.check_state(group, record.state, verb)
                return transitions.refresh_intents(record, application_of(record), self.cache.intents_of(group))
            try:
                return transitions.take_step(record, verb, now_text())
            except Refused:
                if verb == "terminate" and record.state == "Terminated":
                    # In case the first hint was lost.
                    await self.events.withdraw(group, record.revision, record.created, cause)
                raise

        return await self.change(group, plan, cause)

    async def leave(self, group: str, cause: str, if_match: int | None = None) -> Done:
        """Deletes a group that never ran at once; terminates any other, to be deleted once nothing of it runs. A second
        request meanwhile has the outcome `leaving`."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record = record_of(entry) if entry is not None else None
            if record is None or record.leaving != cause:  # otherwise this very request began it
                matches(if_match, None if entry is None else entry.revision)
            if record is None:
                raise Refused(not_found(f"group {group}"))
            if record.origin == transitions.V2:
                detail = f"{group} is described by resources; terminate it, then delete them under /v2, the group last"
                raise Refused(Problem(title="Made of resources", status=409, code="MadeOfResources", detail=detail))
            if record.state in ("Created", "Approved"):
                return Transition(None, "unused")
            return transitions.leave(record, now_text(), cause or new_id())

        done = await self.change(group, plan, cause)
        if done.outcome == "unused":
            return await self.delete_group(group, cause, if_match)
        return done

    async def delete_group(self, group: str, cause: str, if_match: int | None = None) -> Done:
        tokens = group_tokens(group)
        async with self.lock(tokens):
            for _ in range(ATTEMPTS):
                entry = await self._groups.get(tokens)
                if entry is None:
                    self.cache.forget(tokens)
                    raise Refused(not_found(f"group {group}"))
                matches(if_match, entry.revision)
                head = transitions.head_of(entry.value)
                transitions.check_state(group, head.state, "delete")
                # Every store that deletes this very record gives the event the same id.
                ident = f"{head.told[1]}-deleted" if len(head.told) == 2 else new_id()
                await self.tombstones.put(tokens, Tombstone(head.revision, ident, cause))
                try:
                    await self._groups.delete(tokens, entry.revision)
                except Conflict:
                    continue
                self.cache.forget(tokens)
                reached("intents.deleted")
                await self.events.publish(group, head.revision, "Terminated", "deleted", cause=cause, ident=ident)
                return Done(group, head.revision, head.state, "deleted")
        raise Refused(conflict(f"group {group} keeps changing; try again"))

    # Changing

    async def change(self, group: str, plan: Plan, cause: str, *, whole: bool = True) -> Done:
        """Writes what `plan` makes of the group. `whole`: it needs the stored entry; otherwise the first attempt is made
        from the cache."""
        tokens = group_tokens(group)
        is_fresh = whole  # whether this attempt reads the bucket
        unacknowledged: tuple[bytes, Transition] | None = None
        async with self.lock(tokens):
            for _ in range(ATTEMPTS):
                entry = await self._read(tokens) if is_fresh else None
                if unacknowledged is not None and entry is not None and entry.value == unacknowledged[0]:
                    return await self._finish(group, unacknowledged[1], entry.revision, entry.value, cause)
                if unacknowledged is not None and entry is None and await self._was_deleted(tokens, unacknowledged[1]):
                    return _carried_out(group, unacknowledged[1])
                known = self.cache.known.get(tokens)
                try:
                    change = await plan(known, entry)
                    if change.hint == "decide":
                        self.check_grants(change)
                except Refused:
                    if is_fresh:
                        raise
                    is_fresh = True
                    continue
                if change.record is None:
                    if is_fresh:
                        return _unchanged(group, known, change)
                    is_fresh = True
                    continue
                value = _stamped(change, change.record)
                if change.hint == "decide":
                    # Mergers ask controllers while the record is written; after `Stored` they may commit.
                    hint = Decide(id=change.record.told[1], cause=cause, record=change.record.resolved, ahead=True)
                    await self._bus.publish(subjects.GROUPS_DECIDE, hint)
                is_fresh = True
                try:
                    at = await self._write(tokens, value, known, change.record.revision)
                except Conflict:
                    continue
                except NoAnswer:
                    # The write may have happened: the next attempt reads before it writes again.
                    unacknowledged = (value, change)
                    continue
                return await self._finish(group, change, at, value, cause)
        raise Refused(conflict(f"group {group} keeps changing; try again"))

    async def _was_deleted(self, tokens: str, change: Transition) -> bool:
        """Returns whether a group had the revision of this change and was deleted: nothing may make it again."""
        return change.record is not None and await self.tombstones.read(tokens) >= change.record.revision

    async def _write(self, tokens: str, value: bytes, known: CachedGroup | None, revision: int) -> int:
        if known is None:
            if tokens in self.tombstones:
                return await self._groups.create(tokens, value)
            try:
                return await self._groups.update(tokens, value, 0)  # succeeds only if the key has no recent past
            except Conflict:
                if await self.tombstones.read(tokens):
                    raise
                return await self._groups.create(tokens, value)
        if revision > known.head.revision:
            await self._keep(tokens, known)
            reached("intents.kept")
        return await self._groups.update(tokens, value, known.at)

    async def _keep(self, tokens: str, known: CachedGroup) -> None:
        """Stores the record among the old revisions."""
        key = f"{tokens}.{known.head.revision}"
        record = self.cache.records.get(tokens, known.at)
        if record is not None:
            try:
                await self._revisions.update(key, record, 0)
                return
            except Conflict:
                pass  # it was stored before, and only what the bucket has now may replace it
        entry = await self._groups.get(tokens)
        if entry is None or entry.revision != known.at:
            raise Conflict(f"{tokens} changed")
        await self._revisions.put(key, entry.value)

    async def _finish(self, group: str, change: Transition, at: int, value: bytes, cause: str) -> Done:
        record = change.record
        assert record is not None
        self.cache.remember(group_tokens(group), CachedGroup(Head.of(record), at), value)
        reached("intents.stored")
        ident = record.told[1] if record.told else ""
        await self.events.publish(
            group,
            record.revision,
            record.state,
            change.event,
            hint=change.hint,
            cause=cause,
            ident=ident,
            created=record.created,
        )
        if self.old_revisions.is_due(record.revision):
            self._bus.spawn(self.old_revisions.trim(group))
        return _carried_out(group, change)

    async def _read(self, tokens: str) -> Entry | None:
        entry = await self._groups.get(tokens)
        if entry is None:
            self.cache.forget(tokens)
        else:
            self.cache.remember(tokens, CachedGroup(transitions.head_of(entry.value), entry.revision), entry.value)
        return entry

    def lock(self, key: str) -> asyncio.Lock:
        """Makes concurrent changes of one key within this worker wait for each other instead of conflicting."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
