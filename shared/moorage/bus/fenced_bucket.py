"""Buckets with one writer at a time. Who was stopped for a while may wake up in the middle of a write, another one having
taken over: each write names what it was made from, and gives way to a newer generation's."""

from __future__ import annotations

import msgspec

from moorage.bus import Bucket, BusError, Conflict


class Superseded(Exception):
    """A newer generation has written here; this one must not any more."""


class _Owner(msgspec.Struct):
    generation: int = 0


_owner = msgspec.json.Decoder(_Owner).decode
#: More writers than one at a time are a fault.
ATTEMPTS = 5


class FencedBucket:
    """Values carry the generation of who wrote them."""

    def __init__(self, bucket: Bucket, generation: int) -> None:
        self._bucket, self._generation = bucket, generation
        self._at: dict[str, int] = {}

    def learn(self, key: str, revision: int) -> None:
        self._at[key] = revision

    def differs(self, key: str, revision: int) -> bool:
        """Whether what stands there (0: nothing) is not what was written or seen last. Learns it."""
        if self._at.get(key, 0) == revision:
            return False
        if revision:
            self._at[key] = revision
        else:
            self._at.pop(key, None)
        return True

    async def put(self, key: str, value: bytes) -> None:
        for _ in range(ATTEMPTS):
            at = self._at.get(key, 0)
            try:
                self._at[key] = await (self._bucket.update(key, value, at) if at else self._bucket.create(key, value))
                return
            except Conflict:
                await self._look(key)
        raise BusError(f"{key} keeps changing under its only writer")

    async def delete(self, key: str) -> None:
        for _ in range(ATTEMPTS):
            at = self._at.get(key, 0)
            try:
                if at:
                    await self._bucket.delete(key, at)
                    del self._at[key]
                return
            except Conflict:
                await self._look(key)
        raise BusError(f"{key} keeps changing under its only writer")

    async def written_at(self, key: str) -> str | None:
        return await self._bucket.written_at(key)

    async def _look(self, key: str) -> None:
        """It is our own, its acknowledgement lost; or an older one's last; or a newer one's."""
        entry = await self._bucket.get(key)
        if entry is None:
            self._at.pop(key, None)
            return
        if _owner(entry.value).generation > self._generation:
            raise Superseded(key)
        self._at[key] = entry.revision
