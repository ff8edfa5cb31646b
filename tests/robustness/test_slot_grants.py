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
ROOM = {"cpu": "8", "memory": "64Gi"}
NODES = [{"name": "n", "count": 2, "allocatable": ROOM, "machines": [MACHINE]}, {"name": "s", "allocatable": ROOM}]
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


def application(name: str, replicas: int, kind: str = "g/a") -> dict[str, object]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    manifest = {**target, "metadata": {"name": name}, "spec": spec}
    del manifest["name"]
    app = {"name": "web", "manifests": [manifest], "consumers": [{"object": target, "container": "main", "needs": [{"machine": kind}]}]}  # fmt: skip
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


#: Three whole slots, in which at most five halves live.
SHARED = {
    "apiVersion": "imperator.tenzen-y.io/v1alpha1",
    "kind": "Machine",
    "metadata": {"name": "shared", "labels": {"imperator.tenzen-y.io/machine-group": "shared"}},
    "spec": {
        "nodePool": [{"name": "s", "mode": "ready", "machineType": [{"name": "whole"}]}],
        "machineTypes": [
            {"name": "whole", "spec": {"cpu": "2", "memory": "2Gi"}, "available": 3},
            {"name": "half", "spec": {"dependence": {"machineType": "whole", "availableRatio": 0.5}}, "available": 5},
        ],
    },
}


async def test_killed_while_applications_share_slots(mesh: Mesh, failpoints: Failpoints) -> None:
    def used() -> dict[str, int]:
        try:
            rows = mesh.http("/v1/machines/shared")["status"]["availableMachines"]
        except HTTPError as error:
            assert error.code in (404, 503), "nobody knows of Machines, or of this one"
            return {}
        counts = {row["name"]: row["usage"]["used"] for row in rows}
        assert counts["whole"] <= 3 and counts["half"] <= 5
        return counts

    async def killed_while(wanted: dict[str, int], **replicas: int) -> None:
        failpoints.arm("slots.committed")
        for name, count in replicas.items():
            mesh.http("/v1/apply", application(name, count, f"shared/{name.rstrip('0123456789')}"))
        await until(lambda: failpoints.happened("slots.committed") > 0, 30)
        await until(lambda: used() == wanted, 60)

    mesh.http("/v1/apply", SHARED)
    await until(lambda: used() == {"whole": 0, "half": 0}, 30)
    await killed_while({"whole": 2, "half": 3}, half1=3)
    await killed_while({"whole": 3, "half": 3}, whole1=1)
    await killed_while({"whole": 3, "half": 4}, half2=1)
    mesh.http("/v1/apply", application("half3", 1, "shared/half"))
    failpoints.arm("slots.committed")
    assert mesh.run("delete", "application", "whole1").returncode == 0
    await until(lambda: failpoints.happened("slots.committed") > 0, 30)
    await until(lambda: used() == {"whole": 3, "half": 5}, 60, "the last half gets its slot")
    for name in ("half1", "half2", "half3"):
        assert mesh.run("delete", "application", name).returncode == 0
    await until(lambda: used() == {"whole": 0, "half": 0}, 60)
    assert mesh.run("delete", "machine", "shared").returncode == 0
