"""How many groups are decided at once. More than a few would only make each controller's queue, and so each decision,
longer; but one that waits for somebody slow has no use of its turn and gives it to the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 48
#: With those that gave their turn away.
AT_MOST = 1024
#: Seconds; what is not decided by then waits for somebody slow.
PATIENCE = 0.1


class ConcurrencyLimit:
    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._all = asyncio.Semaphore(AT_MOST)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self._all:
            await self._turns.acquire()
            given = False

            def give() -> None:
                nonlocal given
                given = True
                self._turns.release()

            timer = asyncio.get_running_loop().call_later(PATIENCE, give)
            try:
                yield
            finally:
                timer.cancel()
                if not given:
                    self._turns.release()
