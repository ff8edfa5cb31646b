"""The usage example of the design as a workload: the same application under many names, with shapes new or seen."""

from __future__ import annotations

import asyncio
import copy
import time
from importlib.resources import files
from typing import Any

import msgspec
import yaml

from moorage.bus import Bus
from moorage.model.names import untoken


def example() -> dict[str, Any]:
    text = files("moorage.cli").joinpath("example/application.yaml").read_text()
    document: dict[str, Any] = next(iter(yaml.safe_load_all(text)))
    return document


def application(name: str, *, new_shape: int = 0, base: dict[str, Any]) -> bytes:
    """`new_shape`: a number that makes the memory need one that was never asked for before."""
    document = copy.deepcopy(base)
    document["metadata"]["name"] = name
    if new_shape:
        for app in document["spec"]["apps"]:
            for consumer in app["consumers"]:
                for need in consumer["needs"]:
                    if need.get("resource") == "memory":
                        for field in ("requests", "limits"):
                            if field in need:
                                need[field] = f"{500_000 + new_shape}k"
                        need.pop("units", None)
    return msgspec.json.encode(document)


class Decisions:
    """Publishes intents and hears what became of them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: dict[str, tuple[asyncio.Future[tuple[str, float]], tuple[str, ...]]] = {}
        self._running: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        await self._bus.subscribe("moorage.events.decisions.>", self._heard)

    def _heard(self, subject: str, _data: bytes) -> None:
        _, _, _, phase, _project, app, *_ = subject.split(".")
        if phase == "running" and (event := self._running.get(untoken(app))) is not None:
            event.set()
        future, phases = self._waiting.get(untoken(app), (None, ()))
        if future is not None and phase in phases and not future.done():
            future.set_result((phase, time.perf_counter()))

    def awaited(self, name: str, *phases: str) -> asyncio.Future[tuple[str, float]]:
        """Returns which of these phases the group has next, and when that was heard."""
        future: asyncio.Future[tuple[str, float]] = asyncio.get_running_loop().create_future()
        self._waiting[name] = future, phases
        return future

    async def decide(self, name: str, document: bytes, *, timeout: float = 30) -> tuple[str, float]:
        """(phase, milliseconds from the publication of the intent to the decision's event)."""
        future = self.awaited(name, "placed", "pending", "failed")
        start = time.perf_counter()
        answer = msgspec.json.decode(await self._bus.request("moorage.intents.apply", document, timeout=timeout))
        if not answer.get("accepted"):
            raise RuntimeError(f"refused: {answer}")
        async with asyncio.timeout(timeout):
            phase, at = await future
        del self._waiting[name]
        return phase, (at - start) * 1e3

    async def running(self, name: str, *, timeout: float = 30) -> None:
        """Until it runs; to be called right after it was decided."""
        event = self._running[name] = asyncio.Event()
        async with asyncio.timeout(timeout):
            await event.wait()
        del self._running[name]
