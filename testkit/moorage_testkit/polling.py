"""Waits until a condition holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

#: A busy machine may need so many seconds for what takes a moment on a quiet one. What has to be quick is timed by its test.
LEAST = 30.0


async def until(condition: Callable[[], bool], seconds: float = 40, what: str = "") -> None:
    seconds = max(seconds, LEAST)
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the condition cannot signal
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what or condition}") from None


def wait_until(condition: Callable[[], object], what: str = "", within: float = 40) -> None:
    """Waits where no loop runs."""
    within = max(within, LEAST)
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within:g} s: {what or condition}"
        time.sleep(0.05)
