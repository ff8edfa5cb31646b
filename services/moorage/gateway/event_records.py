"""Events as they are recorded in a log of the broker, and the subjects that select them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from moorage.bus import subjects
from moorage.mesh import stores
from moorage.model.events import Event

EVENTS = "moorage.events.>"
LOG = stores.EVENTS
#: Messages that workers could not decode; they are shown as events.
REJECTED = "moorage.rejected.>"
REJECTED_LOG = stores.REJECTED


def is_event_subject(pattern: str) -> bool:
    """Returns whether this is a well-formed subject or pattern below `moorage.events` or `moorage.rejected`."""
    tokens = pattern.split(".")
    if tokens[0] != "moorage" or len(tokens) < 3 or tokens[1] not in ("events", "rejected"):
        return False
    if ">" in tokens[:-1]:
        return False
    return all(token and (token in ("*", ">") or not set(token) & set("*> \t\r\n")) for token in tokens)


def matches(pattern: tuple[str, ...], subject: str) -> bool:
    """Matches NATS wildcards: `*` is one token, `>` one or more tokens at the end."""
    tokens = subject.split(".")
    for number, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > number
        if number >= len(tokens) or (part != "*" and part != tokens[number]):
            return False
    return len(tokens) == len(pattern)


class LoggedEvent(NamedTuple):
    """An event with its sequence number in the log."""

    seq: int
    id: str
    subject: str
    data: bytes


class _Head(msgspec.Struct):
    id: str = ""
    subject: str = ""


_head = msgspec.json.Decoder(_Head).decode


def decode_event(seq: int, data: bytes) -> LoggedEvent | None:
    """Decodes an event. Returns None for undecodable ones, which their writer has counted."""
    try:
        head = _head(data)
    except msgspec.DecodeError:
        return None
    return LoggedEvent(seq, head.id.replace("\n", ""), head.subject, data)


class _RejectedMessage(msgspec.Struct):
    subject: str
    time: str
    by: str = ""
    problem: msgspec.Raw = msgspec.Raw(b"null")
    sample: str = ""


_rejected = msgspec.json.Decoder(_RejectedMessage).decode
_encode = msgspec.json.Encoder().encode


def decode_rejected(seq: int, data: bytes) -> LoggedEvent | None:
    """Converts a rejected message to an event, whose id is made from its sequence number."""
    try:
        message = _rejected(data)
    except msgspec.DecodeError:
        return None
    body = {"subject": message.subject, "by": message.by, "problem": message.problem, "sample": message.sample}
    event = Event(
        id=f"rejected-{seq}",
        time=message.time,
        subject=subjects.rejected(message.subject),
        data=msgspec.Raw(_encode(body)),
    )
    return LoggedEvent(seq, event.id, event.subject, _encode(event))
