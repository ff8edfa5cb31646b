"""Of some workers one is active: a key whose revision is the generation, renewed by its holder, taken when it stops."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from moorage.mesh import stores

from .connection import Connection, new_id
from .errors import BusError, Conflict, NoAnswer
from .kv import Bucket

log = structlog.get_logger("bus")
#: Beside the leases: the number at which they began after a restore.
ERA = "era"


class Lease:
    """Nobody compares clocks: a challenger takes over when the key has not changed for `ttl` of its own monotonic time."""

    def __init__(self, conn: Connection, name: str, ttl: float = 3.0) -> None:
        self._conn, self._name, self._ttl = conn, name, ttl
        self._bucket = Bucket(conn, stores.LEASES, timeout=ttl / 3)
        self._me = new_id().encode()
        self._revision = 0
        self.generation = 0
        self.lost = asyncio.Event()
        self._good = 0.0  # when the broker last said that it is ours

    @property
    def is_certain(self) -> bool:
        """Whether nobody else can be active: not so for one who has slept through his time and does not know it yet."""
        return bool(self.generation) and asyncio.get_running_loop().time() - self._good <= self._ttl * 0.75

    async def hold(self) -> None:
        """Back once this one is the holder; from then on `lost` says when it no longer is."""
        self.lost.clear()
        while True:
            with contextlib.suppress(Conflict, NoAnswer, BusError):
                if await self._take():
                    break
            await asyncio.sleep(self._ttl / 10)
        self.generation = self._revision
        self._conn.spawn(self._renew())

    async def _take(self) -> bool:
        self._good = asyncio.get_running_loop().time()
        entry = await self._bucket.get(self._name)
        if entry is None:
            self._revision = await self._bucket.create(self._name, self._me)
            return True
        if entry.value != b"":
            loop = asyncio.get_running_loop()
            end = loop.time() + self._ttl
            while loop.time() < end:
                await asyncio.sleep(self._ttl / 10)
                again = await self._bucket.get(self._name)
                if again is None or again.revision != entry.revision:
                    return False
        self._good = asyncio.get_running_loop().time()
        self._revision = await self._bucket.update(self._name, self._me, entry.revision)
        return True

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        while self.generation:
            await asyncio.sleep(self._ttl / 4)
            if not self.generation:
                return
            asked = loop.time()
            try:
                self._revision = await self._bucket.update(self._name, self._me, self._revision)
                self._good = asked
            except Conflict:
                with contextlib.suppress(NoAnswer, BusError):
                    entry = await self._bucket.get(self._name)
                    if entry is not None and entry.value == self._me:  # our own write whose answer was lost
                        self._revision, self._good = entry.revision, asked
                        continue
                break
            except (NoAnswer, BusError):
                # Others wait a whole ttl of silence; we stop earlier, so that two never act at once.
                if loop.time() - self._good > self._ttl * 0.75:
                    break
        if self.generation:
            log.warning("lease lost", lease=self._name)
            self.generation = 0
            self.lost.set()

    async def release(self) -> None:
        if self.generation:
            self.generation = 0
            with contextlib.suppress(Conflict, NoAnswer, BusError):
                await self._bucket.update(self._name, b"", self._revision)
            self.lost.set()
