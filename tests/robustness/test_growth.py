"""Applications of ever new names come and go: no process grows with the number of those that ever were."""

from __future__ import annotations

import pytest

from moorage.mesh import Bucket, ObjectStore, Stream, stores
from moorage.mesh.discovery import installed
from moorage_testkit.growth import Turnover
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, fleet

from .conftest import MakeMesh

#: Groups after which memory is measured first and last. Caches are full by the first time, and what is forgotten after a time is
#: forgotten as fast as it comes.
FIRST, LAST, PER_SECOND = 10_000, 100_000, 40
#: Groups that come and go while memory is measured.
MEASURED = 6_000
#: Kilobytes by which any process may differ, beside a tenth of what it had.
NOISE = 4096


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(fleet(20, 64))


async def test_streams_keep_nothing_of_groups_that_came_and_went(mesh: Mesh, driver: MeshClient) -> None:
    """Checks that markers of deleted keys expire, and that everything else has a limit or is cut."""
    await Turnover(driver, 4, 1_000).until(120)
    listed = await driver.bus.nc.jetstream().streams_info()
    found = {info.config.name: info for info in listed}
    for store in installed().stores.values():
        config, state = found[store.stream].config, found[store.stream].state
        match store:
            case Bucket():
                assert config.max_msgs_per_subject == 1 and config.allow_msg_ttl, store.name
            case Stream() if store.name == stores.LEDGER:
                assert not store.limited, "snapshots cut it"
            case Stream():
                assert (config.max_age or 0) > 0 or max(config.max_msgs or 0, config.max_bytes or 0) > 0, store.name
            case ObjectStore():
                assert state.messages <= 8, "objects that are replaced leave nothing"
    assert (await driver.phases()) == {}
    values = found["KV_moorage-desired"].state.bytes
    assert values < 120 * 512, "of a deleted group only a marker is there"


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
async def test_memory_does_not_grow_with_the_groups_that_ever_were(mesh: Mesh, driver: MeshClient) -> None:
    groups = Turnover(driver, 8, PER_SECOND)
    await groups.until(FIRST)
    before = await groups.least_memory(mesh, FIRST + MEASURED)
    await groups.until(LAST - MEASURED)
    after = await groups.least_memory(mesh, LAST)
    grown = {worker: (before[worker], after[worker]) for worker in before}
    assert {worker: sizes for worker, sizes in grown.items() if sizes[1] > sizes[0] * 1.1 + NOISE} == {}
