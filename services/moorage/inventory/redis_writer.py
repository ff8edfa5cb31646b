"""Writes changes of the fleet to Redis, and publishes the events of what was written.

Changes are gathered for some milliseconds, so that a burst is written at once.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from moorage.bus.failpoints import reached
from moorage.fleet import (
    FAILURES,
    Fleet,
    FleetFlush,
    FleetStore,
    FleetWriter,
    GenerationChanged,
    Malformed,
    StoreSuperseded,
    still_wanted,
)

from .core.fleet_state import BATCH, TAKEOVER, FleetEvent, FleetState
from .events import ClusterEvents, shortened, with_ids

log = structlog.get_logger("inventory")

GATHER = 0.010
#: Gathering takes this many times as long as the last write: snapshots of huge clusters delay writes, not reports.
REST = 3
CHECK_EVERY = 1.0  # seconds between checks for silent clusters and of Redis, and between mere signs of life
#: Counters left out when the dictionary's numbers change their meaning: followers that see a gap load everything. One is not
#: enough, because a write that was given up may still arrive.
COUNTER_GAP = 2
MAX_EVENTS = 10_000


class RedisWriter:
    def __init__(self, store: FleetStore, cluster_events: ClusterEvents) -> None:
        self.store, self.cluster_events = store, cluster_events
        self.writer = FleetWriter()
        self.generation = 0  # in Redis: the lease's, or a larger one if Redis has seen that
        self.counter = 0
        self.is_up = True
        self.complete = False  # Redis has everything that is in memory
        self._state: FleetState | None = None
        self._rewrite_at = 0.0  # Redis has nothing yet: it is written when all clusters have reported, or at this time
        self._dirty = asyncio.Event()
        self._events: list[FleetEvent] = []
        self._max_events = MAX_EVENTS
        self._unconfirmed: FleetFlush | None = None
        self._signs_of_life_at = self._ticked_at = self._checked_at = 0.0

    async def inherit(self, generation: int) -> tuple[bool, list[bytes]]:
        """Takes over the rows that an inventory before left in Redis.

        Returns whether there were any, and the recorded events. Waits until Redis answers.
        """
        while True:
            still_wanted()
            try:
                current = await self.store.current()
                newest = await self.store.last()
                self.generation = max(generation, current.generation + 1, newest.generation + 1)
                fleet, recorded_events = Fleet(), list[bytes]()
                if current.generation:
                    fleet = await self.store.read(current)
                    recorded_events = await self.store.recorded_events(current.generation)
            except FAILURES as error:
                self.is_up = False
                log.warning("waiting for Redis", error=f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(0.5)
                continue
            except GenerationChanged:
                continue
            except Malformed as error:
                log.warning("rows in Redis are not readable; agents will report", error=str(error)[:300])
                current, fleet = current._replace(generation=0), Fleet()
            self.is_up = True
            self.writer = FleetWriter(fleet)
            self.writer.compact()
            return current.generation > 0, recorded_events

    def begin(self, state: FleetState, now: float, *, inherited: bool) -> None:
        """Takes the state whose changes `run` writes."""
        self._state = state
        if not inherited and state.present:
            self._rewrite_at = now + TAKEOVER * state.period
        self._dirty.set()

    def wake(self) -> None:
        """Has changes written and events published soon."""
        self._dirty.set()

    def queue_events(self, events: list[FleetEvent]) -> None:
        if not events:
            return
        self._events += with_ids(events)
        if len(self._events) > self._max_events:  # Redis is away: only the newest event of each state matters
            self._events = shortened(self._events, MAX_EVENTS // 2)
            self._max_events = max(MAX_EVENTS, 2 * len(self._events))

    async def run(self) -> None:
        """Writes changes until cancelled; an error ends it only if another inventory has taken over."""
        delay = 0.0
        while True:
            still_wanted()
            try:
                async with asyncio.timeout(CHECK_EVERY / 4):
                    await self._dirty.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(max(GATHER, delay))
            began = time.monotonic()
            try:
                await self._step(began)
                if not self.is_up:
                    log.info("Redis answers again")
                self.is_up = True
                delay = min((time.monotonic() - began) * REST, 0.5)
            except FAILURES as error:
                if self.is_up:
                    log.warning("Redis does not answer", error=f"{type(error).__name__}: {error}"[:300])
                self.is_up = False
                delay = min(max(delay * 2, 0.05), 1.0)
                await asyncio.sleep(delay)

    async def _step(self, now: float) -> None:
        assert self._state is not None
        if now - self._ticked_at >= CHECK_EVERY / 2:
            self._ticked_at = now
            self.queue_events(self._state.tick(now))
        if now - self._checked_at >= CHECK_EVERY:
            self._checked_at = now
            await self._check()
        if self._rewrite_at:
            if self._state.awaits_reports() and now < self._rewrite_at:
                return
            self._rewrite_at = 0.0
        if self._unconfirmed is not None:
            await self._confirm(self._unconfirmed)
        if self.complete and self.writer.crowded():
            self.writer.compact()
            self.counter += COUNTER_GAP
            self.complete = False
        if not self.complete:
            await self._rewrite()
        lively = self.writer.has_refreshed and now - self._signs_of_life_at >= CHECK_EVERY
        self._dirty.clear()
        if self.writer.pending or lively:
            self._signs_of_life_at = now
            ready = await self._flush()
        else:
            ready, self._events = self._events, []
        if self.writer.pending:
            self._dirty.set()
        if ready:
            reached("inventory.written")
        for event in ready:
            await self.cluster_events.publish(event)

    async def _check(self) -> None:
        """Has Redis written again if it was emptied or came back with older data."""
        if not self.complete or self._unconfirmed is not None:
            return
        known = int(self.writer.fleet.known.sum())
        pending = self.writer.pending  # clusters that came or went since make the number differ
        if not await self.store.intact(self.generation, self.counter, None if pending else known):
            log.warning("Redis lost the fleet; writing it again")
            self.complete = False

    async def _rewrite(self) -> None:
        first = self.counter == 0
        if first:
            self.writer.settle()
        self.counter += 1
        await self.store.rewrite(
            self.generation, self.counter, self.writer, self.cluster_events.all_flags(self._events)
        )
        self.complete = True

    async def _flush(self) -> list[FleetEvent]:
        """Writes pending changes and returns the events that may be published: those of clusters that were written."""
        assert self._state is not None
        flush = self.writer.flush(self.generation, self.counter + 1, BATCH)
        self._unconfirmed = flush
        clusters, ready, later = self._state.clusters, list[FleetEvent](), list[FleetEvent]()
        for event in self._events:
            (later if self.writer.waits(clusters[event.cluster].record.id) else ready).append(event)
        self._events = later
        try:
            current = await self.store.write(self.generation, flush, self.cluster_events.flags(ready))
        except BaseException:
            self._events = ready + self._events
            raise
        self._unconfirmed, self.counter = None, flush.counter
        if current.generation > self.generation:
            raise StoreSuperseded
        if current.generation != self.generation:
            self.complete = False
            self._dirty.set()
        return ready

    async def _confirm(self, flush: FleetFlush) -> None:
        """Finds out by the counter in Redis whether a write happened whose answer was lost."""
        if (await self.store.current()).generation > self.generation:
            raise StoreSuperseded
        there = await self.store.counter(self.generation)
        if there == flush.counter:
            self.counter = there
        else:
            self.writer.again(flush)
            self.complete = self.complete and there == self.counter
            self.counter += not self.complete
        self._unconfirmed = None
