"""What a change of a document does to its group: pure. The record that comes out is the whole change, one value to be
written, and says what others are to be told once that is durable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from moorage.model.groups import GroupRecord, Revision, State
from moorage.model.names import GroupName
from moorage.model.problems import Refused, wrong_state

from .resolve import resolve
from .validate import Accepted, AcceptedIntent

_canonical = msgspec.json.Encoder(order="deterministic").encode

Hint = Literal["", "decide", "withdraw"]
#: What an operator can do to a group, and in which states.
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
#: The origin of groups that resources describe.
V2 = "v2"


class _Resolved(msgspec.Struct, rename="camel"):
    instantiated: str = ""


class Head(msgspec.Struct, rename="camel"):
    """What of a group's record is enough to know what a document changes: stores keep one per group in memory."""

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
            resolved=_Resolved(record.resolved.instantiated),
            attached=digest_of_raw(record.intents),
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
    attached = digest_of_raw(stored.intents)
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
    """`record` None: nothing is written. `event` names what happened on `moorage.events.intents.<event>.<group>`."""

    record: GroupRecord | None
    outcome: str
    event: str = ""
    hint: Hint = ""
    warnings: tuple[Any, ...] = ()


def digest_of_raw(documents: Mapping[str, Any]) -> str:
    return _hash(documents) if documents else ""


def _hash(value: Any) -> str:
    return hashlib.blake2b(_canonical(value), digest_size=16).hexdigest()


def raw(attached: Iterable[AcceptedIntent]) -> dict[str, dict[str, Any]]:
    """As the group's record keeps them, by `Kind/name`."""
    return {a.key: msgspec.to_builtins(a.document) for a in sorted(attached, key=lambda a: a.key)}


def applied(
    head: Head | None,
    given: Accepted,
    data: dict[str, Any],
    attached: Iterable[AcceptedIntent],
    now: str,
    last: int = 0,
) -> Transition:
    """An Application: approved and instantiated, or updated, or unchanged. `last` is the revision a deleted group of
    this name ended with: the log has withdrawn everything up to it, so a new one starts above."""
    own = list(attached)
    kept = raw(own)
    digest = _hash((given.document, kept))
    if head is not None and head.state == "Instantiated" and head.digest == digest:
        return Transition(None, "unchanged")
    if head is None:
        revision = last + 1
    else:
        never_ran = head.state in ("Created", "Approved") and not head.resolved.instantiated
        revision = head.revision if never_ran else head.revision + 1
    since = head.resolved.instantiated if head is not None and head.state == "Instantiated" else now
    resolved = resolve(given, own, revision=revision, instantiated=since)
    record = GroupRecord(
        group=str(given.group),
        revision=revision,
        state="Instantiated",
        resolved=resolved,
        manifests={a.name: o.manifests for a, o in zip(given.document.spec.apps, given.objects, strict=True)},
        document=data,
        intents=kept,
        labels=given.document.metadata.labels,
        created=head.created if head is not None else now,
        digest=digest,
        origin=head.origin if head is not None else "",
    )
    if head is None:
        outcome, event = "created", "accepted"
    else:
        outcome, event = "updated", "updated" if head.state == "Instantiated" else "instantiated"
    return Transition(record, outcome, event, "decide", tuple(resolved.warnings))


def created(group: str, now: str, last: int) -> Transition:
    """A group that resources describe: what they say is looked at when it is instantiated."""
    name = GroupName.parse(group)
    resolved = Revision(group=group, revision=last + 1, tenant=name.project, apps=[])
    record = GroupRecord(group=group, revision=last + 1, state="Created", resolved=resolved, created=now, origin=V2)
    return Transition(record, "created", "accepted")


def reattached(record: GroupRecord, given: Accepted, attached: Iterable[AcceptedIntent]) -> Transition:
    """Intents of their own came, changed or went, or somebody asks for an update. What runs follows; what does not run
    yet is only resolved anew, and what has ended waits until it is applied again."""
    own = list(attached)
    kept = raw(own)
    digest = _hash((given.document, kept))
    if digest == record.digest or record.state in _ENDED:
        return Transition(None, "unchanged")
    running = record.state == "Instantiated"
    revision = record.revision + 1 if running else record.revision
    resolved = resolve(given, own, revision=revision, instantiated=record.resolved.instantiated)
    changed = msgspec.structs.replace(record, revision=revision, resolved=resolved, intents=kept, digest=digest)
    return Transition(changed, "updated", "updated", "decide" if running else "", tuple(resolved.warnings))


def acted(record: GroupRecord, verb: str, now: str) -> Transition:
    """approve, instantiate, redecide, stop and terminate. Raises Refused in a wrong state, naming it."""
    check_state(record.group, record.state, verb)
    if record.leaving:  # somebody changed their mind
        record = msgspec.structs.replace(record, leaving="")
    if verb == "stop":
        # What is decided stays, what is being taken away goes; nothing new begins.
        state: State = "InstantiateStopped" if record.state == "Instantiated" else "TerminateStopped"
        return Transition(msgspec.structs.replace(record, state=state), "stopped", "stopped")
    if verb == "approve":
        return Transition(msgspec.structs.replace(record, state="Approved"), "approved", "approved")
    if verb == "terminate":
        return Transition(msgspec.structs.replace(record, state="Terminated"), "terminated", "terminated", "withdraw")
    if verb == "redecide":  # nothing of it changed, but where it may run did
        again: Revision = msgspec.structs.replace(record.resolved, revision=record.revision + 1)
        return Transition(
            msgspec.structs.replace(record, revision=again.revision, resolved=again), "updated", "updated", "decide"
        )
    # What was terminated is withdrawn up to its revision, also where it was approved again since.
    fresh = not record.resolved.instantiated
    revision = record.revision if fresh else record.revision + 1
    resolved: Revision = msgspec.structs.replace(record.resolved, revision=revision, instantiated=now)
    changed = msgspec.structs.replace(record, state="Instantiated", revision=revision, resolved=resolved)
    return Transition(changed, "instantiated", "instantiated", "decide", tuple(resolved.warnings))


def leaving(record: GroupRecord, now: str, cause: str) -> Transition:
    """It is terminated if it is not yet, and forgotten once nothing of it runs: written with it, so that nobody's end
    makes it forgotten."""
    if record.leaving:
        return Transition(None, "leaving")
    if record.state in _ENDED:
        return Transition(msgspec.structs.replace(record, leaving=cause), "leaving", "leaving")
    change = acted(record, "terminate", now)
    assert change.record is not None
    return change._replace(record=msgspec.structs.replace(change.record, leaving=cause), outcome="leaving")


def check_state(group: str, state: State, verb: str) -> None:
    allowed = VERBS[verb]
    if state not in allowed:
        # What others do with a group (drain a cluster) is no step that its owner takes.
        possible = [v for v, states in VERBS.items() if state in states and v != "redecide"]
        raise Refused(
            wrong_state(f"{group} is {state}; {verb} needs {' or '.join(allowed)}; possible now: {', '.join(possible)}")
        )
