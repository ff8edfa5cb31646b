"""Events as they come, for any number of listeners: one follower of the log, which writes to each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from moorage.bus import Bus, subjects
from moorage.bus.ordered_consumer import OrderedConsumer
from moorage.collections import LruDict
from moorage.mesh import stores
from moorage.model.auth import Caller
from moorage.model.events import Event

from .authorization import hears

EVENTS = "moorage.events.>"
LOG = stores.EVENTS
#: Messages that could not be read, shown as events are.
REJECTED = "moorage.rejected.>"
REJECTED_LOG = stores.REJECTED
#: Events that wait for one who is still told older ones, and bytes that wait for one who reads slowly.
_BACKLOG, _BUFFER = 8192, 4 << 20
#: How many events are known by name, and how many are told again to one who comes back.
_PLACES, _REPLAYED = 100_000, 20_000


def is_event_subject(pattern: str) -> bool:
    """A subject or pattern below `moorage.events` or `moorage.rejected`, well formed."""
    tokens = pattern.split(".")
    if tokens[0] != "moorage" or len(tokens) < 3 or tokens[1] not in ("events", "rejected"):
        return False
    if ">" in tokens[:-1]:
        return False
    return all(token and (token in ("*", ">") or not set(token) & set("*> \t\r\n")) for token in tokens)


def wants(audience: Audience, subject: str) -> bool:
    pattern, who = audience
    return matches(tuple(pattern.split(".")), subject) and hears(who, subject)


def matches(pattern: tuple[str, ...], subject: str) -> bool:
    """NATS wildcards: `*` one token, `>` one or more at the end."""
    tokens = subject.split(".")
    for number, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > number
        if number >= len(tokens) or (part != "*" and part != tokens[number]):
            return False
    return len(tokens) == len(pattern)


class RecordedEvent(NamedTuple):
    """An event as it stands in the log."""

    seq: int
    id: str
    subject: str
    data: bytes


class _Head(msgspec.Struct):
    id: str = ""
    subject: str = ""


_head = msgspec.json.Decoder(_Head).decode


def said(seq: int, data: bytes) -> RecordedEvent | None:
    """None: no event at all; readers pass over what they cannot read, whoever wrote it has counted it."""
    try:
        head = _head(data)
    except msgspec.DecodeError:
        return None
    return RecordedEvent(seq, head.id.replace("\n", ""), head.subject, data)


class _Kept(msgspec.Struct):
    subject: str
    time: str
    by: str = ""
    problem: msgspec.Raw = msgspec.Raw(b"null")
    sample: str = ""


_kept = msgspec.json.Decoder(_Kept).decode
_encode = msgspec.json.Encoder().encode


def rejected(seq: int, data: bytes) -> RecordedEvent | None:
    """A message that was kept because it could not be read, as the event that it was; its place names it."""
    try:
        kept = _kept(data)
    except msgspec.DecodeError:
        return None
    told = {"subject": kept.subject, "by": kept.by, "problem": kept.problem, "sample": kept.sample}
    event = Event(
        id=f"rejected-{seq}", time=kept.time, subject=subjects.rejected(kept.subject), data=msgspec.Raw(_encode(told))
    )
    return RecordedEvent(seq, event.id, event.subject, _encode(event))


class Out(Protocol):
    """What of a transport is used."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def get_write_buffer_size(self) -> int: ...


class Listener:
    """One reader. What it is told goes straight to its connection: a thousand of them are told in one go, and none has a
    task to be woken. Who reads too slowly is cut off, and can go on where it was; memory stays bounded."""

    def __init__(self, out: Out, frame: Callable[[RecordedEvent], bytes], good: Callable[[], bool]) -> None:
        self._out, self._frame, self._good = out, frame, good
        self._held: list[RecordedEvent] | None = []  # until it has been told what came before
        self.told = 0  # up to where in the log
        self.slow = False
        self.ended = asyncio.Event()

    def tell(self, event: RecordedEvent) -> None:
        if self.ended.is_set() or event.seq <= self.told:
            return
        if self._held is not None:
            self._held.append(event)
            self.slow = len(self._held) > _BACKLOG
        else:
            self.look()
            if self.ended.is_set():  # a connection that is closed must not even be asked to write
                return
            self.told = event.seq
            self._out.write(self._frame(event))
            self.slow = self._out.get_write_buffer_size() > _BUFFER
        if self.slow:
            self.ended.set()

    def go_live(self, told: int) -> None:
        """What came since is told now, and all else as it comes."""
        held, self._held = self._held or [], None
        self.told = told
        for event in held:
            self.tell(event)

    def look(self) -> None:
        """What nobody tells: that it is gone, or its token."""
        if self._out.is_closing() or not self._good():
            self.ended.set()


#: Those who hear the same: a pattern, and what role and projects let through.
Audience = tuple[str, Caller]


class EventStream:
    """Follows the log itself, so that each event has a place in it and a reader can go on where it was."""

    def __init__(
        self, bus: Bus, root: str = EVENTS, log: str = LOG, said: Callable[[int, bytes], RecordedEvent | None] = said
    ) -> None:
        self._bus, self._root, self._name, self._said = bus, root, log, said
        self._audiences: dict[Audience, set[Listener]] = {}
        self._places = LruDict[str, int](_PLACES)
        self._recalled = False
        self._recalling = asyncio.Lock()
        self._follower: OrderedConsumer | None = None
        self.next = 1

    @property
    def listeners(self) -> int:
        return sum(map(len, self._audiences.values()))

    async def start(self) -> None:
        log = self._bus.log(self._name)
        self.next = await log.last() + 1
        self._follower = await log.follow(self.next, self._heard)

    def _heard(self, seq: int, data: bytes) -> None:
        self.next = seq + 1
        event = self._said(seq, data)
        if event is None:
            return
        self._places[event.id] = seq
        for audience, listeners in self._audiences.items():
            if wants(audience, event.subject):
                for listener in listeners:
                    listener.tell(event)

    @contextmanager
    def listening(self, audience: Audience, listener: Listener) -> Iterator[None]:
        self._audiences.setdefault(audience, set()).add(listener)
        try:
            yield
        finally:
            self._audiences[audience].discard(listener)
            if not self._audiences[audience]:
                del self._audiences[audience]

    async def place_of(self, ident: str) -> int | None:
        """Where an event stands in the log. One from before our start is looked for there, once for all who ask."""
        if ident not in self._places:
            await self._catch_up()
        async with self._recalling:
            if ident not in self._places and not self._recalled:
                self._recalled = True
                await self._recall()
        return self._places.get(ident)

    async def _catch_up(self) -> None:
        """Lists are read from the log itself: who saw the end of one may know more than has come here yet."""
        last = await self._bus.log(self._name).last()
        for _ in range(100):
            if self.next > last:
                return
            await asyncio.sleep(0.01)

    async def _recall(self) -> None:
        older: list[tuple[str, int]] = []

        def note(seq: int, data: bytes) -> None:
            if (event := self._said(seq, data)) is not None:
                older.append((event.id, seq))

        log = self._bus.log(self._name)
        start = max(await log.first(), self.next - _PLACES)
        await (await log.follow(start, note)).stop()
        self._places = LruDict(_PLACES, [*older, *self._places.items()])

    async def since(self, seq: int, audience: Audience) -> tuple[list[RecordedEvent], bool]:
        """What came after a place and is for this audience; whether all of it is still there."""
        log = self._bus.log(self._name)
        found: deque[RecordedEvent] = deque(maxlen=_REPLAYED)
        dropped = False

        def note(at: int, data: bytes) -> None:
            nonlocal dropped
            event = self._said(at, data)
            if event is not None and wants(audience, event.subject):
                dropped = dropped or len(found) == _REPLAYED
                found.append(event)

        whole = await log.first() <= seq + 1
        keys = audience[0]
        await (await log.follow(seq + 1, note, keys="" if keys == self._root else keys)).stop()
        return list(found), whole and not dropped

    async def recorded(self, subject: str, limit: int, shown: Callable[[str], bool]) -> list[RecordedEvent]:
        """The last ones of a subject that are still in the log and may be shown."""
        log = self._bus.log(self._name)
        start = 1
        if subject == self._root:
            start = max(1, await log.last() - 4 * limit + 1)  # most may be shown
        found: deque[RecordedEvent] = deque(maxlen=limit)

        def note(seq: int, data: bytes) -> None:
            event = self._said(seq, data)
            if event is not None and shown(event.subject):
                found.append(event)

        await (await log.follow(start, note, keys="" if subject == self._root else subject)).stop()
        return list(found)

    async def stop(self) -> None:
        """Every reader is told that it is over: a shutdown waits for nobody."""
        for listeners in self._audiences.values():
            for listener in listeners:
                listener.ended.set()
        if self._follower is not None:
            await self._follower.stop()
