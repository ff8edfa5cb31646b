"""Decisions about pods with devices of a project that holds ten thousand of them by quota, beside those of one that holds none."""

from __future__ import annotations

import asyncio

import msgspec

from moorage.bus import Bus
from moorage_testkit.mesh import Mesh

from .decisions import fleet
from .device_decisions import CLUSTERS, apply_classes, document, fleet_file
from .harness import Figure, percentiles
from .workload import Decisions

HELD, PODS = 10_000, 25
TIMES = 200


def _quota(project: str) -> bytes:
    spec = {"projects": [project], "devices": [{"class": name, "count": 2 * HELD} for name in ("big", "fast", "*")]}
    return msgspec.json.encode({"kind": "DeviceQuota", "metadata": {"name": project}, "spec": spec})


async def device_quotas() -> list[Figure]:
    samples: dict[str, list[float]] = {"much": [], "none": []}
    with Mesh() as mesh:
        file = mesh.state / "fleet.json"
        file.write_bytes(msgspec.json.encode(fleet_file()))
        async with fleet(mesh, CLUSTERS, file=file):
            bus = await Bus.connect(mesh.settings, worker="admin")
            asked = Decisions(bus)
            await asked.start()
            await apply_classes(bus)
            for project in samples:
                await bus.request("moorage.intents.apply", _quota(project))
            gate = asyncio.Semaphore(8)

            async def hold(i: int) -> None:
                async with gate:
                    made = document(f"held-{i}", devices=True, project="much", pods=PODS)
                    phase, _ = await asked.decide(f"held-{i}", made)
                    if phase != "placed":  # others were faster
                        await asyncio.wait_for(asked.awaited(f"held-{i}", "placed"), 30)

            await asyncio.gather(*(hold(i) for i in range(HELD // 2 // PODS)))  # each pod has two devices
            await asyncio.sleep(5)  # the pods run
            for i in range(-20, TIMES):
                for project, found in sorted(samples.items(), reverse=bool(i % 2)):
                    name = f"{project}-{i}"
                    phase, took = await asked.decide(name, document(name, devices=True, project=project))
                    if phase != "placed":
                        raise RuntimeError(f"{name} is {phase}")
                    if i >= 0:
                        found.append(took)
            await bus.close()
    none, _ = percentiles(samples["none"])
    much, worst = percentiles(samples["much"])
    return [
        Figure(
            name=f"decision with two needs for devices of a project with a quota that holds {HELD:,} devices",
            n=TIMES,
            p50=much,
            p99=worst,
            floor=none,
            floor_parts={"of one that holds none": none},
            ratio=much / none,
            goal="p50 <= 1.05 x one that holds none",
            ok=much <= 1.05 * none,
        )
    ]
