"""Documents and groups in their buckets. Everything here may run several times at once, in one process and in many: a
change is made from what was read and written only if that still stands, else made again. The copies in memory make most
reads free; where nothing would be written, or something be refused, for what they say, the bucket itself is asked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import structlog

from moorage.bus import Bus, BusError, Conflict, NoAnswer, new_id, now_text, subjects
from moorage.bus.failpoints import reached
from moorage.bus.stores import Entry, Mirror
from moorage.model.groups import Decide, GroupRecord, Stored, Withdraw
from moorage.model.names import GroupName, group_tokens, token
from moorage.model.problems import Problem, Refused, changed_since, conflict, not_found
from moorage.telemetry import traces

from . import core, documents
from .core import Change, Head
from .documents import Accepted, AcceptedIntent

log = structlog.get_logger("intents")
_encode = msgspec.json.Encoder().encode
_records = msgspec.json.Decoder(GroupRecord)
_data = msgspec.json.Decoder(dict[str, Any])

ATTEMPTS = 20
#: Larger records would not travel in one message to those who mirror them.
MAX_RECORD = 4 << 20
#: Changes whose events are looked for after a death or a reconnect, and how long others may take to say them.
NEWEST, GRACE = 256, 1.0
#: Changes of the revisions' bucket among which those of deleted groups are looked for.
BACK = 4096


class Known(NamedTuple):
    head: Head
    at: int  # the bucket's revision of it


class Done(NamedTuple):
    """What stands after a change."""

    group: str
    revision: int
    state: str
    outcome: str
    warnings: tuple[Any, ...] = ()
    record: GroupRecord | None = None


Plan = Callable[["Known | None", "Entry | None"], Awaitable[Change]]


def _matches(expected: int | None, found: int | None) -> None:
    if expected is not None and (found is None or expected not in (0, found)):
        raise Refused(changed_since(expected, found))


class _Tombstone(msgspec.Struct, omit_defaults=True):
    """Stands before the group is gone: from which revision on it may come again, and how its end is told."""

    revision: int
    told: str = ""
    cause: str = ""


_tombstone = msgspec.json.Decoder(_Tombstone).decode


class Store:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._groups = bus.bucket("moorage-groups")
        self._revisions = bus.bucket("moorage-revisions")
        self._documents = bus.bucket("moorage-documents")
        self._known: dict[str, Known] = {}
        self._intents: dict[str, tuple[AcceptedIntent, int]] = {}
        self._attached: dict[str, dict[str, AcceptedIntent]] = defaultdict(dict)
        self._deleted: set[str] = set()  # keys that were seen to have been there before
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stale: set[str] = set()
        self._woken = asyncio.Event()
        self._mirrors: list[Mirror] = []

    async def start(self) -> None:
        self._mirrors.append(await self._documents.mirror(self._saw_document))
        self._mirrors.append(await self._groups.mirror(self._saw_group))
        self._bus.spawn(self._reattach())
        self._bus.spawn(self._retell())
        self._bus.on_reconnect(self._retell)

    def counts(self) -> dict[str, int]:
        return {"groups": len(self._known), "intents": len(self._intents)}

    # Applications

    async def apply(
        self, given: Accepted, data: dict[str, Any], cause: str, if_match: int | None = None, *, again: bool = False
    ) -> Done:
        """`if_match`: the group must still be at this number of the bucket; 0: it must be there. `again`: who was asked
        first may have done it."""
        group = str(given.group)

        async def plan(known: Known | None, _entry: Entry | None) -> Change:
            if not again:
                _matches(if_match, None if known is None else known.at)
            last = await self._last(group) if known is None and group_tokens(group) in self._deleted else 0
            head = known.head if known is not None else None
            change = core.applied(head, given, data, self._of(group), now_text(), last)
            if again and change.record is not None:
                _matches(if_match, None if known is None else known.at)
            return change

        return await self._change(group, plan, cause)

    def check(self, given: Accepted, data: dict[str, Any]) -> Done:
        """The same, nothing stored."""
        group = str(given.group)
        known = self._known.get(group_tokens(group))
        head = known.head if known is not None else None
        change = core.applied(head, given, data, self._of(group), now_text())
        if change.record is None:
            # What is there is what it would be: resolve it for whoever wants to know where it would go.
            assert head is not None
            ended = Head(head.group, head.revision - 1, "Terminated", "", head.created)
            record = core.applied(ended, given, data, self._of(group), head.resolved.instantiated).record
            return Done(group, head.revision, head.state, "unchanged", record=record)
        return Done(group, change.record.revision, "Instantiated", change.outcome, change.warnings, change.record)

    # Life cycle

    async def act(self, group: str, verb: str, cause: str) -> Done:
        if verb not in core.VERBS:
            known = ", ".join(core.VERBS)
            raise Refused(
                Problem(title="Unknown verb", status=400, code="UnknownVerb", detail=f"{verb!r} is none of {known}")
            )
        if verb == "delete":
            return await self.delete_group(group, cause)

        async def plan(_known: Known | None, entry: Entry | None) -> Change:
            if entry is None:
                raise Refused(not_found(f"group {group}"))
            record = _records.decode(entry.value)
            if verb == "update":
                core.check_state(group, record.state, verb)
                return core.reattached(record, _given(record), self._of(group))
            try:
                return core.acted(record, verb, now_text())
            except Refused:
                if verb == "terminate" and record.state == "Terminated":
                    await self._withdraw(group, record.revision, cause)  # in case the first word was lost
                raise

        return await self._change(group, plan, cause, whole=True)

    async def leave(self, group: str, cause: str, if_match: int | None = None) -> Done:
        """Forgotten at once where it never ran; else terminated and, once nothing of it runs, forgotten. `leaving` is
        what a second one gets meanwhile."""

        async def plan(known: Known | None, entry: Entry | None) -> Change:
            record = _records.decode(entry.value) if entry is not None else None
            if record is None or record.leaving != cause:  # else it was this very request that began it
                _matches(if_match, None if entry is None else entry.revision)
            if record is None:
                raise Refused(not_found(f"group {group}"))
            if record.origin == core.V2:
                detail = f"{group} is made of resources; terminate it and delete those, the group last, under /v2"
                raise Refused(Problem(title="Made of resources", status=409, code="MadeOfResources", detail=detail))
            if record.state in ("Created", "Approved"):
                return Change(None, "unused")
            return core.leaving(record, now_text(), cause or new_id())

        done = await self._change(group, plan, cause, whole=True)
        if done.outcome == "unused":
            return await self.delete_group(group, cause, if_match)
        return done

    async def delete_group(self, group: str, cause: str, if_match: int | None = None) -> Done:
        tokens = group_tokens(group)
        async with self._lock(tokens):
            for _ in range(ATTEMPTS):
                entry = await self._groups.get(tokens)
                if entry is None:
                    self._forget(tokens, 0)
                    raise Refused(not_found(f"group {group}"))
                _matches(if_match, entry.revision)
                head = core.head_of(entry.value)
                core.check_state(group, head.state, "delete")
                # The end of this very record has one name, whichever store writes it.
                ident = f"{head.told[1]}-deleted" if len(head.told) == 2 else new_id()
                await self._revisions.put(f"{tokens}.deleted", _encode(_Tombstone(head.revision, ident, cause)))
                try:
                    await self._groups.delete(tokens, entry.revision)
                except Conflict:
                    continue
                self._forget(tokens, 0)
                reached("intents.deleted")
                await self._tell(group, head.revision, "Terminated", "deleted", "", None, cause, ident)
                return Done(group, head.revision, head.state, "deleted")
        raise Refused(conflict(f"group {group} keeps changing; try again"))

    # Intents of their own

    async def apply_intent(
        self, given: AcceptedIntent, cause: str, if_match: int | None = None, *, again: bool = False
    ) -> Done:
        key = document_key(given.document.kind, given.document.metadata.project, given.document.metadata.name)
        group = str(given.group)
        async with self._lock(key):
            for _ in range(ATTEMPTS):
                entry = await self._documents.get(key)
                value = _encode(given.document)
                same = entry is not None and _data.decode(entry.value) == _data.decode(value)
                if not (same and again):
                    _matches(if_match, None if entry is None else entry.revision)
                if entry is not None and same:
                    outcome = "unchanged"
                    self._hold(key, given, entry.revision)
                    break
                # Refused together with the group's other documents means not stored at all.
                await self._planned_with(group, given)
                try:
                    at = await self._documents.update(key, value, entry.revision if entry else 0)
                except Conflict:
                    if entry is not None:
                        continue
                    try:
                        at = await self._documents.create(key, value)
                    except Conflict:
                        continue
                outcome = "updated" if entry is not None else "created"
                self._hold(key, given, at)
                break
            else:
                raise Refused(conflict(f"{given.key} keeps changing; try again"))
        reached("intents.attached")
        done = await self.refresh(group, cause)
        if done is None:
            if outcome != "unchanged":
                await self._tell(group, 0, "", "updated" if outcome == "updated" else "accepted", "", None, cause)
            return Done(group, 0, "", outcome)
        return done._replace(outcome=outcome)

    def check_intent(self, given: AcceptedIntent, record: GroupRecord | None) -> Done:
        group = str(given.group)
        if record is None or not record.document:
            return Done(group, 0, "", "unchanged" if self._has(given) else "created")
        own = {**self._attached.get(group, {}), given.key: given}
        change = core.reattached(record, _given(record), own.values())
        after = change.record or record
        return Done(group, after.revision, after.state, change.outcome, change.warnings, after)

    async def delete_intent(self, kind: str, project: str, name: str, cause: str, if_match: int | None = None) -> Done:
        key = document_key(kind, project, name)
        entry = await self._documents.get(key)
        if entry is None:
            raise Refused(not_found(f"{kind} {project}/{name}"))
        _matches(if_match, entry.revision)
        given = documents.stored(_data.decode(entry.value))
        try:
            await self._documents.delete(key, entry.revision)
        except Conflict:
            raise Refused(conflict(f"{kind} {project}/{name} changed at this moment; try again")) from None
        self._drop(key)
        group = str(given.group)
        done = await self.refresh(group, cause)
        return (done or Done(group, 0, "", ""))._replace(outcome="deleted")

    async def record(self, group: str) -> GroupRecord | None:
        entry = await self._groups.get(group_tokens(group))
        return None if entry is None else _records.decode(entry.value)

    async def refresh(self, group: str, cause: str) -> Done | None:
        """The group follows the intents that name it now. None: there is no such group yet."""

        async def plan(_known: Known | None, entry: Entry | None) -> Change:
            if entry is None:
                return Change(None, "absent")
            record = _records.decode(entry.value)
            if not record.document:
                return Change(None, "unchanged")  # only resources so far
            return core.reattached(record, _given(record), self._of(group))

        done = await self._change(group, plan, cause, whole=True)
        return None if done.outcome == "absent" else done

    # For those who describe groups by other means

    async def change(self, group: str, plan: Plan, cause: str) -> Done:
        """The plan gets the stored entry."""
        return await self._change(group, plan, cause, whole=True)

    def heads(self) -> Iterable[Head]:
        return (known.head for known in self._known.values())

    def head(self, group: str) -> Head | None:
        known = self._known.get(group_tokens(group))
        return None if known is None else known.head

    def at(self, head: Head) -> int:
        """The bucket's number of what it tells; one that never was where something newer is known."""
        known = self._known.get(group_tokens(head.group))
        return known.at if known is not None and known.head is head else -1

    def attached(self, group: str) -> list[AcceptedIntent]:
        return self._of(group)

    async def last(self, group: str) -> int:
        return await self._last(group)

    async def older(self, group: str, revision: int) -> GroupRecord | None:
        entry = await self._revisions.get(f"{group_tokens(group)}.{revision}")
        return None if entry is None else _records.decode(entry.value)

    async def withdraw(self, group: str, revision: int, cause: str) -> None:
        await self._withdraw(group, revision, cause)

    # The one way a group changes

    async def _change(self, group: str, plan: Plan, cause: str, *, whole: bool = False) -> Done:
        """`plan(known, entry)` says what to write; `whole`: it wants the stored entry, else memory is enough to begin."""
        tokens = group_tokens(group)
        sure = False  # whether `known` was read from the bucket just now
        attempted: tuple[bytes, Change] | None = None
        async with self._lock(tokens):
            for _ in range(ATTEMPTS):
                entry = None
                if whole or sure:
                    entry = await self._read(tokens)
                    sure = True
                    if attempted is not None and entry is not None and entry.value == attempted[0]:
                        return await self._finish(group, attempted[1], entry.value, entry.revision, cause)
                known = self._known.get(tokens)
                try:
                    change = await plan(known, entry)
                except Refused:
                    if sure:
                        raise
                    sure = True
                    continue
                if change.record is None:
                    if not sure:
                        sure = True
                        continue
                    head = known.head if known is not None else None
                    state, revision = (head.state, head.revision) if head is not None else ("", 0)
                    return Done(group, revision, state, change.outcome, change.warnings)
                change.record.told = [change.event, new_id()]
                change.record.resolved.traceparent = traces.traceparent()
                value = _encode(change.record)
                if len(value) > MAX_RECORD:
                    raise Refused(
                        Problem(
                            title="Too large",
                            status=413,
                            code="TooLarge",
                            detail=f"{group} would take {len(value)} bytes; at most {MAX_RECORD} are stored",
                        )
                    )
                if change.hint == "decide":
                    # Asking takes about as long as writing; what stands is said to those who ask, when it does.
                    hint = Decide(id=change.record.told[1], cause=cause, record=change.record.resolved, ahead=True)
                    await self._bus.publish(subjects.GROUPS_DECIDE, hint)
                try:
                    at = await self._write(tokens, value, known, change.record.revision)
                except Conflict:
                    sure = True
                    continue
                except NoAnswer:
                    # Whether it stands is seen by looking, never by writing again blindly.
                    sure, attempted = True, (value, change)
                    continue
                return await self._finish(group, change, value, at, cause)
        raise Refused(conflict(f"group {group} keeps changing; try again"))

    async def _write(self, tokens: str, value: bytes, known: Known | None, revision: int) -> int:
        if known is None:
            if tokens in self._deleted:
                return await self._groups.create(tokens, value)
            try:
                return await self._groups.update(tokens, value, 0)  # only where it never was
            except Conflict:
                self._deleted.add(tokens)
                raise
        if revision > known.head.revision:
            entry = await self._groups.get(tokens)
            if entry is None or entry.revision != known.at:
                raise Conflict(f"{tokens} changed")
            await self._revisions.put(f"{tokens}.{known.head.revision}", entry.value)
            reached("intents.kept")
        return await self._groups.update(tokens, value, known.at)

    async def _finish(self, group: str, change: Change, value: bytes, at: int, cause: str) -> Done:
        record = change.record
        assert record is not None
        self._remember(group_tokens(group), Known(Head.of(record), at))
        reached("intents.stored")
        ident = record.told[1] if record.told else ""
        await self._tell(group, record.revision, record.state, change.event, change.hint, record, cause, ident)
        return Done(group, record.revision, record.state, change.outcome, change.warnings, record)

    async def _tell(
        self,
        group: str,
        revision: int,
        state: str,
        event: str,
        hint: str,
        record: GroupRecord | None,
        cause: str,
        ident: str = "",
    ) -> None:
        """Hints, after what they are about is durable: mergers and others find it by themselves where one is lost. Event
        and hint share their id: what the hint sets off has the event for its cause, and a story has no gap."""
        once = bool(ident)
        ident = ident or new_id()
        if hint == "decide" and record is not None:
            await self._bus.publish(subjects.GROUPS_STORED, Stored(id=ident, cause=cause))
        elif hint == "withdraw":
            await self._withdraw(group, revision, ident)
        data = {"group": group, "revision": revision, "state": state}
        await self._bus.emit(subjects.intent_event(event, group), data, cause=cause, id=ident, once=once)

    async def _retell(self) -> None:
        """The events of the newest changes, where a store or the broker died before they were kept."""
        while True:
            try:
                # What went before this moment has had its time by the end of the pause.
                ended = await self._revisions.newest("*.*.*.*.deleted", BACK)
                await asyncio.sleep(GRACE)
                await self._retell_changes()
                await self._retell_ends(ended[-NEWEST:])
                return
            except (NoAnswer, BusError) as error:
                log.warning("events could not be compared with documents", error=str(error))
                await asyncio.sleep(GRACE)

    async def _retell_changes(self) -> None:
        events = self._bus.log("MOORAGE_EVENTS")
        newest = sorted(self._known.values(), key=lambda known: known.at)[-NEWEST:]
        for known in newest:
            head = known.head
            if len(head.told) != 2:
                continue
            event, ident = head.told
            written = partial(self._groups.time, group_tokens(head.group))
            if await events.lacks(subjects.intent_event(event, head.group), ident, written):
                log.warning("an event was missing", group=head.group, event_name=event)
                await self._tell(head.group, head.revision, head.state, event, "", None, "", ident)

    async def _retell_ends(self, tombstones: list[Entry]) -> None:
        events = self._bus.log("MOORAGE_EVENTS")
        for entry in tombstones:
            tokens, tombstone = entry.key.rpartition(".")[0], _tombstone(entry.value)
            group = str(GroupName.from_tokens(tokens))
            written = partial(self._revisions.time, entry.key)
            subject = subjects.intent_event("deleted", group)
            if not tombstone.told or not await events.lacks(subject, tombstone.told, written):
                continue
            if await self._groups.get(tokens) is not None:
                continue  # it was not deleted after all, or is there again
            log.warning("an event was missing", group=group, event_name="deleted")
            cause, ident = tombstone.cause, tombstone.told
            await self._tell(group, tombstone.revision, "Terminated", "deleted", "", None, cause, ident)

    async def _withdraw(self, group: str, revision: int, cause: str) -> None:
        hint = Withdraw(id=new_id(), cause=cause, group=group, revision=revision)
        await self._bus.publish(subjects.GROUPS_WITHDRAW, hint)

    async def _read(self, tokens: str) -> Entry | None:
        entry = await self._groups.get(tokens)
        if entry is None:
            self._forget(tokens, 0)
        else:
            self._remember(tokens, Known(core.head_of(entry.value), entry.revision))
        return entry

    async def _last(self, group: str) -> int:
        entry = await self._revisions.get(f"{group_tokens(group)}.deleted")
        return 0 if entry is None else _tombstone(entry.value).revision

    async def _planned_with(self, group: str, given: AcceptedIntent) -> None:
        """Raises Refused where the group cannot be resolved with this intent."""
        record = await self.record(group)
        if record is not None and record.document:
            own = {**self._attached.get(group, {}), given.key: given}
            core.reattached(record, _given(record), own.values())

    # Memory

    def _lock(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _of(self, group: str) -> list[AcceptedIntent]:
        own = self._attached.get(group)
        return list(own.values()) if own else []

    def _has(self, given: AcceptedIntent) -> bool:
        old = self._attached.get(str(given.group), {}).get(given.key)
        return old is not None and old.document == given.document

    def _remember(self, tokens: str, known: Known) -> None:
        old = self._known.get(tokens)
        if old is None or known.at >= old.at:
            self._known[tokens] = known

    def _forget(self, tokens: str, at: int) -> None:
        old = self._known.get(tokens)
        if old is not None and (at == 0 or at > old.at):
            del self._known[tokens]
        self._deleted.add(tokens)

    def _saw_group(self, tokens: str, value: bytes | None, at: int) -> None:
        if value is None:
            self._forget(tokens, at)
            return
        known = self._known.get(tokens)
        if known is None or known.at < at:
            self._remember(tokens, Known(core.head_of(value), at))
            self._wake(str(GroupName.from_tokens(tokens)))

    def _saw_document(self, key: str, value: bytes | None, at: int) -> None:
        if value is None:
            group = self._drop(key)
        else:
            held = self._intents.get(key)
            if held is not None and held[1] >= at:
                return
            group = self._hold(key, documents.stored(_data.decode(value)), at)
        self._wake(group)

    def _hold(self, key: str, given: AcceptedIntent, at: int) -> str:
        self._drop(key)
        group = str(given.group)
        self._intents[key] = (given, at)
        self._attached[group][given.key] = given
        return group

    def _drop(self, key: str) -> str:
        held = self._intents.pop(key, None)
        if held is None:
            return ""
        group = str(held[0].group)
        own = self._attached[group]
        own.pop(held[0].key, None)
        if not own:
            del self._attached[group]
        self._wake(group)
        return group

    def _wake(self, group: str) -> None:
        known = self._known.get(group_tokens(group)) if group else None
        if known is not None and known.head.attached != core.digest_of_raw(core.raw(self._of(group))):
            self._stale.add(group)
            self._woken.set()

    async def _reattach(self) -> None:
        """Groups whose record does not hold the intents that name it: a writer died between its two writes, or two
        crossed. Whoever sees it first mends it; the others then find nothing to do."""
        while True:
            await self._woken.wait()
            await asyncio.sleep(0.2)  # mostly somebody is about to do it
            self._woken.clear()
            stale, self._stale = self._stale, set()
            for group in stale:
                self._wake(group)
                if group not in self._stale:
                    continue
                self._stale.discard(group)
                try:
                    await self.refresh(group, "")
                except Refused as refusal:
                    self._bus.count("refused_intents")
                    await self._bus.emit(
                        subjects.intent_event("refused", group), {"group": group, "problem": refusal.problem}
                    )
                except NoAnswer:
                    self._stale.add(group)
                    self._woken.set()


def _given(record: GroupRecord) -> Accepted:
    return documents.application(record.document, GroupName.parse(record.group))


def document_key(kind: str, project: str, name: str) -> str:
    return ".".join(token(t) for t in (kind, project, name))
