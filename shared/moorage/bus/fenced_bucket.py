"""A KV bucket fenced by generation: a stale writer that resumes gets `Superseded`.

A writer may be suspended in the middle of a write while another one takes over. So each write names the revision that it
replaces, and gives way if the value there is of a newer generation.
"""

from __future__ import annotations

import msgspec

from moorage.bus import Bucket, BusError, Conflict


class Superseded(Exception):
    """A newer generation has written here; this writer must stop."""


class _Fence(msgspec.Struct):
    generation: int = 0


_fence = msgspec.json.Decoder(_Fence).decode
#: There is one writer at a time, so more conflicts in a row are a fault.
ATTEMPTS = 5


class FencedBucket:
    """A bucket with one writer at a time, whose values carry the writer's generation."""

    def __init__(self, bucket: Bucket, generation: int) -> None:
        self._bucket, self._generation = bucket, generation
        self._revisions: dict[str, int] = {}  # last written or seen

    def learn(self, key: str, revision: int) -> None:
        self._revisions[key] = revision

    def differs(self, key: str, revision: int) -> bool:
        """Returns whether a key's revision (0: no value) is not the one last written or seen, and learns it."""
        if self._revisions.get(key, 0) == revision:
            return False
        if revision:
            self._revisions[key] = revision
        else:
            self._revisions.pop(key, None)
        return True

    async def put(self, key: str, value: bytes) -> None:
        for _ in range(ATTEMPTS):
            revision = self._revisions.get(key, 0)
            write = self._bucket.update(key, value, revision) if revision else self._bucket.create(key, value)
            try:
                self._revisions[key] = await write
                return
            except Conflict:
                await self._refresh(key)
        raise BusError(f"{key} keeps changing under its only writer")

    async def delete(self, key: str) -> None:
        for _ in range(ATTEMPTS):
            revision = self._revisions.get(key, 0)
            try:
                if revision:
                    await self._bucket.delete(key, revision)
                    del self._revisions[key]
                return
            except Conflict:
                await self._refresh(key)
        raise BusError(f"{key} keeps changing under its only writer")

    async def written_at(self, key: str) -> str | None:
        return await self._bucket.written_at(key)

    async def _refresh(self, key: str) -> None:
        """Learns the revision after a conflict: a write of ours whose acknowledgement was lost, or the last write of an
        older generation. Raises Superseded if it is a newer generation's."""
        entry = await self._bucket.get(key)
        if entry is None:
            self._revisions.pop(key, None)
            return
        if _fence(entry.value).generation > self._generation:
            raise Superseded(key)
        self._revisions[key] = entry.revision
