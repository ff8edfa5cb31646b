"""Runs the simulator beside the real inventory, a real broker and a real Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from moorage.bus import Bus, NoAnswer, subjects
from moorage.fleet import Fleet, FleetFollower
from moorage.model.events import Event
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer, RedisServer

RUN = (
    "import asyncio,sys; from moorage.bus import Settings; from moorage.{0} import {1};"
    "asyncio.run({1}(Settings(sys.argv[1], '', sys.argv[2]){2}))"
)
LAB: dict[str, Any] = {
    "clusters": [
        {
            "name": "edge",
            "provider": "lab",
            "count": 3,
            "labels": {"region": "eu"},
            "nodes": [{"name": "n", "count": 2, "allocatable": {"cpu": "4", "memory": "8Gi"}}],
        }
    ]
}


class World:
    def __init__(self, nats: NatsServer, redis: RedisServer, bus: Bus) -> None:
        self.nats, self.redis, self.bus = nats, redis, bus
        self.processes: list[subprocess.Popen[bytes]] = []
        self.fleet = Fleet()
        self.events: list[str] = []

    def start(self, module: str, function: str = "main", arguments: str = "") -> subprocess.Popen[bytes]:
        code = RUN.format(module, function, arguments)
        process = subprocess.Popen([sys.executable, "-c", code, self.nats.url, self.redis.url])
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    async def ask(self, subject: str, body: Any, timeout: float = 30) -> Any:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return msgspec.json.decode(await self.bus.request(subject, data, timeout=timeout))

    def states(self) -> dict[str, str]:
        fleet = self.fleet
        return {name: fleet.state(cid) for name, cid in fleet.ids.items() if fleet.known[cid]}


@pytest_asyncio.fixture
async def world(nats: NatsServer, redis: RedisServer, bus: Bus) -> AsyncIterator[World]:
    made = World(nats, redis, bus)
    await bus.subscribe("moorage.events.fleet.>", lambda subject, _data: made.events.append(subject))
    made.start("inventory.worker")
    made.start("sim.worker")
    # Both serve before the first request.
    for kind in ("inventory", "sim"):
        await _ready(bus, kind)
    follower = FleetFollower(redis.url, made.fleet)
    await follower.start()
    yield made
    await follower.stop()
    made.end()


async def _ready(bus: Bus, kind: str) -> None:
    for _ in range(1200):
        try:
            await bus.request(f"$SRV.PING.moorage-{kind}", b"", timeout=1)
            return
        except NoAnswer:
            await asyncio.sleep(0.05)
    raise AssertionError(f"{kind} never came up")


async def test_fleet_apply_returns_when_the_inventory_has_it(world: World) -> None:
    causes: set[str] = set()
    await world.bus.subscribe(
        "moorage.events.fleet.joined.>", lambda _, data: causes.add(msgspec.json.decode(data, type=Event).cause)
    )
    answer = await world.ask(subjects.SIM_APPLY, LAB)
    assert answer["clusters"] == ["lab/edge-0", "lab/edge-1", "lab/edge-2"]
    assert (answer["accepted"], answer["added"], answer["refused"]) == (True, 3, {})
    await until(lambda: world.states() == dict.fromkeys(answer["clusters"], "Ready"))
    await until(lambda: len(causes) == 3 and "" not in causes, what="which report it was is said")
    smaller = {"clusters": [LAB["clusters"][0] | {"count": 2, "labels": {"region": "us"}}]}
    answer = await world.ask(subjects.SIM_APPLY, smaller)
    assert (answer["added"], answer["changed"], answer["removed"]) == (0, 2, 1)
    await until(lambda: set(world.states()) == {"lab/edge-0", "lab/edge-1"})
    await until(lambda: world.fleet.cluster_labels(world.fleet.ids["lab/edge-0"])["region"] == "us")
    answer = await world.ask(subjects.SIM_APPLY, smaller)
    assert (answer["added"], answer["changed"], answer["removed"]) == (0, 0, 0)
    answer = await world.ask(subjects.SIM_APPLY, LAB)
    assert (answer["added"], answer["changed"], answer["refused"]) == (1, 2, {})
    await until(lambda: len(world.states()) == 3)


async def test_an_invalid_fleet_is_refused_as_a_whole(world: World) -> None:
    answer = await world.ask(subjects.SIM_APPLY, {"clusters": [{"nam": "x"}, LAB["clusters"][0]]})
    assert {e["path"] for e in answer["problem"]["errors"]} == {"clusters[0].nam", "clusters[0].name"}
    assert (await world.ask(subjects.SIM_LIST, b""))["total"] == 0


async def test_a_second_simulator_of_a_cluster_is_refused(world: World) -> None:
    await world.ask(subjects.SIM_APPLY, LAB)
    other = {"clusters": [LAB["clusters"][0], {"name": "own", "provider": "lab"}]}
    world.start("sim.foreground", "simulate", f", fleet={other!r}")
    await until(lambda: "lab/own" in world.states())
    listed = await world.ask(subjects.SIM_LIST, {"limit": 10})
    assert {row["state"] for row in listed["items"]} == {"known"}
    assert listed["total"] == 3
    # Faults reach the simulator that has the cluster.
    body = {"cluster": "lab/own", "fault": "silent", "seconds": 60}
    assert (await world.ask(subjects.SIM_FAULT, body))["accepted"]
    await until(lambda: world.states()["lab/own"] == "Stale", 15)
    await until(lambda: world.states()["lab/edge-0"] == "Ready")


async def test_faults_have_their_effects(world: World) -> None:
    await world.ask(subjects.SIM_APPLY, LAB)
    await until(lambda: len(world.states()) == 3)
    body = {"cluster": "lab/edge-1", "fault": "silent", "seconds": 14}
    assert (await world.ask(subjects.SIM_FAULT, body))["accepted"]
    await until(lambda: world.states()["lab/edge-1"] == "Stale", 15)
    await until(lambda: world.states()["lab/edge-1"] == "Ready", 15)
    answer = await world.ask(subjects.SIM_FAULT, {"cluster": "lab/none", "fault": "silent"})
    assert answer["problem"]["code"] == "NotFound"
    answer = await world.ask(subjects.SIM_FAULT, {"cluster": "lab/edge-1", "fault": "dance", "seconds": -1})
    assert {e["path"] for e in answer["problem"]["errors"]} == {"fault", "seconds"}


async def test_a_restarted_simulator_takes_its_fleet_over(world: World) -> None:
    def joined() -> list[str]:
        return sorted(event for event in world.events if ".joined." in event)

    await world.ask(subjects.SIM_APPLY, LAB)
    await until(lambda: len(world.states()) == 3 and len(joined()) == 3)
    before = joined()
    sim = world.processes[-1]
    os.kill(sim.pid, signal.SIGKILL)
    sim.wait()
    world.start("sim.worker")
    await _ready(world.bus, "sim")
    answer = await world.ask(subjects.SIM_APPLY, LAB)
    assert (answer["added"], answer["changed"], answer["refused"]) == (0, 0, {})
    # On a busy machine the start takes longer than clusters may be silent; then they are stale in between.
    await until(lambda: world.states() == dict.fromkeys(answer["clusters"], "Ready"))
    assert joined() == before and not [event for event in world.events if ".gone." in event]


@pytest.mark.parametrize("subject", [subjects.SIM_APPLY, subjects.SIM_FAULT, subjects.SIM_LIST])
async def test_unreadable_messages_are_answered(world: World, subject: str) -> None:
    for body in (b"{", b"\xff", b"[1]", b"null", b'{"limit": "x", "clusters": 1}', b"[" * 5000):
        answer = await world.ask(subject, body)
        assert "problem" in answer or subject == subjects.SIM_LIST, body
        assert (await world.ask(subjects.SIM_LIST, {}))["total"] == 0, body
