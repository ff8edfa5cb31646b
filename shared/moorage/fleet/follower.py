"""Keeps a fleet current from Redis. Small changes come on the stream; whatever does not fit together (a gap, another
generation, an unreadable change) means loading the snapshots whole, beside the fleet in use, which is replaced in one step:
nobody who decides ever sees half a fleet. While Redis is away or is being written again, the last view stays."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import structlog

from . import delta
from .delta import Epoch, Malformed
from .fleet import Fleet
from .redis_store import FAILURES, Changed, FleetStore, still_wanted

log = structlog.get_logger("fleet")

#: How long an older generation must stay current until it is believed: longer than an inventory that lost its lease lives.
OLDER_FOR = 5.0
#: After so long without an answer from Redis, or without a current generation in it, `healthy` says so.
PATIENCE = 3.0
BLOCK_MS = 1000


class FleetFollower:
    def __init__(self, redis_url: str, fleet: Fleet) -> None:
        self.fleet = fleet
        self.loads = 0
        self._store = FleetStore(redis_url)
        self._loaded = asyncio.Event()
        self._good = 0.0
        self._older_since = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> bool:
        """The fleet is loaded and Redis answered lately."""
        return self._loaded.is_set() and time.monotonic() - self._good < PATIENCE

    async def start(self) -> None:
        """Back once the fleet is loaded; waits as long as inventory has none whole in Redis."""
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
            except Changed:
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
        self._seen()
        self._loaded.set()
        return True

    async def _follow(self) -> None:
        """Returns when the snapshots must be loaded."""
        delay = 0.05
        while True:
            still_wanted()
            try:
                changes = await self._store.changes(self.fleet.epoch, BLOCK_MS)
                if not changes and await self._superseded():
                    return
            except FAILURES as error:
                if delay == 0.05:
                    log.warning("Redis is away; the last view stays", error=f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))
                delay = min(delay * 2, 1.0)
                continue
            delay = 0.05
            if changes:
                self._seen()
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
                log.warning("an unreadable change; loading whole", epoch=str(epoch), error=str(error)[:300])
                return False
        return True

    async def _superseded(self) -> bool:
        """Nothing came for a while: is that because all is quiet, or because we look at the wrong place?"""
        here = self.fleet.epoch
        current = (await self._store.current()).generation
        if not current:  # Redis forgot; inventory is about to write it again
            return False
        if current < here.generation:
            self._older_since = self._older_since or time.monotonic()
            return time.monotonic() - self._older_since > OLDER_FOR
        self._older_since = 0.0
        self._seen()
        if current > here.generation:
            return True
        behind = await self._store.counter(here.generation) > here.counter
        return behind and not await self._store.changes(here, None)

    def _seen(self) -> None:
        self._good = time.monotonic()
