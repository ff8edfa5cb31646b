"""Which revisions are durable: a hint may come while its record is still being written, so that asking and writing go on
at the same time; nothing is committed for it before the intent store has said that the record stands."""

from __future__ import annotations

import asyncio

import msgspec

from moorage.collections import LruDict
from moorage.model.groups import Stored

#: A record that is not confirmed this soon is left to whoever looks after what waits: he reads what is stored.
WITHIN = 1.0
#: More than hints that can wait for their turn.
_REMEMBERED = 1 << 15

_decode = msgspec.json.Decoder(Stored).decode


class DurableRevisions:
    def __init__(self) -> None:
        self._heard = LruDict[str, None](_REMEMBERED)
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    def record_stored(self, _subject: str, data: bytes) -> None:
        ident = _decode(data).id
        future = self._waiting.get(ident)
        if future is not None:
            if not future.done():
                future.set_result(True)
            return
        self._heard[ident] = None

    async def wait_durable(self, ident: str) -> bool:
        """Whether the record of this hint is durable; waits for the word, not for long."""
        if ident in self._heard:
            del self._heard[ident]
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = future
        try:
            async with asyncio.timeout(WITHIN):
                return await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[ident]
