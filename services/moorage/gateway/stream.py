"""Events as they come, for any number of listeners: one follower of the log, and a bounded queue for each."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from moorage.bus import Bus
from moorage.bus.stores import Follower

EVENTS = "moorage.events.>"
LOG = "MOORAGE_EVENTS"
_BACKLOG = 2048
#: How many events are known by name, and how many are told again to one who comes back.
_PLACES, _REPLAYED = 100_000, 20_000


def is_event_subject(pattern: str) -> bool:
    """A subject or pattern at or below `moorage.events`, well formed."""
    tokens = pattern.split(".")
    if tokens[:2] != ["moorage", "events"] or len(tokens) < 3:
        return False
    if ">" in tokens[:-1]:
        return False
    return all(token and (token in ("*", ">") or not set(token) & set("*> \t\r\n")) for token in tokens)


def matches(pattern: tuple[str, ...], subject: str) -> bool:
    """NATS wildcards: `*` one token, `>` one or more at the end."""
    tokens = subject.split(".")
    for number, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > number
        if number >= len(tokens) or (part != "*" and part != tokens[number]):
            return False
    return len(tokens) == len(pattern)


class Said(NamedTuple):
    """An event as it stands in the log."""

    seq: int
    id: str
    subject: str
    data: bytes


class _Head(msgspec.Struct):
    id: str = ""
    subject: str = ""


_head = msgspec.json.Decoder(_Head).decode


def said(seq: int, data: bytes) -> Said | None:
    """None: no event at all; readers pass over what they cannot read, whoever wrote it has counted it."""
    try:
        head = _head(data)
    except msgspec.DecodeError:
        return None
    return Said(seq, head.id.replace("\n", ""), head.subject, data)


class Listener:
    """One reader. Who reads too slowly is cut off, and knows it; memory stays bounded."""

    def __init__(self, pattern: str, hears: Callable[[str], bool]) -> None:
        self.pattern = tuple(pattern.split("."))
        self.queue: asyncio.Queue[Said | None] = asyncio.Queue(_BACKLOG)
        self.hears = hears
        self.lost = False

    def wants(self, subject: str) -> bool:
        return matches(self.pattern, subject) and self.hears(subject)

    def put(self, event: Said | None) -> None:
        if self.lost:
            return
        if self.queue.full():
            self.lost = True
            self.queue.get_nowait()
            event = None
        self.queue.put_nowait(event)


class Stream:
    """Follows the log itself, so that each event has a place in it and a reader can go on where it was."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listeners: set[Listener] = set()
        self._places: OrderedDict[str, int] = OrderedDict()
        self._recalled = False
        self._recalling = asyncio.Lock()
        self._follower: Follower | None = None
        self.next = 1

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def start(self) -> None:
        self.next = await self._bus.log(LOG).last() + 1
        self._follower = await self._bus.log(LOG).follow(self.next, self._heard)

    def _heard(self, seq: int, data: bytes) -> None:
        self.next = seq + 1
        event = said(seq, data)
        if event is None:
            return
        self._remember(event.id, seq)
        for listener in self._listeners:
            if listener.wants(event.subject):
                listener.put(event)

    def _remember(self, ident: str, seq: int) -> None:
        self._places[ident] = seq
        if len(self._places) > _PLACES:
            self._places.popitem(last=False)

    @contextmanager
    def listening(self, pattern: str, hears: Callable[[str], bool]) -> Iterator[Listener]:
        listener = Listener(pattern, hears)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def place_of(self, ident: str) -> int | None:
        """Where an event stands in the log. One from before our start is looked for there, once for all who ask."""
        async with self._recalling:
            if ident not in self._places and not self._recalled:
                self._recalled = True
                await self._recall()
        return self._places.get(ident)

    async def _recall(self) -> None:
        older: list[tuple[str, int]] = []

        def note(seq: int, data: bytes) -> None:
            if (event := said(seq, data)) is not None:
                older.append((event.id, seq))

        log = self._bus.log(LOG)
        start = max(await log.first(), self.next - _PLACES)
        await (await log.follow(start, note)).stop()
        ours = self._places
        self._places = OrderedDict(older)
        self._places.update(ours)
        while len(self._places) > _PLACES:
            self._places.popitem(last=False)

    async def since(self, seq: int, listener: Listener) -> tuple[list[Said], bool]:
        """What came after a place and this listener wants; whether all of it is still there."""
        log = self._bus.log(LOG)
        found: deque[Said] = deque(maxlen=_REPLAYED)
        dropped = False

        def note(at: int, data: bytes) -> None:
            nonlocal dropped
            event = said(at, data)
            if event is not None and listener.wants(event.subject):
                dropped = dropped or len(found) == _REPLAYED
                found.append(event)

        whole = await log.first() <= seq + 1
        keys = ".".join(listener.pattern)
        await (await log.follow(seq + 1, note, keys="" if keys == EVENTS else keys)).stop()
        return list(found), whole and not dropped

    async def stop(self) -> None:
        """Every reader is told that it is over: a shutdown waits for nobody."""
        for listener in self._listeners:
            if listener.queue.full():
                listener.queue.get_nowait()
            listener.queue.put_nowait(None)
        if self._follower is not None:
            await self._follower.stop()
