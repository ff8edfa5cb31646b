"""The worker `slots` is killed after grants are in the log and before any cluster is told: each guest still has one slot."""

from __future__ import annotations

from urllib.error import HTTPError

import pytest

from moorage.ledger import open_ledger
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient
from moorage_testkit.polling import until

from .conftest import MakeMesh

SLOTS, AT_ONCE, ROUNDS = 6, 4, 2
MACHINE = {"group": "g", "type": "a", "slots": 3, "cpu": 2, "memory": "2Gi"}
NODES = [{"name": "n", "count": 2, "allocatable": {"cpu": "8", "memory": "64Gi"}, "machines": [MACHINE]}]
FLEET = {
    "kind": "Fleet",
    "apiVersion": "moorage.dev/v1alpha1",
    "clusters": [{"name": "a", "provider": "lab", "nodes": NODES}],
}


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    return make_mesh(FLEET, environment=failpoints.environment)


def application(name: str, replicas: int) -> dict[str, object]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    manifest = {**target, "metadata": {"name": name}, "spec": spec}
    del manifest["name"]
    app = {"name": "web", "manifests": [manifest], "consumers": [{"object": target, "container": "main", "needs": [{"machine": "g/a"}]}]}  # fmt: skip
    return {"kind": "Application", "metadata": {"name": name}, "spec": {"apps": [app]}}


async def test_killed_once_grants_are_in_the_log(mesh: Mesh, failpoints: Failpoints, driver: MeshClient) -> None:
    def states() -> list[str]:
        try:
            return sorted(slot["state"] for slot in mesh.http("/v1/slots")["items"])
        except HTTPError as error:
            assert error.code == 503, "while nobody knows of slots, it is said so"
            return []

    def guests() -> set[str]:
        return {guest["uid"] for guest in mesh.http("/v1/guests")["items"]}

    granted = (await open_ledger(driver.bus)).ledger.machines.granted
    await until(lambda: states() == ["reserved"] * SLOTS, 30)
    for number in range(ROUNDS):
        failpoints.arm("slots.committed")
        name = f"app-{number}"
        mesh.http("/v1/apply", application(name, AT_ONCE))
        await until(lambda: failpoints.happened("slots.committed") > 0, 30)
        await until(lambda: states() == ["reserved"] * (SLOTS - AT_ONCE) + ["used"] * AT_ONCE, 60)
        await until(
            lambda: len(uids := guests()) == AT_ONCE and granted.keys() == uids,
            30,
            "each has one slot, nobody else any",
        )
        done = mesh.run("delete", "application", name)
        assert done.returncode == 0, done.stderr.decode()
        await until(lambda: states() == ["reserved"] * SLOTS, 60)
