"""Events as they come, for any number of listeners: one subscription, and a bounded queue for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from moorage.bus import Bus

EVENTS = "moorage.events.>"
AREAS = ("intents", "fleet", "decisions")
_BACKLOG = 2048


def is_event_subject(pattern: str) -> bool:
    """A subject or pattern at or below `moorage.events`, well formed."""
    tokens = pattern.split(".")
    if tokens[:2] != ["moorage", "events"] or len(tokens) < 3:
        return False
    if ">" in tokens[:-1]:
        return False
    return all(token and (token in ("*", ">") or not set(token) & set("*> \t\r\n")) for token in tokens)


def matches(pattern: tuple[str, ...], subject: str) -> bool:
    """NATS wildcards: `*` one token, `>` one or more at the end."""
    tokens = subject.split(".")
    for number, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > number
        if number >= len(tokens) or (part != "*" and part != tokens[number]):
            return False
    return len(tokens) == len(pattern)


class Listener:
    """One reader. Who reads too slowly is cut off, and knows it; memory stays bounded."""

    def __init__(self, pattern: str) -> None:
        self.pattern = tuple(pattern.split("."))
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(_BACKLOG)
        self.lost = False

    def put(self, data: bytes | None) -> None:
        if self.lost:
            return
        if self.queue.full():
            self.lost = True
            self.queue.get_nowait()
            data = None
        self.queue.put_nowait(data)


class Stream:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listeners: set[Listener] = set()

    async def start(self) -> None:
        for area in AREAS:  # a user's rights are these; all below `moorage.events` would be more
            await self._bus.subscribe(f"moorage.events.{area}.>", self._heard)

    def _heard(self, subject: str, data: bytes) -> None:
        for listener in self._listeners:
            if matches(listener.pattern, subject):
                listener.put(data)

    @contextmanager
    def listening(self, pattern: str) -> Iterator[Listener]:
        listener = Listener(pattern)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def end(self) -> None:
        """Every reader is told that it is over: a shutdown waits for nobody."""
        for listener in self._listeners:
            if listener.queue.full():
                listener.queue.get_nowait()
            listener.queue.put_nowait(None)
