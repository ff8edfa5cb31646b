"""Limits how many groups are decided at once. More would only lengthen the controllers' queues and so each decision. A
decision that waits for a slow controller gives its slot to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SLOTS = 48
#: Decisions under way, including those that gave their slot away.
MAX_DECISIONS = 1024
#: Seconds after which a decision gives its slot away.
PATIENCE = 0.1


class ConcurrencyLimit:
    """Gives out slots to decisions."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(SLOTS)
        self._all = asyncio.Semaphore(MAX_DECISIONS)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self._all:
            await self._slots.acquire()
            given_away = False

            def give_away() -> None:
                nonlocal given_away
                given_away = True
                self._slots.release()

            timer = asyncio.get_running_loop().call_later(PATIENCE, give_away)
            try:
                yield
            finally:
                timer.cancel()
                if not given_away:
                    self._slots.release()
