"""Streams events to any number of listeners: one consumer of the log writes each event to all connections that want it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from moorage.bus import Bus
from moorage.bus.ordered_consumer import OrderedConsumer
from moorage.model.auth import Caller

from .authorization import may_see_event
from .core.event_numbers import EventNumbers
from .event_records import EVENTS, LOG, LoggedEvent, decode_event, matches

#: Limits of a listener: events queued while it is sent older ones, and bytes in its connection's write buffer.
_MAX_QUEUED, _MAX_BUFFER = 8192, 4 << 20
#: Number of events whose sequence number is known by id, and of events that are sent again to a resuming client.
_MAX_SEQS, _MAX_REPLAYED = 65_536, 20_000


class Transport(Protocol):
    """The part of an asyncio transport that a listener uses."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def get_write_buffer_size(self) -> int: ...


class Listener:
    """A client of an event stream. Events are written directly to its connection: a thousand clients are served in one loop,
    without a task each. A client that reads too slowly is disconnected and may resume, so memory is bounded."""

    def __init__(self, out: Transport, frame: Callable[[LoggedEvent], bytes], is_valid: Callable[[], bool]) -> None:
        self._out, self._frame, self._is_valid = out, frame, is_valid
        self._queue: list[LoggedEvent] | None = []  # until older events have been sent
        self.last_seq = 0
        self.slow = False
        self.ended = asyncio.Event()

    def send(self, event: LoggedEvent) -> None:
        if self.ended.is_set() or event.seq <= self.last_seq:
            return
        if self._queue is not None:
            self._queue.append(event)
            self.slow = len(self._queue) > _MAX_QUEUED
        else:
            self.check()
            if self.ended.is_set():  # writing to a closed connection would raise
                return
            self.last_seq = event.seq
            self._out.write(self._frame(event))
            self.slow = self._out.get_write_buffer_size() > _MAX_BUFFER
        if self.slow:
            self.ended.set()

    def go_live(self, last_seq: int) -> None:
        """Sends the events queued after `last_seq`, and from now on new events at once."""
        queued, self._queue = self._queue or [], None
        self.last_seq = last_seq
        for event in queued:
            self.send(event)

    def check(self) -> None:
        """Ends the stream if the connection is closed or the token is no longer valid."""
        if self._out.is_closing() or not self._is_valid():
            self.ended.set()


#: Listeners that get the same events: a subject pattern, and the role and projects that permit them.
Audience = tuple[str, Caller]


def may_receive(audience: Audience, subject: str) -> bool:
    pattern, who = audience
    return matches(tuple(pattern.split(".")), subject) and may_see_event(who, subject)


class EventStream:
    """Follows a log of events, so that each event has a sequence number and clients can resume."""

    def __init__(
        self,
        bus: Bus,
        root: str = EVENTS,
        log: str = LOG,
        decode: Callable[[int, bytes], LoggedEvent | None] = decode_event,
    ) -> None:
        self._bus, self._root, self._name, self._decode = bus, root, log, decode
        self._audiences: dict[Audience, set[Listener]] = {}
        self._seqs = EventNumbers(_MAX_SEQS)
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
        self._follower = await log.follow(self.next, self._on_event)

    def _on_event(self, seq: int, data: bytes) -> None:
        self.next = seq + 1
        event = self._decode(seq, data)
        if event is None:
            return
        self._seqs.put(event.id, seq)
        for audience, listeners in self._audiences.items():
            if may_receive(audience, event.subject):
                for listener in listeners:
                    listener.send(event)

    @contextmanager
    def subscribe(self, audience: Audience, listener: Listener) -> Iterator[None]:
        self._audiences.setdefault(audience, set()).add(listener)
        try:
            yield
        finally:
            self._audiences[audience].discard(listener)
            if not self._audiences[audience]:
                del self._audiences[audience]

    async def seq_of(self, ident: str) -> int | None:
        """Returns an event's sequence number. Ids from before the start are read from the log once for all clients."""
        if self._seqs.get(ident) is None:
            await self._catch_up()
        async with self._recalling:
            if self._seqs.get(ident) is None and not self._recalled:
                self._recalled = True
                await self._recall()
        return self._seqs.get(ident)

    async def _catch_up(self) -> None:
        """Waits until the end of the log is followed, because lists are read from the log and may be ahead of the stream."""
        last = await self._bus.log(self._name).last()
        for _ in range(100):
            if self.next > last:
                return
            await asyncio.sleep(0.01)

    async def _recall(self) -> None:
        numbers = EventNumbers(_MAX_SEQS)

        def collect(seq: int, data: bytes) -> None:
            if (event := self._decode(seq, data)) is not None:
                numbers.put(event.id, seq)

        log = self._bus.log(self._name)
        start = max(await log.first(), self.next - _MAX_SEQS)
        await (await log.follow(start, collect)).stop()
        numbers.put_all(self._seqs)
        self._seqs = numbers

    async def events_after(self, seq: int, audience: Audience) -> tuple[list[LoggedEvent], bool]:
        """Returns an audience's events after a sequence number, and whether they are complete."""
        log = self._bus.log(self._name)
        found: deque[LoggedEvent] = deque(maxlen=_MAX_REPLAYED)
        dropped = False

        def collect(at: int, data: bytes) -> None:
            nonlocal dropped
            event = self._decode(at, data)
            if event is not None and may_receive(audience, event.subject):
                dropped = dropped or len(found) == _MAX_REPLAYED
                found.append(event)

        complete = await log.first() <= seq + 1
        keys = audience[0]
        await (await log.follow(seq + 1, collect, keys="" if keys == self._root else keys)).stop()
        return list(found), complete and not dropped

    async def last_events(self, subject: str, limit: int, shown: Callable[[str], bool]) -> list[LoggedEvent]:
        """Returns the last events of a subject that are still in the log and may be shown."""
        log = self._bus.log(self._name)
        start = 1
        if subject == self._root:
            start = max(1, await log.last() - 4 * limit + 1)  # enough, because most events may be shown
        found: deque[LoggedEvent] = deque(maxlen=limit)

        def collect(seq: int, data: bytes) -> None:
            event = self._decode(seq, data)
            if event is not None and shown(event.subject):
                found.append(event)

        await (await log.follow(start, collect, keys="" if subject == self._root else subject)).stop()
        return list(found)

    async def stop(self) -> None:
        """Ends all streams, so that a shutdown does not wait for their clients."""
        for listeners in self._audiences.values():
            for listener in listeners:
                listener.ended.set()
        if self._follower is not None:
            await self._follower.stop()
