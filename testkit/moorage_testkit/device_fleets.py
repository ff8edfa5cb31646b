"""A simulated fleet with devices of a driver, some of which fail, and what an app has of them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from .mesh import Mesh
from .polling import wait_until

Json = dict[str, Any]
DRIVER, API = "gpu.example.com", {"apiVersion": "resource.k8s.io/v1"}
GPU: Json = {**API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": []}}
#: The nodes of each cluster.
NODES = {"a": ("n", "m"), "b": ("o",)}


def slice_of(node: str, count: int, failing: dict[str, str]) -> Json:
    """`failing`: by NODE/DEVICE, the effect of a taint, or "gone"."""
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


def application(name: str, pods: int, of_class: str = "gpu") -> str:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": pods, "selector": {"matchLabels": {"app": name}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    consumer = {"object": {"kind": "Deployment", "name": name}, "container": "c", "needs": [{"class": of_class}]}
    app = {"name": name, "manifests": [deployment], "consumers": [consumer]}
    return json.dumps({"kind": "Application", "metadata": {"name": name}, "spec": {"apps": [app]}})


def run(mesh: Mesh, *command: str, data: str = "") -> str:
    done = mesh.run(*command, data=data.encode())
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def change(mesh: Mesh, document: str) -> None:
    run(mesh, "fleet", "apply", "-", "--yes", data=document)


def why(mesh: Mesh, name: str) -> Json:
    found: Json = mesh.http(f"/v1/groups/default/{name}/v1/default/why")
    return found


until = partial(wait_until, within=90)


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
