"""Devices that plugins of a node's agent give out, in the mesh: a pod that asks for cores of its own and a device of a class on one
zone gets CPUs of the device's zone; what pods hold of devices is known, those of pods that nobody decided, too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until

from .cri_client import CriClient
from .fake_plugin import FakePlugin
from .machines import pod, write_pod, write_policy
from .test_examples import RESERVED, Stand
from .test_mesh import GROUP, Pods, join, slots, spy_on

RESOURCE = "example.com/vf"
CLASS = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "ResourceClass",
    "metadata": {"name": "fast"},
    "spec": {
        "resourceSelector": [{"matchExpressions": [{"key": "speed", "operator": "GtEq", "values": ["25Gbps"]}]}],
    },
}


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    nodes = [{"name": "n1", "allocatable": {"cpu": "76", "memory": "400Gi", RESOURCE: "3"}}]
    clusters = [{"provider": "lab", "name": "one", "nodes": nodes, "behaviour": {"readyDelayMs": 600_000}}]
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"kind": "Fleet", "clusters": clusters}))
    with Mesh("--fleet", str(fleet)) as found:
        yield found


@pytest_asyncio.fixture
async def stand(mesh: Mesh, tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    write_policy(stand.policy, **RESERVED)
    await stand.runtime.start(tmp_path / "r.sock")
    await stand.agent.start("--credentials", str(join(mesh, "n1", tmp_path / "n1.json")), "--cluster", "lab/one")
    stand.kubelet = CriClient(stand.agent.cri)
    yield stand
    await stand.close()


@pytest_asyncio.fixture
async def plugin(stand: Stand) -> AsyncIterator[FakePlugin]:
    plugin = FakePlugin(RESOURCE)
    plugin.zones = {1: {"eth1": 3}}
    await plugin.start(stand.agent.root / "plugins_registry" / "vf.sock")
    yield plugin
    await plugin.stop()


def application(name: str, needs: list[dict[str, Any]], cores: int, role: str = "") -> dict[str, Any]:
    amounts = {"cpu": str(cores), "memory": "1Gi"}
    metadata = {"labels": {"app": name}, "annotations": {"kubernetes.io/pod-role": role} if role else {}}
    resources = {"requests": amounts, "limits": amounts}
    template = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "i", "resources": resources}]}}
    spec = {"replicas": 1, "serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}
    app = {"name": "web", "manifests": [manifest]}
    if needs:
        app["consumers"] = [{"object": target, "container": "main", "needs": needs}]
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": name}}
    return {**head, "spec": {"apps": [app]}}


def parts(mesh: Mesh) -> dict[str, dict[str, Any]]:
    return {item["id"]: item for item in mesh.http("/v1/parts?cluster=lab/one")["items"]}


def template_of(mesh: Mesh, name: str) -> dict[str, Any]:
    """The applied pod template; empty while the patcher works on a decision."""
    items = mesh.http(GROUP.format(name).removesuffix("why") + "diff")["items"]
    found: dict[str, Any] = items[0]["objects"][0]["spec"]["template"] if items and items[0]["objects"] else {}
    return found


async def decided_pod(mesh: Mesh, name: str, uid: str) -> dict[str, Any]:
    """The pod as the cluster's agent has it made: of the template with what the mesh writes into it."""
    await until(lambda: bool(template_of(mesh, name)), 60, "the template is made")
    template = template_of(mesh, name)
    metadata = {**template["metadata"], "name": f"{name}-0", "namespace": "default", "uid": uid}
    return {"kind": "Pod", "metadata": metadata, "spec": template["spec"]}


async def start(stand: Stand, manifest: dict[str, Any]) -> None:
    assert stand.kubelet is not None
    write_pod(stand.pods, manifest)
    metadata = manifest["metadata"]
    await stand.kubelet.run(metadata["name"], metadata["uid"], metadata["annotations"])


async def test_cores_lie_in_the_zone_of_the_device(mesh: Mesh, stand: Stand, plugin: FakePlugin) -> None:
    mesh.http("/v1/apply", CLASS)
    await until(lambda: "n1/numa-1/eth1" in parts(mesh), 60, "the plugin's devices are parts")
    device = parts(mesh)["n1/numa-1/eth1"]
    assert device["parent"] == "n1/numa-1" and device["inventories"][RESOURCE]["total"] == "3"

    def devices() -> list[tuple[str, str, str]]:
        return [(d["name"], d["zone"], d["resource"]) for d in mesh.http("/v1/nodes/lab/one/n1").get("devices", ())]

    await until(lambda: devices() == [("eth1", "numa-1", RESOURCE)], 60, "its node shows the device")

    async with spy_on(mesh) as pods:
        own = {"resource": "cpu", "requests": 10, "limits": 10, "group": "_C"}
        for name, needs, role in (
            ("pair", [own, {"class": "fast", "count": 1, "group": "_C"}], ""),
            ("role", [{"class": "fast", "count": 1}], "storage-service"),
        ):
            mesh.http("/v1/apply", application(name, needs, 10, role))
            await until(lambda name=name: bool(slots(mesh, name)), 60, f"{name} is decided")  # type: ignore[misc]
            assert {"n1/numa-1", "n1/numa-1/eth1"} == set(slots(mesh, name)[0]["parts"])
            await _runs_in_zone_one(mesh, stand, pods, name)
            await until(lambda: parts(mesh)["n1/numa-1/eth1"]["used"].get(RESOURCE) == "1", 60, "the device is in use")
            await stand.remove(f"{name}-0")
            assert mesh.run("terminate", f"default/{name}/v1/default").returncode == 0
            await until(
                lambda: parts(mesh)["n1/numa-1/eth1"]["used"].get(RESOURCE, "0") == "0", 60, "the device is free"
            )


async def _runs_in_zone_one(mesh: Mesh, stand: Stand, pods: Pods, name: str) -> None:
    await until(lambda: f"{name}-0" in pods.uids, 60, "the cluster has made the pod")
    uid = pods.uids[f"{name}-0"]
    manifest = await decided_pod(mesh, name, uid)
    assert manifest["spec"]["containers"][0]["resources"]["requests"][RESOURCE] == "1"
    await start(stand, manifest)
    assert stand.runtime.cpus(uid) == "42-51"


async def test_what_pods_hold_that_nobody_decided_counts(mesh: Mesh, stand: Stand, plugin: FakePlugin) -> None:
    mesh.http("/v1/apply", CLASS)
    await until(lambda: "n1/numa-1/eth1" in parts(mesh), 60, "the plugin's devices are parts")
    stranger = pod("stranger")
    for amounts in stranger["spec"]["containers"][0]["resources"].values():
        amounts[RESOURCE] = "2"
    await start(stand, stranger)
    await until(lambda: parts(mesh)["n1/numa-1/eth1"]["used"].get(RESOURCE) == "2", 60, "its devices are in use")
    mesh.http("/v1/apply", application("two", [{"class": "fast", "count": 2}], 2))
    await until(lambda: bool(mesh.http(GROUP.format("two")).get("reasons")), 60, "two more are not there")
    assert not slots(mesh, "two")
    # The plugin away, nothing new goes there; back, it does.
    await stand.remove("stranger")
    await until(lambda: bool(slots(mesh, "two")), 60, "it is decided when they are given back")
    (stand.agent.root / "plugins_registry" / "vf.sock").unlink()
    await until(lambda: parts(mesh)["n1/numa-1/eth1"]["health"] == "Unhealthy", 60, "its devices are not healthy")
