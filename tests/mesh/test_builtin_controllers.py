"""Runs the built-in controllers as workers, each with the permissions of its own user, on a fleet of the inventory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest_asyncio

from moorage.bus import Bus, NoAnswer, subjects
from moorage.candidates.decode import decode_answer
from moorage.cli.workers import load
from moorage.mesh.discovery import installed
from moorage.model.base import Model
from moorage.model.candidates import Answer, Ask
from moorage.model.reports import Report
from moorage.model.shapes import Intent, Shape, ShapedApp
from moorage_testkit.fleets import node
from moorage_testkit.running_workers import running_workers
from moorage_testkit.servers import NatsServer, RedisServer

CLUSTERS = ["lab/large", "lab/small"]


@pytest_asyncio.fixture
async def controllers(secure_nats: NatsServer, redis: RedisServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(secure_nats.settings("admin"), worker="admin")
    await bus.provision(installed().stores.values())
    kinds = ("intents", "inventory", "hpa", "labels", "affinity", "topology", "resource-class")
    try:
        async with running_workers(*(load(kind)(secure_nats.settings(kind, redis.url)) for kind in kinds)) as workers:
            for name, cpu in zip(CLUSTERS, ("8", "2"), strict=True):
                report = Report(session="s", seq=1, kind="full", nodes=[node("n-0", cpu=cpu, memory="8Gi")], as_of=1)
                await asked(bus, subjects.reports(name, "agent"), report, workers)
            # Workers that are stopped before they are up may miss the signal.
            for kind in ("hpa", "labels", "affinity", "topology", "resource-class"):
                await asked(bus, f"$SRV.PING.moorage-{kind}", Model(), workers)
            yield bus
    finally:
        await bus.close()


async def asked(
    bus: Bus, subject: str, payload: msgspec.Struct, workers: list[asyncio.Task[None]] | None = None
) -> Any:
    """Returns the answer as soon as the subject is served."""
    async with asyncio.timeout(60):
        while True:
            for worker in workers or []:
                if worker.done():
                    worker.result()
            with contextlib.suppress(NoAnswer):
                return msgspec.json.decode(await bus.request(subject, payload, timeout=10))
            await asyncio.sleep(0.05)


async def allowed(bus: Bus, name: str, ask: Ask) -> set[int]:
    """Returns the ids of the clusters that the controller allows, once it has seen both clusters."""
    answer = msgspec.convert(await asked(bus, subjects.candidates(name), ask), Answer)
    assert not answer.error, answer.error
    mask = decode_answer(answer, ["a"], {}, len(CLUSTERS)).apps[0].allowed
    return set(range(len(CLUSTERS))) if mask is None else {i for i in range(len(CLUSTERS)) if mask[i]}


async def settles(bus: Bus, name: str, ask: Ask, count: int) -> set[int]:
    async with asyncio.timeout(60):
        while len(found := await allowed(bus, name, ask)) != count:  # noqa: ASYNC110 - the fleet is followed in another process
            await asyncio.sleep(0.05)
    return found


async def test_each_built_in_controller_answers_for_its_rules(controllers: Bus) -> None:
    shape = Shape(key="s", object="Deployment/a", resources={"cpu": 4000, "pods": 1})
    intents = [
        Intent(
            kind="PlacementIntent",
            name="p",
            spec=msgspec.Raw(b'{"group": "g", "app": "a", "allOf": [{"cluster": "lab/small"}]}'),
        ),
        Intent(kind="AffinityIntent", name="x", spec=msgspec.Raw(b'{"group": "g", "rules": []}')),
    ]
    ask = Ask(
        id="1",
        group="p/a/v1/g",
        revision=1,
        budget_ms=5000,
        epoch="",
        tenant="p",
        apps=[ShapedApp(name="a", shapes=[shape])],
        intents=intents,
    )
    fits = await settles(controllers, "hpa", ask, 1)
    placed = await settles(controllers, "labels", ask, 1)
    assert fits != placed, "the large cluster has room, the small one is the place meant"
    assert await allowed(controllers, "affinity", ask) == {0, 1}
