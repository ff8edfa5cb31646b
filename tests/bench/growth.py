"""Memory of each kind of process while applications of ever new names come and go."""

from __future__ import annotations

import os
import tempfile

import msgspec

from moorage_testkit.growth import Turnover
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, fleet

from .harness import Figure

FIRST, PER_SECOND = 10_000, 60
#: The part of them during which memory is measured: the broker's garbage is collected every two minutes at the latest.
MEASURED = 0.1


async def growth() -> list[Figure]:
    """MOORAGE_BENCH_GROUPS: how many come and go in all, 100,000 unless it says otherwise. That takes half an hour."""
    last = int(os.environ.get("MOORAGE_BENCH_GROUPS", "100000"))
    first = min(FIRST, last // 2)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(msgspec.json.encode(fleet(20, 64)))
        file.flush()
        with Mesh("--fleet", file.name) as mesh:
            async with MeshClient(mesh) as driver:
                groups = Turnover(driver, 8, PER_SECOND)
                await groups.until(first)
                before = await groups.least_memory(mesh, int(first + last * MEASURED))
                await groups.until(int(last * (1 - MEASURED)))
                after = await groups.least_memory(mesh, last)
    return [
        Figure(
            name=f"memory of {worker} after {last:,} groups came and went",
            n=last,
            p50=after[worker] / 1024,
            p99=after[worker] / 1024,
            floor=before[worker] / 1024,
            ratio=after[worker] / before[worker],
            goal=f"<= 1.1 x that after {first:,}",
            ok=after[worker] <= before[worker] * 1.1,
            unit="MB",
        )
        for worker in before
    ]
