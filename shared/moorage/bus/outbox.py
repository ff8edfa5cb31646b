"""Publishes the events of durable records, and publishes those again that got lost.

A record is written before its event is published. The process may die in between, and the broker may lose events that it had
only in memory. So after a start, a take-over or a reconnect the newest records are compared with the kept events, and what is
missing is published again. An event keeps the id that its record has, so the broker stores it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from moorage.mesh import stores, subjects

from .connection import Connection
from .errors import BusError, NoAnswer
from .log import Log

log = structlog.get_logger("bus")

#: Records that are compared together, and how many of them at once.
BATCH, AT_ONCE = 256, 32
#: Comparisons wait this long, so that an event on its way is not published twice, and to try again after an error.
GRACE = 1.0


class RecordedEvent(NamedTuple):
    """The event of a durable record."""

    subject: str
    id: str
    recorded_at: Callable[[], Awaitable[str | None]]  # when the record was written, by the broker's clock
    publish: Callable[[], Awaitable[None]]  # does nothing if the record has changed since


Source = Callable[[], Awaitable[Sequence[RecordedEvent]]]


class _EventId(msgspec.Struct):
    id: str = ""


_event_id = msgspec.json.Decoder(_EventId).decode


class Outbox:
    """Compares recorded events with the kept ones, and publishes those again that are missing.

    Their publisher emits them with `once`, under the recorded id.
    """

    def __init__(self, conn: Connection, *sources: Source, in_order: bool = False) -> None:
        """`sources` return the events of the newest records, the newest last; events of the first source are published
        first. `in_order`: events are published in the order of their records, so that of each source the comparison stops
        at a batch without a missing event."""
        self._conn, self._sources, self._in_order = conn, sources, in_order
        self._events = Log(conn, stores.EVENTS, subjects.EVENTS)
        self._known: set[str] = set()  # ids that were found among the kept events since the last reconnect
        self._due = asyncio.Event()
        self._comparing = asyncio.Lock()

    def start(self) -> None:
        self._conn.spawn(self._run())

    def check(self) -> None:
        """Schedules a comparison; several calls before it begins cause one."""
        self._due.set()

    async def recheck(self) -> None:
        """Schedules a comparison of all records: after a reconnect, events that were kept may be lost."""
        self._known = set()
        self._due.set()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(GRACE)
            self._due.clear()
            await self.republish_missing()

    async def republish_missing(self) -> None:
        """Publishes the events that are not kept; after an error another comparison is scheduled."""
        try:
            async with self._comparing:
                before, known = self._known, set[str]()
                self._known = known  # recheck() replaces it, and what this comparison finds is forgotten then
                for source in self._sources:
                    events = await source()
                    known.update(event.id for event in events if event.id in before)
                    missing, kept = await self._compare([event for event in events if event.id not in before])
                    known.update(kept)
                    for event in missing:
                        log.warning("publishing an event again that was not kept", subject=event.subject, id=event.id)
                        await event.publish()
        except (NoAnswer, BusError) as error:
            log.warning("records could not be compared with the kept events", error=str(error))
            self._due.set()

    async def _compare(self, events: Sequence[RecordedEvent]) -> tuple[list[RecordedEvent], set[str]]:
        """Returns the events that are not kept, and the ids of those that are."""
        missing: list[RecordedEvent] = []
        kept: set[str] = set()
        for end in range(len(events), 0, -BATCH):
            batch = events[max(end - BATCH, 0) : end]
            lost: list[bool] = []
            for at in range(0, len(batch), AT_ONCE):
                lost += await asyncio.gather(*map(self._is_missing, batch[at : at + AT_ONCE]))
            kept.update(event.id for event, is_lost in zip(batch, lost, strict=True) if not is_lost)
            missing[:0] = [event for event, is_lost in zip(batch, lost, strict=True) if is_lost]
            if self._in_order and not any(lost):
                break
        return missing, kept

    async def _is_missing(self, event: RecordedEvent) -> bool:
        """Returns whether the event is not the last one on its subject, although it is not too old to be kept."""
        found = await self._events.latest(event.subject)
        if found is not None and _event_id(found).id == event.id:
            return False
        recorded_at, kept_since = await event.recorded_at(), await self._events.kept_since()
        return kept_since is not None and recorded_at is not None and recorded_at >= kept_since
