"""Takes groups through the steps of their life. A group that /v2 resources describe is composed of them when it begins and
at each update; all other steps are the same for every group."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from moorage.bus import Bus, Entry, now_text
from moorage.model.groups import Action, GroupRecord
from moorage.model.names import GroupName
from moorage.model.problems import Problem, Refused, Violation, invalid, not_found, wrong_state
from moorage.model.v2_resources import Changed, Path, group_name, group_path

from ..cache import CachedGroup
from ..core import transitions, v2_compose, validate
from ..core.transitions import Transition
from ..core.v2_compose import ComposedGroup
from ..core.validate import Accepted
from ..store import Done, GroupStore, application_of, record_of
from . import charts
from .follow_up import FollowUp
from .resource_store import ResourceStore

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
#: The states that a verb leads to. Repeating it there changes nothing.
_REACHED = {
    "approve": ("Approved",),
    "instantiate": ("Instantiated",),
    "stop": ("InstantiateStopped", "TerminateStopped"),
    "terminate": ("Terminated",),
}
_RUNNING = ("Instantiated", "InstantiateStopped")


class StepRequest(NamedTuple):
    """`repeat`: a step that was taken already is not an error. `target`: the group that takes this one's place."""

    group: str
    verb: str
    cause: str = ""
    repeat: bool = False
    target: str = ""
    revision: int = 0
    if_match: int | None = None


class Lifecycle:
    def __init__(self, bus: Bus, store: GroupStore) -> None:
        self._store, self._cache = store, store.cache
        self.resources = ResourceStore(bus, self._is_made_by_application)
        self._follow_up = FollowUp(bus, store, self._terminate_again)

    async def start(self) -> None:
        await self.resources.copy.start()
        await self._follow_up.start()

    # --- groups and resources ----------------------------------------------------------------------------------------

    def _is_made_by_application(self, path: Path) -> bool:
        """Returns whether the path is of a project, composite app or group that an Application made."""
        if len(path) == 7 and path[5] == "deployment-intent-groups":
            head = self._cache.head(group_name(path))
            return head is not None and head.origin != transitions.V2
        if path[0] != "projects" or len(path) not in (2, 5):
            return False
        names = path[1::2] if len(path) == 2 else (path[1], path[3], path[4])
        return any(
            tuple(head.group.split("/")[: len(names)]) == names
            for head in self._cache.heads()
            if head.origin != transitions.V2
        )

    def is_described(self, group: str) -> bool:
        """Returns whether /v2 resources describe the group."""
        return self.resources.tree.get(group_path(group)) is not None

    def _was_described(self, group: str) -> bool:
        head = self._cache.head(group)
        return head is not None and head.origin == transitions.V2

    async def create_record(self, group: str, cause: str) -> Done:
        """Creates the record of a group whose resource was just created."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            if entry is not None:
                return Transition(None, "unchanged")
            return _with_action(transitions.create_group(group, now_text(), await self._store.last_revision(group)), [])

        return await self._store.change(group, plan, cause)

    async def _delete_record(self, group: str, cause: str) -> None:
        """Refused in a state in which the group may not be deleted."""
        try:
            await self._store.delete_group(group, cause)
        except Refused as refusal:
            if refusal.problem.status != 404:
                raise

    # --- steps -------------------------------------------------------------------------------------------------------

    async def act(self, step: StepRequest) -> Done:
        if step.verb not in VERBS:
            detail = f"{step.verb!r} is not one of {', '.join(VERBS)}"
            raise Refused(Problem(title="Unknown verb", status=400, code="UnknownVerb", detail=detail))
        if not self.is_described(step.group) and self._cache.head(step.group) is None:
            await self.resources.copy.caught_up()  # another store may just have created it
        if step.verb == "leave":
            return await self._leave(step)
        if step.verb == "migrate":
            return await self._migrate(step)
        if step.verb == "rollback":
            return await self._rollback(step)
        if self.is_described(step.group) or self._was_described(step.group):
            if step.verb == "delete":
                return await self._delete(step)
            if step.verb in ("instantiate", "update"):
                return await self._compose(step)
            return await self._change_state(step)
        if step.repeat or step.verb == "stop":
            return await self._change_state(step)
        return await self._store.act(step.group, step.verb, step.cause)

    async def _terminate_again(self, group: str) -> Done:
        return await self.act(StepRequest(group, "terminate", repeat=True))

    async def _change_state(self, step: StepRequest) -> Done:
        """Takes a step that needs nothing but the record."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record = await self._record(step.group, entry)
            if step.repeat and record.state in _REACHED.get(step.verb, ()):
                if step.verb == "terminate":
                    await self._store.events.withdraw(step.group, record.revision, record.created, step.cause)
                return Transition(record if entry is None else None, "unchanged")
            if step.verb == "update":
                transitions.check_state(step.group, record.state, "update")
                return transitions.refresh_intents(record, application_of(record), self._cache.intents_of(step.group))
            change = transitions.take_step(record, step.verb, now_text())
            return _with_action(change, record.actions)

        return await self._store.change(step.group, plan, step.cause)

    async def _record(self, group: str, entry: Entry | None) -> GroupRecord:
        """Returns the stored record, or a new one where the group's resource is there and its record is not."""
        if entry is not None:
            return record_of(entry)
        if not self.is_described(group):
            raise Refused(not_found(f"group {group}"))
        record = transitions.create_group(group, now_text(), await self._store.last_revision(group)).record
        assert record is not None
        return record

    async def _compose(self, step: StepRequest, before: GroupRecord | None = None) -> Done:
        """Instantiates or updates: the resources as they are now become the group's document. `before`: the group whose place it
        takes."""
        group = GroupName.parse(step.group)
        stored = await self._store.record(step.group)
        state = stored.state if stored is not None else "Created"
        if step.verb == "instantiate" and step.repeat and state == "Instantiated":
            return await self._change_state(step)
        transitions.check_state(step.group, state, step.verb)
        await self.resources.copy.caught_up()
        if not self.is_described(step.group):
            raise Refused(not_found(f"group {step.group}"))
        composed = await v2_compose.compose(self.resources.tree, group, charts.render)
        try:
            return await self._apply_composed(step, composed, before)
        except Refused as refusal:
            raise Refused(composed.written.problem(refusal.problem)) from None

    async def _apply_composed(self, step: StepRequest, composed: ComposedGroup, before: GroupRecord | None) -> Done:
        application = _accepted(composed.document, GroupName.parse(step.group))

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record = await self._record(step.group, entry)
            if step.repeat and step.verb == "instantiate" and record.state == "Instantiated":
                return Transition(None, "unchanged")  # another request did the same meanwhile
            transitions.check_state(step.group, record.state, step.verb)
            attached = self._cache.intents_of(step.group)
            head = transitions.Head.of(record)
            change = transitions.apply_document(head, application, composed.document, attached, now_text())
            if change.record is not None:
                if before is not None:
                    transitions.take_place(change.record, before)
                outcome = "instantiated" if change.event == "instantiated" else change.outcome
                change = change._replace(outcome=outcome, warnings=(*composed.warnings, *change.warnings))
            return _with_action(change, record.actions)

        return await self._store.change(step.group, plan, step.cause)

    async def _rollback(self, step: StepRequest) -> Done:
        """Makes an older revision's document and manifests a new revision, which is decided like any other, so that
        capacity is checked again."""

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            record = await self._record(step.group, entry)
            _check_running(step.group, record.state, "rollback")
            revision = step.revision or record.revision - 1
            if revision == record.revision:
                return Transition(None, "unchanged")
            older = await self._store.older(step.group, revision)
            if older is None or not older.document:
                raise Refused(await self._store.old_revisions.problem(step.group, revision))
            application = validate.application(older.document, GroupName.parse(step.group))
            # Without a digest, a document equal to the present one makes a new revision, too.
            head = msgspec.structs.replace(transitions.Head.of(record), digest="")
            attached = self._cache.intents_of(step.group)
            change = transitions.apply_document(head, application, older.document, attached, now_text())
            return _with_action(change._replace(event="updated"), record.actions)

        return await self._store.change(step.group, plan, step.cause)

    async def _delete(self, step: StepRequest) -> Done:
        await self.delete([group_path(step.group)], step.cause)
        return Done(step.group, 0, "", "deleted")

    async def delete(self, paths: list[Path], cause: str, if_match: int | None = None) -> Changed:
        """Deletes groups with their records, all or none."""
        await self.resources.copy.caught_up()
        for path in paths:
            self.resources.check_deletable(path, if_match)
            record = await self._store.record(group_name(path))
            if record is not None:
                transitions.check_state(record.group, record.state, "delete")
        for path in paths:
            await self._delete_record(group_name(path), cause)
        return await self.resources.delete(paths)

    async def _leave(self, step: StepRequest) -> Done:
        done = await self._store.leave(step.group, step.cause, step.if_match)
        if done.outcome == "leaving" and (head := self._cache.head(step.group)) is not None:
            return await self._follow_up.delete_if_ended(head) or done
        return done

    # --- one group in place of another -------------------------------------------------------------------------------

    async def _migrate(self, step: StepRequest) -> Done:
        """Begins the target now. The group ends when the target runs. Objects that both have are updated in place."""
        before = await self._check_migration(step)
        if isinstance(before, Done):
            return before
        instantiate = StepRequest(step.target, "instantiate", step.cause)
        if self.is_described(step.target):
            return await self._compose(instantiate, before)

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            change = transitions.take_step(await self._record(step.target, entry), "instantiate", now_text())
            if change.record is not None:
                transitions.take_place(change.record, before)
            return change

        return await self._store.change(step.target, plan, step.cause)

    async def _check_migration(self, step: StepRequest) -> Done | GroupRecord:
        """Returns the group as it is if the migration may begin, else what a repeated request is answered."""
        if not step.target:
            raise _invalid_target("Required", "is required: the group that takes this one's place")
        group, target = await self._store.record(step.group), await self._store.record(step.target)
        if group is None:
            raise Refused(not_found(f"group {step.group}"))
        if step.target == step.group:
            raise _invalid_target("Contradiction", "is the group itself")
        if target is None and not self.is_described(step.target):
            raise Refused(not_found(f"group {step.target}"))
        if target is not None and target.state == "Instantiated" and target.succeeds == step.group and step.repeat:
            return Done(step.target, target.revision, target.state, "unchanged")
        _check_running(step.group, group.state, "migrate")
        if group.succeeds:
            raise Refused(
                wrong_state(
                    f"{step.group} still takes the place of {group.succeeds}; wait until it runs, or terminate it and "
                    f"migrate {group.succeeds}"
                )
            )
        state = target.state if target is not None else "Created"
        if state != "Approved":
            raise Refused(wrong_state(f"{step.target} is {state}; migrate needs a target that is Approved"))
        return group


def _check_running(group: str, state: str, verb: str) -> None:
    if state not in _RUNNING:
        raise Refused(wrong_state(f"{group} is {state}; {verb} needs {' or '.join(_RUNNING)}"))


def _invalid_target(code: str, message: str) -> Refused:
    return Refused(invalid([Violation(path="spec.targetDigName", code=code, message=message)]))


def _accepted(document: dict[str, Any], group: GroupName) -> Accepted:
    """Refuses with 409 instead of 400: the resources are wrong, not the request that instantiates the group."""
    try:
        return validate.application(document, group)
    except Refused as refusal:
        raise Refused(msgspec.structs.replace(refusal.problem, status=409)) from None


def _with_action(change: Transition, before: list[Action]) -> Transition:
    """Adds the step to the actions of the record."""
    record = change.record
    if record is not None:
        action = Action(state=record.state, time=now_text(), revision=record.revision)
        record.actions = [*before, action][-MAX_ACTIONS:]
    return change
