"""Tracks which revisions are durable. A hint may arrive while its record is still being written, so that controllers are
asked meanwhile; nothing is committed for it before the intent store confirms the record."""

from __future__ import annotations

import asyncio

import msgspec

from moorage.collections import LruDict
from moorage.model.groups import Stored

#: Seconds to wait for a confirmation. After that the wait loop decides the group, because it reads the stored record.
TIMEOUT = 1.0
#: Confirmations that are kept: more than there can be queued hints.
_MAX_CONFIRMED = 1 << 15

_decode = msgspec.json.Decoder(Stored).decode


class DurableRevisions:
    """Matches the intent store's confirmations with the hints that wait for them."""

    def __init__(self) -> None:
        self._confirmed = LruDict[str, None](_MAX_CONFIRMED)
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    def record_stored(self, _subject: str, data: bytes) -> None:
        ident = _decode(data).id
        future = self._waiting.get(ident)
        if future is not None:
            if not future.done():
                future.set_result(True)
            return
        self._confirmed[ident] = None

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
