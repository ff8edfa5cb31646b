"""Tracks which revisions are durable. A hint may arrive while its record is still being written, so that controllers are asked and
a decision is proposed meanwhile; nothing is committed for it before the intent store confirms the record."""

from __future__ import annotations

import asyncio

import msgspec

from moorage.model.groups import Stored

#: Seconds to wait for a confirmation. After that the wait loop decides the group, because it reads the stored record.
TIMEOUT = 1.0
#: Seconds that a confirmation is kept for a hint that is still queued. Most are of hints that another merger got.
KEPT = 10.0

_decode = msgspec.json.Decoder(Stored).decode


class DurableRevisions:
    """Matches the intent store's confirmations with the hints that wait for them."""

    def __init__(self) -> None:
        self._confirmed: dict[str, float] = {}  # when each confirmation came, in this order
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    def record_stored(self, _subject: str, data: bytes) -> None:
        ident = _decode(data).id
        future = self._waiting.get(ident)
        if future is not None:
            if not future.done():
                future.set_result(True)
            return
        now = asyncio.get_running_loop().time()
        self._confirmed[ident] = now
        while now - self._confirmed[oldest := next(iter(self._confirmed))] > KEPT:
            del self._confirmed[oldest]

    async def wait_durable(self, ident: str) -> bool:
        """Waits for the confirmation of this hint's record. Returns False if there was none in time."""
        if ident in self._confirmed:
            del self._confirmed[ident]
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = future
        try:
            async with asyncio.timeout(TIMEOUT):
                return await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[ident]


class Confirmation:
    """The confirmation of one hint's record. It can be waited for several times."""

    def __init__(self, revisions: DurableRevisions, ident: str) -> None:
        self._revisions, self._ident = revisions, ident
        self._durable: bool | None = None

    async def wait(self) -> bool:
        """Returns whether the record is durable."""
        if self._durable is None:
            self._durable = await self._revisions.wait_durable(self._ident)
        return self._durable
