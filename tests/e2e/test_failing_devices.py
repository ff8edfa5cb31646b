"""Devices of a simulated fleet that fail: pods get others of their node, of their cluster, or of another cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.mesh import Mesh

Json = dict[str, Any]
DRIVER, API = "gpu.example.com", {"apiVersion": "resource.k8s.io/v1"}
GPU: Json = {**API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": []}}
#: Devices of each node, and those that fail: name → effect of a taint, or "gone".
NODES = {"a": ("n", "m"), "b": ("o",)}


def slice_of(node: str, count: int, failing: dict[str, str]) -> Json:
    devices = []
    for i in range(count):
        name = f"g{i}"
        effect = failing.get(f"{node}/{name}", "")
        device: Json = {"name": name, "attributes": {"uuid": {"string": f"{node}-{name}"}}}
        if effect not in ("", "gone"):
            device["taints"] = [{"key": "broken", "effect": effect}]
        if effect != "gone":
            devices.append(device)
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {**API, "kind": "ResourceSlice", "metadata": {"name": f"gpus-{node}"}, "spec": spec}


def fleet(failing: dict[str, str] | None = None, count: int = 2) -> str:
    clusters = [
        {
            "name": name,
            "provider": "lab",
            "nodes": [{"name": node, "allocatable": {"cpu": "8", "memory": "32Gi"}} for node in nodes],
            "objects": [GPU, *(slice_of(node, count, failing or {}) for node in nodes)],
        }
        for name, nodes in NODES.items()
    ]
    return json.dumps({"clusters": clusters})


def application(name: str, pods: int) -> str:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": pods, "selector": {"matchLabels": {"app": name}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    consumer = {"object": {"kind": "Deployment", "name": name}, "container": "c", "needs": [{"class": "gpu"}]}
    app = {"name": name, "manifests": [deployment], "consumers": [consumer]}
    return json.dumps({"kind": "Application", "metadata": {"name": name}, "spec": {"apps": [app]}})


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file: Path = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_text(fleet())
    with Mesh("--fleet", str(file)) as found:
        yield found


@pytest.fixture(autouse=True)
def clean(mesh: Mesh) -> Iterator[None]:
    yield
    for item in mesh.http("/v1/applications")["items"]:
        mesh.run("delete", "application", item["metadata"]["name"])
    change(mesh, fleet())


def run(mesh: Mesh, *command: str, data: str = "") -> str:
    done = mesh.run(*command, data=data.encode())
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def change(mesh: Mesh, document: str) -> None:
    run(mesh, "fleet", "apply", "-", "--yes", data=document)


def why(mesh: Mesh, name: str) -> Json:
    found: Json = mesh.http(f"/v1/groups/default/{name}/v1/default/why")
    return found


def until(condition: Callable[[], Any], what: str, within: float = 90) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        time.sleep(0.05)


def places(mesh: Mesh, name: str) -> dict[str, list[str]]:
    """Returns the devices that an app's slots have, by cluster."""
    found: dict[str, list[str]] = {}
    for claim in why(mesh, name).get("apps", {}).get(name, {}).get("claims", ()):
        parts = [part.partition("/")[2] for slot in claim["slots"] for part in slot.get("parts", ())]
        found.setdefault(claim["cluster"], []).extend(parts)
    return {cluster: sorted(parts) for cluster, parts in found.items()}


def used(mesh: Mesh) -> list[str]:
    """Returns the devices that pods have."""
    items = [item for item in mesh.http("/v1/parts?limit=500")["items"] if item["id"].startswith(DRIVER)]
    return sorted(i["id"].partition("/")[2] for i in items if (i.get("used") or {}).get("GPU_EXAMPLE_COM", "0") != "0")


def runs_on(mesh: Mesh, name: str, cluster: str, *devices: str) -> None:
    wanted = {cluster: sorted(devices)}
    until(lambda: places(mesh, name) == wanted, f"{name} is placed on {wanted}")
    until(lambda: used(mesh) == sorted(devices), f"{name} has {devices}")
    until(lambda: why(mesh, name)["phase"] == "Running", f"{name} runs")


def reason(mesh: Mesh, name: str, code: str) -> Json:
    until(lambda: code in [r["code"] for r in why(mesh, name).get("reasons") or ()], f"{name} says {code}")
    return next(r for r in why(mesh, name)["reasons"] if r["code"] == code)


def test_slots_leave_failed_devices_for_others_of_their_node_and_then_of_their_cluster(mesh: Mesh) -> None:
    closed = {"o/g0": "NoSchedule", "o/g1": "NoSchedule"}
    change(mesh, fleet(closed))
    run(mesh, "apply", "-f", "-", data=application("mover", 1))
    until(lambda: places(mesh, "mover"), "it is placed")
    runs_on(mesh, "mover", "lab/a", *places(mesh, "mover")["lab/a"])
    (first,) = places(mesh, "mover")["lab/a"]
    node = first.partition("/")[0]
    (other,) = {"n", "m"} - {node}
    # Kubernetes ends the pod of a taint; nobody but the mesh ends that of a device that is gone.
    change(mesh, fleet({**closed, first: "NoExecute"}))
    (second,) = {f"{node}/g0", f"{node}/g1"} - {first}
    runs_on(mesh, "mover", "lab/a", second)
    change(mesh, fleet({**closed, first: "NoExecute", second: "gone", f"{other}/g0": "NoSchedule"}))
    runs_on(mesh, "mover", "lab/a", f"{other}/g1")


def test_where_the_cluster_has_no_other_device_the_app_moves(mesh: Mesh) -> None:
    closed = {f"{node}/{name}": "NoSchedule" for node in ("n", "m", "o") for name in ("g0", "g1")}
    change(mesh, fleet({part: effect for part, effect in closed.items() if part != "n/g0"}))
    run(mesh, "apply", "-f", "-", data=application("leaver", 1))
    runs_on(mesh, "leaver", "lab/a", "n/g0")
    # Nothing in the fleet fits: it says so, with the device.
    change(mesh, fleet({**closed, "n/g0": "NoExecute"}))
    found = reason(mesh, "leaver", "DeviceFailed")
    assert found["needed"] == "1" and f"{DRIVER}/n/g0 (it has the taint broken:NoExecute)" in found["message"]
    assert why(mesh, "leaver")["phase"] == "Degraded"
    left = {part: effect for part, effect in closed.items() if part != "o/g1"}
    change(mesh, fleet({**left, "n/g0": "NoExecute"}))
    runs_on(mesh, "leaver", "lab/b", "o/g1")


def test_when_most_devices_fail_at_once_nothing_moves_until_somebody_says_so(mesh: Mesh) -> None:
    closed = {
        "o/g0": "NoSchedule",
        "o/g1": "NoSchedule",
        "n/g1": "NoSchedule",
        "m/g0": "NoSchedule",
        "m/g1": "NoSchedule",
    }
    change(mesh, fleet(closed))
    run(mesh, "apply", "-f", "-", data=application("stays", 1))
    runs_on(mesh, "stays", "lab/a", "n/g0")
    restarts = {"n/g0": "NoExecute", "n/g1": "NoExecute", "m/g0": "NoExecute"}
    change(mesh, fleet({**restarts, "o/g0": "NoSchedule"}))
    found = reason(mesh, "stays", "MassFailure")
    assert (found["needed"], found["free"]) == ("3", "1") and "moorage devices move lab/a" in found["message"]
    time.sleep(1)
    assert places(mesh, "stays") == {"lab/a": ["n/g0"]}
    # They are back, and it goes on where it was.
    change(mesh, fleet({"o/g0": "NoSchedule"}))
    runs_on(mesh, "stays", "lab/a", "n/g0")
    change(mesh, fleet({**restarts, "o/g0": "NoSchedule"}))
    reason(mesh, "stays", "MassFailure")
    assert "no mass failure" in run(mesh, "devices", "move", "lab/a", "--kind", "another")
    assert DRIVER in run(mesh, "devices", "move", "lab/a")
    runs_on(mesh, "stays", "lab/a", "m/g1")
    audited = mesh.http("/v1/events?follow=false&subject=moorage.events.audit.>")["items"]
    assert any("/v1/devices/move" in json.dumps(event) for event in audited)
    assert mesh.run("devices", "move", "lab/nowhere").returncode != 0
