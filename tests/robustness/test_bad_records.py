"""Puts unreadable records into nearly every bucket: workers that mirror it use all the others."""

from __future__ import annotations

import pytest

from moorage.mesh import Bucket
from moorage.mesh.discovery import installed
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, fleet

from .conftest import MakeMesh

#: Without the bucket of groups, where an unreadable record makes the whole list unreadable at the gateway.
BESIDE = {"moorage-groups", "moorage-leases"}
#: Keys of the form that the bucket has, so that code that splits them is tested as well.
KEYS = {
    "moorage-groups": "default.junk-{}.v1.default",
    "moorage-revisions": "default.junk-{}.v1.default.1",
    "moorage-desired": "default.junk-{}.v1.default",
    "moorage-status": "default.junk-{}.v1.default",
    "moorage-clusters": "lab.junk-{}",
}
JUNK = {
    "bytes": b"\xff\xfe\x00",
    "nothing": b"",
    "cut": b'{"name": "x", "apps": [',
    "deep": b"[" * 100_000,
    "deeper": b'{"resolved":' * 100_000,
    "list": b"[1, 2]",
    "types": b'{"group": 7, "name": [], "id": {}, "revision": "x", "token": 0, "state": null, "kind": []}',
    "empty": b"{}",
}


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(fleet(2, 4))


async def works(driver: MeshClient, name: str) -> None:
    await driver.apply(application(name))
    await driver.until_phase(name, "Running", seconds=30)
    await driver.delete([name])


@pytest.mark.parametrize(
    "bucket", [s.name for s in installed().stores.values() if isinstance(s, Bucket) and s.name not in BESIDE]
)
async def test_unreadable_records_are_skipped(mesh: Mesh, driver: MeshClient, bucket: str) -> None:
    name = bucket.removeprefix("moorage-")
    restarts = mesh.restarts()
    keys = {KEYS.get(bucket, "junk-{}").format(what): data for what, data in JUNK.items()}
    for key, data in keys.items():
        await driver.bus.bucket(bucket).put(key, data)
    await works(driver, f"{name}-beside-junk")
    assert mesh.restarts() == restarts, "nobody had to be started again"
    for key in keys:
        await driver.bus.bucket(bucket).delete(key)
