"""Plans the changes of groups: how a document, an intent or a step changes a group's record. Pure. The new record is one
value to write; the event and the hint beside it are published once it is durable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from moorage.model.groups import GroupRecord, Revision, State, Succession
from moorage.model.names import GroupName
from moorage.model.problems import Refused, wrong_state

from .resolve import resolve
from .succession import kept_succession, succession
from .validate import Accepted, AcceptedIntent

_canonical = msgspec.json.Encoder(order="deterministic").encode

Hint = Literal["", "decide", "withdraw"]
#: The steps an operator can take with a group, and the states in which each is possible.
VERBS: dict[str, tuple[State, ...]] = {
    "approve": ("Created", "Terminated"),
    "instantiate": ("Approved", "Terminated", "InstantiateStopped", "TerminateStopped"),
    "update": ("Instantiated", "InstantiateStopped"),
    "redecide": ("Instantiated",),
    "stop": ("Instantiated", "Terminated"),
    "terminate": ("Instantiated", "InstantiateStopped", "TerminateStopped"),
    "delete": ("Created", "Approved", "Terminated", "TerminateStopped"),
}
_ENDED = ("Terminated", "TerminateStopped")
#: The origin of groups that /v2 resources describe.
V2 = "v2"


class _Resolved(msgspec.Struct, rename="camel"):
    instantiated: str = ""
    succession: Succession | None = None


class Head(msgspec.Struct, rename="camel"):
    """The part of a group's record that decides what a document changes. Stores keep one per group in memory."""

    group: str
    revision: int
    state: State
    digest: str = ""
    created: str = ""
    resolved: _Resolved = msgspec.field(default_factory=_Resolved)
    attached: str = ""
    origin: str = ""
    succeeds: str = ""
    leaving: str = ""
    told: list[str] = []

    @classmethod
    def of(cls, record: GroupRecord) -> Head:
        return cls(
            group=record.group,
            revision=record.revision,
            state=record.state,
            digest=record.digest,
            created=record.created,
            resolved=_Resolved(record.resolved.instantiated, record.resolved.succession),
            attached=digest_of_intents(record.intents),
            origin=record.origin,
            succeeds=record.succeeds,
            leaving=record.leaving,
            told=record.told,
        )


class _Stored(Head):
    intents: dict[str, dict[str, Any]] = {}


_head = msgspec.json.Decoder(_Stored)


def head_of(value: bytes) -> Head:
    stored = _head.decode(value)
    attached = digest_of_intents(stored.intents)
    return Head(
        stored.group,
        stored.revision,
        stored.state,
        stored.digest,
        stored.created,
        stored.resolved,
        attached,
        stored.origin,
        stored.succeeds,
        stored.leaving,
        stored.told,
    )


class Transition(NamedTuple):
    """`record` None: nothing is written. The event is published on `moorage.events.intents.<event>.<group>`."""

    record: GroupRecord | None
    outcome: str
    event: str = ""
    hint: Hint = ""
    warnings: tuple[Any, ...] = ()


def digest_of_intents(documents: Mapping[str, Any]) -> str:
    return _hash(documents) if documents else ""


def _hash(value: Any) -> str:
    return hashlib.blake2b(_canonical(value), digest_size=16).hexdigest()


def stored_intents(attached: Iterable[AcceptedIntent]) -> dict[str, dict[str, Any]]:
    """Returns the documents of intents by `Kind/name`, as the group's record keeps them."""
    return {intent.key: msgspec.to_builtins(intent.document) for intent in sorted(attached, key=lambda i: i.key)}


def apply_document(
    head: Head | None,
    application: Accepted,
    data: dict[str, Any],
    attached: Iterable[AcceptedIntent],
    now: str,
    last: int = 0,
) -> Transition:
    """Applies an Application: it is approved and instantiated, updated, or unchanged. `last` is the last revision of a
    deleted group of this name: the log has withdrawn everything up to it, so a new group starts above."""
    standalone = list(attached)
    intents = stored_intents(standalone)
    digest = _hash((application.document, intents))
    if head is not None and head.state == "Instantiated" and head.digest == digest:
        return Transition(None, "unchanged")
    if head is None:
        revision = last + 1
    else:
        never_ran = head.state in ("Created", "Approved") and not head.resolved.instantiated
        revision = head.revision if never_ran else head.revision + 1
    since = head.resolved.instantiated if head is not None and head.state == "Instantiated" else now
    resolved = resolve(application, standalone, revision=revision, instantiated=since)
    manifests = {a.name: o.manifests for a, o in zip(application.document.spec.apps, application.objects, strict=True)}
    succeeds = ""
    if head is not None and head.state in ("Instantiated", "InstantiateStopped"):
        succeeds = head.succeeds
        if head.resolved.succession is not None:
            resolved.succession = kept_succession(head.resolved.succession, manifests)
    record = GroupRecord(
        group=str(application.group),
        revision=revision,
        state="Instantiated",
        resolved=resolved,
        manifests=manifests,
        document=data,
        intents=intents,
        labels=application.document.metadata.labels,
        created=head.created if head is not None else now,
        digest=digest,
        origin=head.origin if head is not None else "",
        succeeds=succeeds,
    )
    if head is None:
        outcome, event = "created", "accepted"
    else:
        outcome, event = "updated", "updated" if head.state == "Instantiated" else "instantiated"
    return Transition(record, outcome, event, "decide", tuple(resolved.warnings))


def create_group(group: str, now: str, last: int) -> Transition:
    """Creates a group that /v2 resources describe. It is composed of them when it is instantiated."""
    name = GroupName.parse(group)
    resolved = Revision(group=group, revision=last + 1, tenant=name.project, apps=[])
    record = GroupRecord(group=group, revision=last + 1, state="Created", resolved=resolved, created=now, origin=V2)
    return Transition(record, "created", "accepted")


def refresh_intents(record: GroupRecord, application: Accepted, attached: Iterable[AcceptedIntent]) -> Transition:
    """Standalone intents changed, or an update is asked for. A running group gets a new revision; one that does not run
    yet is only resolved again, and one that has ended stays as it is until it is applied again."""
    standalone = list(attached)
    intents = stored_intents(standalone)
    digest = _hash((application.document, intents))
    if digest == record.digest or record.state in _ENDED:
        return Transition(None, "unchanged")
    running = record.state == "Instantiated"
    revision = record.revision + 1 if running else record.revision
    resolved = resolve(application, standalone, revision=revision, instantiated=record.resolved.instantiated)
    resolved.succession = record.resolved.succession
    changed = msgspec.structs.replace(record, revision=revision, resolved=resolved, intents=intents, digest=digest)
    return Transition(changed, "updated", "updated", "decide" if running else "", tuple(resolved.warnings))


def take_step(record: GroupRecord, verb: str, now: str) -> Transition:
    """Approves, instantiates, redecides, stops or terminates a group. Raises Refused in a state that forbids it."""
    check_state(record.group, record.state, verb)
    if record.leaving:  # the request to delete it is overruled
        record = msgspec.structs.replace(record, leaving="")
    if verb == "stop":
        # Placed pods stay, pods being removed are removed; nothing new begins.
        state: State = "InstantiateStopped" if record.state == "Instantiated" else "TerminateStopped"
        return Transition(msgspec.structs.replace(record, state=state, succeeds=""), "stopped", "stopped")
    if verb == "approve":
        return Transition(msgspec.structs.replace(record, state="Approved"), "approved", "approved")
    if verb == "terminate":
        record = without_succession(record)
        return Transition(msgspec.structs.replace(record, state="Terminated"), "terminated", "terminated", "withdraw")
    if verb == "redecide":  # the documents are the same, but a cluster is not
        again: Revision = msgspec.structs.replace(record.resolved, revision=record.revision + 1)
        return Transition(
            msgspec.structs.replace(record, revision=again.revision, resolved=again), "updated", "updated", "decide"
        )
    # A terminated group is withdrawn up to its revision, even if it was approved again since.
    never_ran = not record.resolved.instantiated
    revision = record.revision if never_ran else record.revision + 1
    resolved: Revision = msgspec.structs.replace(record.resolved, revision=revision, instantiated=now)
    changed = msgspec.structs.replace(record, state="Instantiated", revision=revision, resolved=resolved)
    return Transition(changed, "instantiated", "instantiated", "decide", tuple(resolved.warnings))


def take_place(record: GroupRecord, before: GroupRecord) -> None:
    """Lets a group that begins take the place of another one, which ends once this one runs."""
    record.succeeds = before.group
    record.resolved.succession = succession(before, record.manifests)


def without_succession(record: GroupRecord) -> GroupRecord:
    """Returns the record as that of a group that takes no other one's place any more."""
    resolved = msgspec.structs.replace(record.resolved, succession=None)
    return msgspec.structs.replace(record, succeeds="", resolved=resolved)


def leave(record: GroupRecord, now: str, cause: str) -> Transition:
    """Terminates the group, and records that it is to be deleted once nothing of it runs. Any store does that, also after
    the one that was asked has died."""
    if record.leaving:
        return Transition(None, "leaving")
    if record.state in _ENDED:
        return Transition(msgspec.structs.replace(record, leaving=cause), "leaving", "leaving")
    change = take_step(record, "terminate", now)
    assert change.record is not None
    return change._replace(record=msgspec.structs.replace(change.record, leaving=cause), outcome="leaving")


def check_state(group: str, state: State, verb: str) -> None:
    allowed = VERBS[verb]
    if state not in allowed:
        # Draining a cluster redecides groups; their owner does not.
        possible = [v for v, states in VERBS.items() if state in states and v != "redecide"]
        raise Refused(
            wrong_state(f"{group} is {state}; {verb} needs {' or '.join(allowed)}; possible now: {', '.join(possible)}")
        )
