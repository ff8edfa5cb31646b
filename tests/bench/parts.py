"""Decisions about the inside of nodes, beside the plain example on the same fleet; and how soon what a zone gives back is used."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from moorage.bus import Bus, subjects
from moorage.bus.server import encode
from moorage.model.part_reports import ProviderReport, ZoneReport
from moorage.model.reports import NodeReport, Report
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application as deployment

from .decisions import NODES, fleet
from .harness import Figure, Floor, beside, percentiles
from .workload import Decisions, application, example

CLUSTERS = 1_000
TIMES = 150
#: Groups that wait for a zone, one at a time.
WAITING = 100
_HEAD = {"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1"}
_ZONE = {"required": ["HW_NUMA_ROOT"]}


def _node(name: str, count: int, used: int) -> dict[str, Any]:
    """Returns nodes with six parts: two zones, what is tied to none, and three cards. So many cores of the first are in use."""
    card = {"inventories": {"FPGA": 1}}
    zones = [{"id": f"numa{zone}", "resources": {"cpu": 16, "memory": "32Gi"}} for zone in range(2)]
    zones[0]["used"] = {"cpu": used}
    return {
        "name": name,
        "count": count,
        "allocatable": {"cpu": "32", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2", "intel.com/qat": "16"},
        "zones": zones,
        "providers": [
            {"name": "fpga0", "zone": "numa0", **card},
            {"name": "fpga1", "zone": "numa1", **card},
            {"name": "fpga2", "zone": "numa1", **card},
        ],
    }


def _fleet_file(clusters: int) -> dict[str, Any]:
    """Returns clusters of five sorts, with nodes of two."""
    sorts = 5
    return {
        **_HEAD,
        "clusters": [
            {
                "name": f"c{sort}",
                "provider": "bench",
                "count": clusters // sorts,
                "nodes": [_node("a", NODES // 2, sort), _node("b", NODES // 2, sort + 2)],
            }
            for sort in range(sorts)
        ],
    }


def _in_one_zone() -> dict[str, Any]:
    """Returns the example whose firewall needs its cores and a card below one zone."""
    document = copy.deepcopy(example())
    consumer = document["spec"]["apps"][0]["consumers"][0]
    for need in consumer["needs"]:
        if need["resource"] == "cpu":
            need["group"] = "_C"
    consumer["needs"].append({"resource": "FPGA", "requests": 1, "group": "_A"})
    consumer["topology"] = {"groups": {"_Z": _ZONE}, "sameSubtree": [["_C", "_A", "_Z"]]}
    return document


async def decisions() -> list[Figure]:
    with Mesh() as mesh:
        file = mesh.state / "fleet.json"
        file.write_bytes(msgspec.json.encode(_fleet_file(CLUSTERS)))
        async with fleet(mesh, CLUSTERS, file=file), _asked(mesh) as (_, asked):
            documents = {"plain": example(), "zone": _in_one_zone()}
            samples: dict[str, list[float]] = {name: [] for name in documents}
            async with beside(mesh.settings, "tests.bench.echo") as (same, _):
                floors = Floor(same, CLUSTERS * NODES)
                for i in range(-20, TIMES):
                    for name, document in documents.items():
                        ident = f"{name}-{i}"
                        runs = asyncio.create_task(asked.running(ident, timeout=120))
                        phase, took = await asked.decide(ident, application(ident, base=document))
                        if i >= 0 and phase != "placed":  # the first ones may wait for controllers that are not warm
                            raise RuntimeError(f"{ident} is {phase}")
                        await runs  # one at a time
                        if i >= 0:
                            samples[name].append(took)
                            await floors.sample()
    parts = floors.parts()
    floor = sum(parts.values())
    plain, worst = percentiles(samples["plain"])
    zone, zone_worst = percentiles(samples["zone"])
    what = f"{CLUSTERS:,} clusters x {NODES} nodes x 6 parts"
    return [
        Figure(
            name=f"decision of the plain example at {what}",
            n=TIMES,
            p50=plain,
            p99=worst,
            floor=floor,
            floor_parts=parts,
            ratio=plain / floor,
            goal="p50 <= 3 x floor, p99 <= 4 x p50",
            ok=plain <= 3 * floor and worst <= 4 * plain,
        ),
        Figure(
            name=f"decision of the example with two groups below one zone at {what}",
            n=TIMES,
            p50=zone,
            p99=zone_worst,
            floor=plain,
            floor_parts={"the plain example": plain},
            ratio=zone / plain,
            goal="p50 <= 2 x the plain example",
            ok=zone <= 2 * plain,
        ),
    ]


@asynccontextmanager
async def _asked(mesh: Mesh) -> AsyncIterator[tuple[Bus, Decisions]]:
    bus = await Bus.connect(mesh.settings, worker="admin")
    decisions = Decisions(bus)
    await decisions.start()
    try:
        yield bus, decisions
    finally:
        await bus.close()


class _Cluster:
    """A cluster of one node as its agent reports it. Strangers use its zone, or do not any more."""

    def __init__(self, number: int) -> None:
        self.name, self.session, self.seq = f"bench/z{number}", f"z{number}", 0

    async def report(self, bus: Bus, used: str) -> None:
        self.seq += 1
        room = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        node = NodeReport(
            name="n",
            uid="n",
            allocatable=room,
            capacity=room,
            zones=[ZoneReport(id=0, inventories={"cpu": "4"}), ZoneReport(id=1, inventories={"cpu": "1"})],
            providers=[ProviderReport(id="card", parent=0, inventories={"FPGA": "1"})],
            in_use={"numa-0": {"cpu": used}},
            requested={"cpu": used},
        )
        data = encode(
            Report(session=self.session, seq=self.seq, kind="full" if self.seq == 1 else "delta", nodes=[node])
        )
        answer = msgspec.json.decode(await bus.request(subjects.reports(self.name, "agent"), data, timeout=30))
        if answer.get("refused") or answer.get("problem") or answer.get("resync"):
            raise RuntimeError(f"refused: {answer}")


def _waiting(number: int) -> bytes:
    document = deployment(f"w{number}", cpu="2", on=f"bench/z{number}")
    (consumer,) = document["spec"]["apps"][0]["consumers"]
    consumer["needs"] = [
        {"resource": "cpu", "requests": 2, "group": "_C"},
        {"resource": "FPGA", "requests": 1, "group": "_A"},
    ]
    consumer["topology"] = {"groups": {"_Z": _ZONE}, "sameSubtree": [["_C", "_A", "_Z"]]}
    return msgspec.json.encode(document)


async def wakes() -> list[Figure]:
    """From the report that a zone has room until the group that waited for it is placed."""
    samples = []
    with Mesh() as mesh:
        async with _asked(mesh) as (bus, asked):
            for number in range(WAITING):
                cluster = _Cluster(number)
                await cluster.report(bus, "3")
                phase, _ = await asked.decide(f"w{number}", _waiting(number))
                if phase != "pending":
                    raise RuntimeError(f"w{number} is {phase}")
                await asyncio.sleep(0.1)  # each waits for a while
                placed = asked.awaited(f"w{number}", "placed", "failed")
                start = time.perf_counter()
                await cluster.report(bus, "0")
                async with asyncio.timeout(60):
                    phase, at = await placed
                if phase != "placed":
                    raise RuntimeError(f"w{number} is {phase}")
                samples.append((at - start) * 1e3)
    return [Figure.of("use of a zone goes down until a waiting group is placed", samples, "p99 <= 400 ms", p99=400)]
