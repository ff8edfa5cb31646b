"""Decisions with a need for a machine beside the same with CPU; and how many slots are granted in a second."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec

from moorage.bus import Bus, new_id, subjects
from moorage.model.machines import (
    GuestReport,
    Machine,
    MachineReport,
    MachinesSync,
    MachinesSynced,
    MachineType,
    PoolNode,
    PoolNodeReport,
    TypeSpec,
)
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application as deployment

from .decisions import NODES, fleet
from .harness import Figure, percentiles
from .workload import Decisions

CLUSTERS, TIMES = 1_000, 150
#: Of the clusters that ask for grants: their number, their nodes with slots, and the rounds.
ASKING, POOL, ROUNDS = 50, 4, 10
_SLOTS = {"group": "bench", "type": "large", "slots": 1, "cpu": 4, "memory": "8Gi"}


def _fleet_file() -> dict[str, Any]:
    room = {"cpu": "32", "memory": "64Gi"}
    nodes = [
        {"name": "m", "count": POOL, "allocatable": room, "machines": [_SLOTS]},
        {"name": "n", "count": NODES - POOL, "allocatable": room},
    ]
    clusters = [{"name": "c", "provider": "bench", "count": CLUSTERS, "nodes": nodes}]
    return {"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": clusters}


def _in_slots(name: str) -> bytes:
    """Returns an application of one pod that needs a machine."""
    document = deployment(name, cpu="1", pods=1)
    manifest = document["spec"]["apps"][0]["manifests"][0]
    consumer = {
        "object": {key: manifest[key] for key in ("apiVersion", "kind")} | {"name": manifest["metadata"]["name"]},
        "container": manifest["spec"]["template"]["spec"]["containers"][0]["name"],
        "needs": [{"machine": "bench/large"}],
    }
    document["spec"]["apps"][0]["consumers"] = [consumer]
    return msgspec.json.encode(document)


async def machine_decisions() -> list[Figure]:
    with Mesh() as mesh:
        file = mesh.state / "machines.json"
        file.write_text(json.dumps(_fleet_file()))
        async with fleet(mesh, CLUSTERS, file=file):
            bus = await Bus.connect(mesh.settings, worker="admin")
            await _reserved(mesh, CLUSTERS * POOL)
            decisions = Decisions(bus)
            await decisions.start()
            samples: dict[str, list[float]] = {"machine": [], "cpu": []}
            for number in range(TIMES + 20):
                for kind, made in (("machine", _in_slots), ("cpu", _with_cpu)):
                    name = f"{kind}-{number}"
                    phase, took = await decisions.decide(name, made(name))
                    if phase != "placed":
                        raise RuntimeError(f"{name} is {phase}")
                    await decisions.running(name)
                    if number >= 20:
                        samples[kind].append(took)
            await bus.close()
    plain, _ = percentiles(samples["cpu"])
    p50, p99 = percentiles(samples["machine"])
    figure = Figure(
        name=f"decision with a need for a machine, {CLUSTERS:,} clusters x {NODES} nodes",
        n=TIMES,
        p50=p50,
        p99=p99,
        floor=plain,
        floor_parts={"the same with cpu": plain},
        ratio=p50 / plain,
        goal="p50 <= 1.3 x the same with cpu",
        ok=p50 <= 1.3 * plain,
    )
    return [figure, await grants()]


def _with_cpu(name: str) -> bytes:
    return msgspec.json.encode(deployment(name, cpu="1", pods=1))


async def _reserved(mesh: Mesh, slots: int, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        machines = (await asyncio.to_thread(mesh.http, "/v1/machines?limit=5000"))["items"]
        usages = [kind["usage"] for machine in machines for kind in machine["status"]["availableMachines"]]
        if sum(usage.get("reserved", 0) for usage in usages) >= slots:
            return
        await asyncio.sleep(1)
    raise RuntimeError("slots are not reserved")


class _Cluster:
    """A cluster that reports guests: each round new ones come, and those of the round before are gone."""

    def __init__(self, bus: Bus, number: int, slots: int) -> None:
        self._bus, self.name, self._slots = bus, f"bench/c-{number}", slots
        self._sequence = self._generation = self._revision = 0
        self._round: list[str] = []

    async def begin(self) -> None:
        machine = Machine(
            name="grants",
            group="grants",
            node_pool=(PoolNode(name="n-0", machine_types=("small",)),),
            types=(MachineType(name="small", spec=TypeSpec(cpu="100m", memory="1Mi"), available=self._slots),),
        )
        report = MachineReport(name="grants", uid="g", machine=machine)
        await self._sync(full=True, machines=[report], nodes=[PoolNodeReport(name="n-0", condition="Ready")])

    async def next_round(self) -> int:
        gone, self._round = self._round, [new_id() for _ in range(self._slots)]
        guests = [
            GuestReport(uid=uid, namespace="b", name=uid, machine="grants/small", created_at="2026-01-01T00:00:00Z")
            for uid in self._round
        ]
        return len((await self._sync(guests=guests, guests_gone=gone)).grants)

    async def _sync(self, **fields: Any) -> MachinesSynced:
        self._sequence += 1
        report = MachinesSync(
            cluster=self.name,
            session="b",
            sequence=self._sequence,
            generation=self._generation,
            revision=self._revision,
            **fields,
        )
        answer = await self._bus.request(subjects.machines("sync", self.name), report, timeout=60)
        told = msgspec.json.decode(answer, type=MachinesSynced)
        if told.resync or told.refused:
            raise RuntimeError(told.refused or "resync")
        self._generation, self._revision = told.generation, told.revision
        return told


async def grants(slots: int = 20) -> Figure:
    """Each cluster asks for as many slots as it has, and asks again when it has them."""
    room = {"cpu": "32", "memory": "64Gi"}
    document = {
        "name": "c",
        "provider": "bench",
        "count": ASKING,
        "nodes": [{"name": "n", "count": 2, "allocatable": room}],
    }
    head = {"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1"}
    with Mesh() as mesh:
        file = mesh.state / "grants.json"
        file.write_text(json.dumps(head | {"clusters": [document]}))
        async with fleet(mesh, ASKING, file=file):
            bus = await Bus.connect(mesh.settings, worker="admin")
            clusters = [_Cluster(bus, number, slots) for number in range(ASKING)]
            await asyncio.gather(*(cluster.begin() for cluster in clusters))
            samples: list[float] = []

            async def ask(cluster: _Cluster) -> int:
                granted = 0
                for _ in range(ROUNDS):
                    start = time.perf_counter()
                    granted += await cluster.next_round()
                    samples.append((time.perf_counter() - start) * 1e3)
                return granted

            start = time.perf_counter()
            granted = sum(await asyncio.gather(*map(ask, clusters)))
            rate = granted / (time.perf_counter() - start)
            await bus.close()
    if granted < ASKING * slots * ROUNDS:
        raise RuntimeError(f"{granted} of {ASKING * slots * ROUNDS} slots were granted")
    p50, p99 = percentiles(samples)
    return Figure(
        name=f"slots granted in a second, {ASKING} clusters at once, durable",
        n=granted,
        p50=p50,
        p99=p99,
        floor=2_000,
        floor_parts={"grants/s": rate},
        ratio=rate / 2_000,
        goal=">= 2,000 grants/s",
        ok=rate >= 2_000,
    )
