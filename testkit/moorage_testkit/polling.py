"""Waits until a condition holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: Seconds between two looks: what one takes, within these.
PAUSE, LONGEST_PAUSE = 0.05, 0.5
#: A busy machine may need so many seconds for what takes a moment on a quiet one. What has to be quick is timed by its test.
LEAST = 60.0


async def until(condition: Callable[[], bool], seconds: float = 40, what: str = "") -> None:
    seconds = max(seconds, LEAST)
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the condition cannot signal
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what or condition}") from None


def wait_until(condition: Callable[[], T], what: str | Callable[[], object] = "", within: float = 40) -> T:
    """Waits where no loop runs, and returns what the condition returned."""
    within = max(within, LEAST)
    end = time.monotonic() + within
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        if now >= end:
            raise AssertionError(f"not within {within:g} s: {(what() if callable(what) else what) or condition}")
        # A condition that runs a command must not keep a core busy.
        time.sleep(min(max(PAUSE, now - began), LONGEST_PAUSE))
