"""Elects the active one of several workers: a KV key that its holder renews, and whose revision is the generation."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from moorage.mesh import stores

from .connection import Connection
from .errors import BusError, Conflict, NoAnswer
from .ids import new_id
from .kv import Bucket

log = structlog.get_logger("bus")
#: A key beside the leases: the revision at which they began after a restore.
ERA = "era"


class Lease:
    """A lease on the name of a worker kind.

    Clocks are not compared: a challenger takes over when the key has not changed for `ttl` of its own monotonic time.
    """

    def __init__(self, conn: Connection, name: str, ttl: float = 3.0) -> None:
        self._conn, self._name, self._ttl = conn, name, ttl
        self._bucket = Bucket(conn, stores.LEASES, timeout=ttl / 3)
        self._value = new_id().encode()
        self._revision = 0
        self.generation = 0
        self.lost = asyncio.Event()
        self._confirmed_at = 0.0  # when the last write was sent that the broker acknowledged

    @property
    def is_certain(self) -> bool:
        """Returns whether nobody else can be active. False for a holder that was suspended past its time and has not
        noticed yet."""
        return bool(self.generation) and asyncio.get_running_loop().time() - self._confirmed_at <= self._ttl * 0.75

    async def hold(self) -> None:
        """Waits until this worker is the holder; from then on `lost` is set when it no longer is."""
        self.lost.clear()
        while True:
            with contextlib.suppress(Conflict, NoAnswer, BusError):
                if await self._take():
                    break
            await asyncio.sleep(self._ttl / 10)
        self.generation = self._revision
        self._conn.spawn(self._renew())

    async def until_lost(self) -> None:
        """Waits until this worker no longer is the holder, or the connection is closed."""
        waiting = [asyncio.create_task(event.wait()) for event in (self.lost, self._conn.closed)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _take(self) -> bool:
        """Takes a lease that is free, or whose holder has not renewed it for a ttl."""
        self._confirmed_at = asyncio.get_running_loop().time()
        entry = await self._bucket.get(self._name)
        if entry is None:
            self._revision = await self._bucket.create(self._name, self._value)
            return True
        if entry.value != b"":
            loop = asyncio.get_running_loop()
            end = loop.time() + self._ttl
            while loop.time() < end:
                await asyncio.sleep(self._ttl / 10)
                again = await self._bucket.get(self._name)
                if again is None or again.revision != entry.revision:
                    return False
        self._confirmed_at = asyncio.get_running_loop().time()
        self._revision = await self._bucket.update(self._name, self._value, entry.revision)
        return True

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        while self.generation:
            await asyncio.sleep(self._ttl / 4)
            if not self.generation:
                return
            sent_at = loop.time()
            try:
                self._revision = await self._bucket.update(self._name, self._value, self._revision)
                self._confirmed_at = sent_at
            except Conflict:
                with contextlib.suppress(NoAnswer, BusError):
                    entry = await self._bucket.get(self._name)
                    if (
                        entry is not None and entry.value == self._value
                    ):  # our own write, whose acknowledgement was lost
                        self._revision, self._confirmed_at = entry.revision, sent_at
                        continue
                break
            except (NoAnswer, BusError):
                # A challenger waits for a full ttl of silence. The holder stops earlier, so that two never act at once.
                if loop.time() - self._confirmed_at > self._ttl * 0.75:
                    break
        if self.generation:
            log.warning("lease lost", lease=self._name)
            self.generation = 0
            self.lost.set()

    async def release(self) -> None:
        """Frees the lease, so that another worker takes it at once."""
        if self.generation:
            self.generation = 0
            with contextlib.suppress(Conflict, NoAnswer, BusError):
                await self._bucket.update(self._name, b"", self._revision)
            self.lost.set()
