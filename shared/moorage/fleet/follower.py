"""Keeps a fleet current from Redis.

Small changes come on the stream. After a gap, another generation or an unreadable change all snapshots are loaded, beside the
fleet in use, which is then replaced in one step: decisions never see half a fleet. While Redis is away or is being written
again, the last view is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import structlog

from . import delta
from .delta import Epoch, Malformed
from .fleet import Fleet
from .redis_store import FAILURES, FleetStore, GenerationChanged, still_wanted

log = structlog.get_logger("fleet")

#: Seconds that an older generation must be current before it is loaded: longer than an inventory lives without its lease.
OLDER_FOR = 5.0
#: Seconds without an answer from Redis, or without a current generation in it, after which `healthy` is false.
PATIENCE = 3.0
BLOCK_MS = 1000


class FleetFollower:
    def __init__(self, redis_url: str, fleet: Fleet) -> None:
        self.fleet = fleet
        self.loads = 0
        self._store = FleetStore(redis_url)
        self._loaded = asyncio.Event()
        self._answered_at = 0.0
        self._older_since = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> bool:
        """Returns whether the fleet is loaded and Redis answered recently."""
        return self._loaded.is_set() and time.monotonic() - self._answered_at < PATIENCE

    async def start(self) -> None:
        """Waits until the fleet is loaded, which takes until inventory has written all of it to Redis."""
        self._task = asyncio.create_task(self._run(), name="fleet follower")
        waiting = asyncio.create_task(self._loaded.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._store.close()

    async def _run(self) -> None:
        delay = 0.05
        while True:
            still_wanted()
            try:
                if await self._load():
                    delay = 0.05
                    await self._follow()
                    continue
            except GenerationChanged:
                continue
            except (*FAILURES, Malformed) as error:
                log.warning("cannot read the fleet", error=f"{type(error).__name__}: {error}"[:300])
                delay = min(delay * 2, 2.0)
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))

    async def _load(self) -> bool:
        current = await self._store.current()
        if not current.generation:
            return False
        fresh = await self._store.read(current)
        self.loads += 1
        self.fleet.adopt(fresh)
        self._note_answer()
        self._loaded.set()
        return True

    async def _follow(self) -> None:
        """Applies changes until the snapshots must be loaded again."""
        delay = 0.05
        while True:
            still_wanted()
            try:
                changes = await self._store.changes(self.fleet.epoch, BLOCK_MS)
                if not changes and await self._superseded():
                    return
            except FAILURES as error:
                if delay == 0.05:
                    log.warning(
                        "Redis does not answer; the last view is kept", error=f"{type(error).__name__}: {error}"[:300]
                    )
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))
                delay = min(delay * 2, 1.0)
                continue
            delay = 0.05
            if changes:
                self._note_answer()
            for epoch, data in changes:
                if not self._apply(epoch, data):
                    return

    def _apply(self, epoch: Epoch, data: bytes) -> bool:
        here = self.fleet.epoch
        if epoch.generation != here.generation or epoch.counter > here.counter + 1:
            return False
        if epoch.counter == here.counter + 1:
            try:
                patch = delta.decode(data)
                patch.generation, patch.counter = epoch
                self.fleet.apply(patch)
            except Malformed as error:
                log.warning("a change is unreadable; loading all snapshots", epoch=str(epoch), error=str(error)[:300])
                return False
        return True

    async def _superseded(self) -> bool:
        """Returns whether no change came because another generation is current, or because changes were missed."""
        here = self.fleet.epoch
        current = (await self._store.current()).generation
        if not current:  # Redis was emptied; inventory is about to write it again
            return False
        if current < here.generation:
            self._older_since = self._older_since or time.monotonic()
            return time.monotonic() - self._older_since > OLDER_FOR
        self._older_since = 0.0
        self._note_answer()
        if current > here.generation:
            return True
        behind = await self._store.counter(here.generation) > here.counter
        return behind and not await self._store.changes(here, None)

    def _note_answer(self) -> None:
        self._answered_at = time.monotonic()
