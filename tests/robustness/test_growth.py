"""Applications of ever new names come and go: no process grows with the number of those that ever were."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, fleet

from .conftest import MakeMesh

#: Groups after which memory is measured first and last. Caches are full by the first time.
FIRST, LAST = 10_000, 100_000
CLIENTS, AT_ONCE = 4, 10
#: Kilobytes by which any process may differ, beside a tenth of what it had.
NOISE = 4096


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(fleet(20, 64))


def memory(mesh: Mesh) -> dict[str, int]:
    """Returns the kilobytes that the processes of each kind do not share with others."""
    mesh.read_endpoint()
    found: dict[str, int] = {}
    for worker, pids in mesh.endpoint["pids"].items():
        for pid in pids:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            pss = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
            found[worker] = found.get(worker, 0) + int(pss.split()[1])
    return found


async def come_and_go(driver: MeshClient, client: int, groups: int) -> None:
    for first in range(0, groups, AT_ONCE):
        names = [f"g{client}-{first + i}" for i in range(AT_ONCE)]
        for name in names:
            await driver.apply(application(name))
        await driver.delete(names, seconds=300)


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
async def test_memory_does_not_grow_with_the_groups_that_ever_were(mesh: Mesh, driver: MeshClient) -> None:
    async def until_there_were(groups: int, since: int) -> dict[str, int]:
        each = (groups - since) // CLIENTS
        await asyncio.gather(*(come_and_go(driver, number + since, each) for number in range(CLIENTS)))
        return await asyncio.to_thread(memory, mesh)

    before = await until_there_were(FIRST, 0)
    after = await until_there_were(LAST, FIRST)
    grown = {worker: (before[worker], after[worker]) for worker in before}
    assert {worker: sizes for worker, sizes in grown.items() if sizes[1] > sizes[0] * 1.1 + NOISE} == {}
