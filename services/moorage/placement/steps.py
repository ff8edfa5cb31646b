"""Makes long answers in steps, so that no request keeps the event loop for long."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Generator

from .core.call import Answer, Made

#: Seconds for which a long answer keeps the event loop at a time.
SLICE_SECONDS = 0.02


#: Seconds for which answers may follow each other without a gap in which trees are brought up to date.
LATE = 1.0


#: Gives an answer, or makes it in steps.
Operation = Callable[[], Answer | Generator[None, None, Answer]]


class Steps:
    """Runs operations. Trees must not change while an answer is made in steps: an operation that changes them waits for
    those answers, and no other one begins meanwhile."""

    def __init__(self, sync: Callable[[], None] = lambda: None, refresh: Callable[[], object] = lambda: None) -> None:
        """`sync` writes trees that others change, while no answer is made of them; `refresh` counts what is free, at any time."""
        self._sync, self._refresh = sync, refresh
        self._synced_at = -math.inf
        self._answering = 0
        self._waiting = 0  # operations that would change trees
        self._has_turn = False  # an operation runs alone
        self._moved = asyncio.Event()
        self.asked_at = -math.inf  # when the last operation came, by the clock of the event loop

    async def run(self, operation: Operation) -> Answer:
        """Returns the operation's answer. Nothing else runs between that and the caller's next step."""
        self.asked_at = asyncio.get_running_loop().time()
        while self._has_turn:
            await self._moved.wait()
        self.sync()
        found = operation()
        if not isinstance(found, Answer):
            return await self._finish(found)
        if not self._answering or found.change is None or not found.change.has_trees:
            return found
        self._waiting += 1
        try:
            while self._answering or self._has_turn:
                await self._moved.wait()
            self.sync()
            found = operation()
            assert isinstance(found, Answer)
            return found
        finally:
            self._waiting -= 1
            self._wake()

    def sync(self) -> None:
        """Brings up to date what others change; trees only if no answer is being made of them."""
        self._refresh()
        if not self._answering and not self._has_turn:
            self._sync()
            self._synced_at = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Waits until no answer is made, and lets no operation begin meanwhile: a large change is made in steps."""
        while self._has_turn:
            await self._moved.wait()
        self._has_turn = True
        try:
            while self._answering:
                await self._moved.wait()
            self._sync()
            yield
        finally:
            self._has_turn = False
            self._wake()

    async def in_steps(self, operation: Operation) -> Answer:
        """Returns the answer of an operation that has its turn alone."""
        self._refresh()
        found = operation()
        return found if isinstance(found, Answer) else await run_in_slices(found)

    @contextlib.asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Waits until no answer is made of the trees, and lets none begin."""
        self._waiting += 1
        try:
            while self._answering:
                await self._moved.wait()
            yield
        finally:
            self._waiting -= 1
            self._wake()

    async def _finish(self, steps: Generator[None, None, Answer]) -> Answer:
        while self._waiting or self._has_turn or (self._answering and self._is_late()):
            await self._moved.wait()
            self.sync()
        self._answering += 1
        try:
            return await run_in_slices(steps)
        finally:
            self._answering -= 1
            self._wake()

    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() - self._synced_at > LATE

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


async def run_in_slices(steps: Generator[None, None, Made]) -> Made:
    """Makes steps, and lets others run in between. Returns what the steps return."""
    since = time.monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Made = end.value
            return made
        if time.monotonic() - since > SLICE_SECONDS:
            await asyncio.sleep(0)
            since = time.monotonic()
