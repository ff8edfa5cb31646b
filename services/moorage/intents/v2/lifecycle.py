"""The life of groups: those that resources describe are composed when they begin and at each update; what is only a word
about a group's state is the same for all. A group that takes another's place ends it once it runs itself."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec
import structlog

from moorage.bus import MAX_PAYLOAD, Bus, NoAnswer, now_text
from moorage.bus.kv import Entry
from moorage.mesh import stores
from moorage.model.desired import GroupStatus
from moorage.model.groups import Action, GroupRecord
from moorage.model.names import GroupName, group_tokens
from moorage.model.problems import Problem, Refused, Violation, invalid, not_found, wrong_state
from moorage.model.reasons import Warn
from moorage.model.v2_resources import Changed, Path, group_name, group_path

from ..cache import CachedGroup
from ..core import transitions, v2_compose, validate
from ..core.transitions import Transition
from ..core.validate import Accepted
from ..store import Done, GroupStore
from . import charts
from .resource_store import ResourceStore

log = structlog.get_logger("intents")
_records = msgspec.json.Decoder(GroupRecord)
_statuses = msgspec.json.Decoder(GroupStatus)

VERBS = (
    "approve",
    "instantiate",
    "update",
    "redecide",
    "migrate",
    "rollback",
    "stop",
    "terminate",
    "delete",
    "leave",  # terminate, and delete once that is done
)
MAX_ACTIONS = 50
#: A group that replaces another is looked at again after so long, whatever was heard.
SWEEP = 5.0
#: What a verb leads to: where it has led there already, saying it again changes nothing.
_REACHED = {
    "approve": ("Approved",),
    "instantiate": ("Instantiated",),
    "stop": ("InstantiateStopped", "TerminateStopped"),
    "terminate": ("Terminated",),
}


class Order(NamedTuple):
    """`repeat`: a step that was taken already is no mistake. `target`: the group that takes this one's place."""

    group: str
    verb: str
    cause: str = ""
    repeat: bool = False
    target: str = ""
    revision: int = 0
    if_match: int | None = None


class Lifecycle:
    def __init__(self, bus: Bus, store: GroupStore) -> None:
        self._bus, self._store, self._copies = bus, store, store.copies
        self.resources = ResourceStore(bus, self._stands)
        self._statuses = bus.bucket(stores.STATUS)
        self._look = asyncio.Event()

    async def start(self) -> None:
        await self.resources.start()
        for phase in ("running", "terminated"):
            await self._bus.subscribe(f"moorage.events.decisions.{phase}.>", self._heard, max_bytes=MAX_PAYLOAD)
        self._bus.spawn(self._finish())

    # --- groups and resources ----------------------------------------------------------------------------------------

    def _stands(self, path: Path) -> bool:
        """A project, composite app or group that an Application made."""
        if len(path) == 7 and path[5] == "deployment-intent-groups":
            head = self._copies.head(group_name(path))
            return head is not None and head.origin != transitions.V2
        if path[0] != "projects" or len(path) not in (2, 5):
            return False
        wanted = path[1::2] if len(path) == 2 else (path[1], path[3], path[4])
        return any(
            tuple(head.group.split("/")[: len(wanted)]) == wanted
            for head in self._copies.heads()
            if head.origin != transitions.V2
        )

    def described(self, group: str) -> bool:
        return self.resources.tree.get(group_path(group)) is not None

    async def open(self, group: str, cause: str) -> Done:
        """The record of a group whose resource was just made."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            if entry is not None:
                return Transition(None, "unchanged")
            return _stamped(transitions.created(group, now_text(), await self._store.last(group)), [])

        return await self._store.change(group, plan, cause)

    async def close(self, group: str, cause: str) -> None:
        """Forgets the record; refused while the group lives."""
        try:
            await self._store.delete_group(group, cause)
        except Refused as refusal:
            if refusal.problem.status != 404:
                raise

    # --- steps -------------------------------------------------------------------------------------------------------

    async def act(self, order: Order) -> Done:
        if order.verb not in VERBS:
            detail = f"{order.verb!r} is none of {', '.join(VERBS)}"
            raise Refused(Problem(title="Unknown verb", status=400, code="UnknownVerb", detail=detail))
        if not self.described(order.group) and self._copies.head(order.group) is None:
            await self.resources.caught_up()  # another store may just have made it
        if order.verb == "leave":
            return await self._leave(order)
        if order.verb == "migrate":
            return await self._migrate(order)
        if order.verb == "rollback":
            return await self._rollback(order)
        if self.described(order.group) or self._missed(order.group):
            if order.verb == "delete":
                return await self._delete(order)
            if order.verb in ("instantiate", "update"):
                return await self._begin(order)
            return await self._step(order)
        if order.repeat or order.verb == "stop":
            return await self._step(order)
        return await self._store.act(order.group, order.verb, order.cause)

    def _missed(self, group: str) -> bool:
        head = self._copies.head(group)
        return head is not None and head.origin == transitions.V2

    async def _step(self, order: Order) -> Done:
        """What needs only the record."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record, fresh = await self._record(order.group, entry)
            if order.repeat and record.state in _REACHED.get(order.verb, ()):
                if order.verb == "terminate":
                    await self._store.events.withdraw(order.group, record.revision, order.cause)
                return Transition(fresh, "unchanged")
            if order.verb == "update":
                transitions.check_state(order.group, record.state, "update")
                given = validate.application(record.document, GroupName.parse(record.group))
                return transitions.reattached(record, given, self._copies.of(order.group))
            change = transitions.acted(record, order.verb, now_text())
            if order.verb in ("stop", "terminate") and change.record is not None:
                change.record.succeeds = ""
            return _stamped(change, record.actions)

        return await self._store.change(order.group, plan, order.cause)

    async def _record(self, group: str, entry: Entry | None) -> tuple[GroupRecord, GroupRecord | None]:
        """The stored record; of a group whose record is still to be made, one that is (second, too)."""
        if entry is not None:
            return _records.decode(entry.value), None
        if not self.described(group):
            raise Refused(not_found(f"group {group}"))
        record = transitions.created(group, now_text(), await self._store.last(group)).record
        assert record is not None
        return record, record

    async def _begin(self, order: Order, succeeds: str = "", warnings: tuple[Warn, ...] = ()) -> Done:
        """Instantiate or update: the resources as they are now become the group's document."""
        group = GroupName.parse(order.group)
        now = await self._store.record(order.group)
        state = now.state if now is not None else "Created"
        if order.verb == "instantiate" and order.repeat and state == "Instantiated":
            return await self._step(order)
        transitions.check_state(order.group, state, order.verb)
        await self.resources.caught_up()
        if not self.described(order.group):
            raise Refused(not_found(f"group {order.group}"))
        composed = await v2_compose.compose(self.resources.tree, group, charts.render)
        given = _accepted(composed.document, group)

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record, _ = await self._record(order.group, entry)
            if order.repeat and order.verb == "instantiate" and record.state == "Instantiated":
                return Transition(None, "unchanged")  # somebody did the same at this moment
            transitions.check_state(order.group, record.state, order.verb)
            own = self._copies.of(order.group)
            head = transitions.Head.of(record)
            change = transitions.applied(head, given, composed.document, own, now_text())
            if change.record is not None:
                change.record.succeeds = succeeds
                outcome = "instantiated" if change.event == "instantiated" else change.outcome
                change = change._replace(outcome=outcome, warnings=(*composed.warnings, *warnings, *change.warnings))
            return _stamped(change, record.actions)

        return await self._store.change(order.group, plan, order.cause)

    async def _rollback(self, order: Order) -> Done:
        """An older revision's document and manifests, as a new revision: decided anew, so capacity is checked anew."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record, _ = await self._record(order.group, entry)
            if record.state not in ("Instantiated", "InstantiateStopped"):
                raise Refused(
                    wrong_state(f"{order.group} is {record.state}; rollback needs Instantiated or InstantiateStopped")
                )
            wanted = order.revision or record.revision - 1
            if wanted == record.revision:
                return Transition(None, "unchanged")
            older = await self._store.older(order.group, wanted)
            if older is None or not older.document:
                raise Refused(not_found(f"revision {wanted} of {order.group}"))
            given = validate.application(older.document, GroupName.parse(order.group))
            # What it was, whatever it is compared with: equal documents are a new revision, too.
            head = msgspec.structs.replace(transitions.Head.of(record), digest="")
            own = self._copies.of(order.group)
            change = transitions.applied(head, given, older.document, own, now_text())
            return _stamped(change._replace(event="updated"), record.actions)

        return await self._store.change(order.group, plan, order.cause)

    async def _delete(self, order: Order) -> Done:
        await self.delete([group_path(order.group)], order.cause)
        return Done(order.group, 0, "", "deleted")

    async def delete(self, paths: list[Path], cause: str, if_match: int | None = None) -> Changed:
        """Groups with their records, all or none."""
        await self.resources.caught_up()
        for path in paths:
            self.resources.may_go(path, if_match)
            record = await self._store.record(group_name(path))
            if record is not None:
                transitions.check_state(record.group, record.state, "delete")
        for path in paths:
            await self.close(group_name(path), cause)
        return await self.resources.remove(paths)

    async def _leave(self, order: Order) -> Done:
        done = await self._store.leave(order.group, order.cause, order.if_match)
        if done.outcome == "leaving" and (head := self._copies.head(order.group)) is not None:
            return await self._gone(head) or done
        return done

    async def _gone(self, head: transitions.Head) -> Done | None:
        """Forgets what is to leave if nothing of it runs, as the patcher says it. None: not yet."""
        at = self._copies.at(head)
        status = await self._status(head.group)
        if status is None or status.phase != "Terminated" or status.revision != head.revision:
            return None
        try:
            return await self._store.delete_group(head.group, head.leaving, at)
        except Refused as refusal:  # gone already, or somebody wants it again
            if refusal.problem.status in (404, 409, 412):
                return None
            raise

    async def _status(self, group: str) -> GroupStatus | None:
        entry = await self._statuses.get(group_tokens(group))
        return _statuses.decode(entry.value) if entry is not None else None

    # --- one group in place of another -------------------------------------------------------------------------------

    async def _migrate(self, order: Order) -> Done:
        """The target begins now; the group ends when the target runs: until then both have their room."""
        if not order.target:
            message = "is required: the group that takes this one's place"
            raise Refused(invalid([Violation(path="spec.targetDigName", code="Required", message=message)]))
        head, target = await self._store.record(order.group), await self._store.record(order.target)
        if head is None:
            raise Refused(not_found(f"group {order.group}"))
        if order.target == order.group:
            message = "is the group itself"
            raise Refused(invalid([Violation(path="spec.targetDigName", code="Contradiction", message=message)]))
        if target is None and not self.described(order.target):
            raise Refused(not_found(f"group {order.target}"))
        if target is not None and target.state == "Instantiated" and target.succeeds == order.group and order.repeat:
            return Done(order.target, target.revision, target.state, "unchanged")
        if head.state not in ("Instantiated", "InstantiateStopped"):
            raise Refused(
                wrong_state(f"{order.group} is {head.state}; migrate needs Instantiated or InstantiateStopped")
            )
        state = target.state if target is not None else "Created"
        if state != "Approved":
            raise Refused(wrong_state(f"{order.target} is {state}; migrate needs a target that is Approved"))
        begin = Order(order.target, "instantiate", order.cause)
        if self.described(order.target):
            return await self._begin(begin, succeeds=order.group)

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record, _ = await self._record(order.target, entry)
            change = transitions.acted(record, "instantiate", now_text())
            if change.record is not None:
                change.record.succeeds = order.group
            return change

        return await self._store.change(order.target, plan, order.cause)

    def _heard(self, _subject: str, _data: bytes) -> None:
        self._look.set()

    async def _finish(self) -> None:
        """Ends the groups whose successors run, and forgets those that leave. Any store may do it, and a second time
        does nothing: what was begun is ended whoever is no more."""
        while True:
            try:
                async with asyncio.timeout(SWEEP):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            for head in [h for h in self._copies.heads() if h.leaving or (h.succeeds and h.state == "Instantiated")]:
                try:
                    if head.leaving:
                        await self._gone(head)
                        continue
                    status = await self._status(head.group)
                    if status is None or status.phase != "Running" or status.revision < head.revision:
                        continue
                    await self._end(head.group, head.succeeds)
                except NoAnswer:
                    continue
                except Refused as refusal:
                    log.warning("what was begun is tried again", group=head.group, problem=refusal.problem.detail)

    async def _end(self, successor: str, group: str) -> None:
        try:
            await self.act(Order(group, "terminate", repeat=True))
        except Refused as refusal:
            if refusal.problem.status not in (404, 409):
                raise

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            if entry is None:
                return Transition(None, "absent")
            record = _records.decode(entry.value)
            if record.succeeds != group:
                return Transition(None, "unchanged")
            return Transition(msgspec.structs.replace(record, succeeds=""), "updated", "succeeded")

        await self._store.change(successor, plan, "")


def _accepted(document: dict[str, Any], group: GroupName) -> Accepted:
    """What does not hold together is no fault of the request that begins the group."""
    try:
        return validate.application(document, group)
    except Refused as refusal:
        raise Refused(msgspec.structs.replace(refusal.problem, status=409)) from None


def _stamped(change: Transition, before: list[Action]) -> Transition:
    """With the step among the actions of the record."""
    record = change.record
    if record is not None:
        step = Action(state=record.state, time=now_text(), revision=record.revision)
        record.actions = [*before, step][-MAX_ACTIONS:]
    return change
