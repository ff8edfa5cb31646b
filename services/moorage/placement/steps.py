"""Makes long answers in steps, so that no request keeps the event loop for long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Generator

from .core.call import Answer

#: Seconds for which a long answer keeps the event loop at a time.
SLICE_SECONDS = 0.02


#: Gives an answer, or makes it in steps.
Operation = Callable[[], Answer | Generator[None, None, Answer]]


class Steps:
    """Runs operations. Trees must not change while an answer is made in steps: an operation that changes them waits for
    those answers, and no other one begins meanwhile."""

    def __init__(self, sync: Callable[[], None] = lambda: None) -> None:
        self._sync = sync
        self._answering = 0
        self._waiting = 0  # operations that would change trees
        self._moved = asyncio.Event()

    async def run(self, operation: Operation) -> Answer:
        """Returns the operation's answer. Nothing else runs between that and the caller's next step."""
        self.sync()
        found = operation()
        if not isinstance(found, Answer):
            return await self._finish(found)
        if not self._answering or found.change is None or not found.change.has_trees:
            return found
        self._waiting += 1
        try:
            while self._answering:
                await self._moved.wait()
            self.sync()
            found = operation()
            assert isinstance(found, Answer)
            return found
        finally:
            self._waiting -= 1
            self._wake()

    def sync(self) -> None:
        """Brings trees up to date that others change, unless an answer is being made of them."""
        if not self._answering:
            self._sync()

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
        while self._waiting:
            await self._moved.wait()
        self._answering += 1
        try:
            return await _run_in_slices(steps)
        finally:
            self._answering -= 1
            self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


async def _run_in_slices(steps: Generator[None, None, Answer]) -> Answer:
    since = time.monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        if time.monotonic() - since > SLICE_SECONDS:
            await asyncio.sleep(0)
            since = time.monotonic()
