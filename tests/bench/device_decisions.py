"""Decisions about pods with two needs for devices, beside the same pods without, on the same fleet; and how many a second.

Once nodes are equal, once each device has a uuid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from moorage.bus import Bus
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application as deployment

from .decisions import NODES, fleet
from .harness import CpuTimes, Figure, percentiles
from .workload import Decisions

CLUSTERS = 1_000
DEVICES = 8
TIMES = 100
TOTAL, IN_FLIGHT = 1_000, 64
_SORTS = 5


def _device(number: int, held: int) -> dict[str, Any]:
    if number % 2:
        return {
            "name": f"nic-{number}",
            "kind": "nic",
            "shared": True,
            "properties": {"speed": "40Gbps", "numa": number // 4},
        }
    model = "B" if number == 6 else "A"
    used = 1 if number // 2 < held else 0
    properties = {"memory": "80Gi", "model": model, "numa": number // 4}
    return {"name": f"gpu-{number}", "kind": "nvidia-gpu", "vendor": "nvidia", "properties": properties, "used": used}


def fleet_file(*, uuids: bool = False) -> dict[str, Any]:
    """Returns clusters of five sorts, with nodes of two: of some, devices are held. With `uuids` each device has one."""

    def node(name: str, held: int) -> dict[str, Any]:
        devices = [_device(number, held) for number in range(DEVICES)]
        return {"name": name, "count": NODES // 2, "allocatable": {"cpu": "64", "memory": "256Gi"}, "devices": devices}

    clusters = [
        {
            "name": f"c{sort}",
            "provider": "bench",
            "count": CLUSTERS // _SORTS,
            "nodes": [node("a", sort % 3), node("b", (sort + 1) % 3)],
        }
        for sort in range(_SORTS)
    ]
    return {"kind": "Fleet", "clusters": [*map(_with_uuids, _each_of(clusters))] if uuids else clusters}


def _each_of(sorts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields clusters and nodes one by one."""
    for sort in sorts:
        for number in range(sort["count"]):
            nodes = [{**n, "name": f"{n['name']}-{i}", "count": 1} for n in sort["nodes"] for i in range(n["count"])]
            yield {**sort, "name": f"{sort['name']}-{number}", "count": 1, "nodes": nodes}


def _with_uuids(cluster: dict[str, Any]) -> dict[str, Any]:
    for node in cluster["nodes"]:
        node["devices"] = [
            {**one, "properties": {**one["properties"], "uuid": f"{cluster['name']}/{node['name']}/{one['name']}"}}
            for one in node["devices"]
        ]
    return cluster


def class_object(name: str, **requirements: tuple[str, str]) -> bytes:
    expressions = [{"key": k, "operator": o, "values": [v]} for k, (o, v) in requirements.items()]
    spec = {"resourceSelector": [{"matchExpressions": expressions}]}
    return msgspec.json.encode({"kind": "ResourceClass", "metadata": {"name": name}, "spec": spec})


async def apply_classes(bus: Bus) -> None:
    """Makes the classes of which documents ask for devices."""
    for one in (
        class_object("big", Kind=("In", "nvidia-gpu"), memory=("GtEq", "40Gi")),
        class_object("fast", Kind=("In", "nic"), speed=("GtEq", "10Gbps")),
    ):
        await bus.request("moorage.intents.apply", one)


def document(name: str, *, devices: bool, project: str = "", pods: int = 1) -> bytes:
    found = deployment(name, cpu="100m", pods=pods)
    if project:
        found["metadata"]["project"] = project
    if devices:
        app = found["spec"]["apps"][0]
        (consumer,) = app.get("consumers") or [
            {"object": {"kind": "Deployment", "name": app["manifests"][0]["metadata"]["name"]}}
        ]
        needs = [{"name": "gpu", "class": "big"}, {"name": "nic", "class": "fast", "count": "100m"}]
        app["consumers"] = [{**consumer, "needs": [*consumer.get("needs", []), *needs]}]
    return msgspec.json.encode(found)


async def device_decisions() -> list[Figure]:
    return [*await _figures(uuids=False), *await _figures(uuids=True)]


async def _figures(*, uuids: bool) -> list[Figure]:
    of_uuids = ", each with a uuid" if uuids else ""
    samples: dict[bool, list[float]] = {False: [], True: []}
    with Mesh() as mesh:
        file = mesh.state / "fleet.json"
        file.write_bytes(msgspec.json.encode(fleet_file(uuids=uuids)))
        async with fleet(mesh, CLUSTERS, file=file) as simulated:
            bus = await Bus.connect(mesh.settings, worker="admin")
            asked = Decisions(bus)
            await asked.start()
            await apply_classes(bus)
            for i in range(-20, TIMES):
                for devices in (False, True):
                    name = f"{'with' if devices else 'without'}-{i}"
                    phase, took = await asked.decide(name, document(name, devices=devices))
                    if phase != "placed" and i >= 0:
                        raise RuntimeError(f"{name} is {phase}")
                    if i >= 0:
                        samples[devices].append(took)
            gate = asyncio.Semaphore(IN_FLIGHT)

            async def one_of_many(i: int) -> None:
                async with gate:
                    await asked.decide(f"many-{i}", document(f"many-{i}", devices=True))

            cpu = CpuTimes(mesh, fleet=simulated.pid)
            began = time.perf_counter()
            await asyncio.gather(*(one_of_many(i) for i in range(TOTAL)))
            rate = TOTAL / (time.perf_counter() - began)
            used = cpu.each(TOTAL)
            await bus.close()
    plain, _ = percentiles(samples[False])
    found, worst = percentiles(samples[True])
    return [
        Figure(
            name=f"decision with two needs for devices, {CLUSTERS:,} clusters x {NODES} nodes x {DEVICES} devices{of_uuids}",
            n=TIMES,
            p50=found,
            p99=worst,
            floor=plain,
            floor_parts={"the same without": plain},
            ratio=found / plain,
            goal="p50 <= 2 x the same without",
            ok=found <= 2 * plain,
        ),
        Figure(
            name=f"decisions per second with two needs for devices{of_uuids}, {IN_FLIGHT} in flight",
            n=TOTAL,
            p50=1e3 / rate,
            p99=0,
            ratio=rate / 250,
            floor_parts={"decisions/s": rate},
            goal=">= 250 decisions/s",
            ok=rate >= 250,
            cpu=used,
        ),
    ]
