"""From a taint on a device of a real cluster until its slot has moved, and until the pod that replaces it is bound with another device.

The floor is Kubernetes itself, which ends the pod of such a taint after about 100 ms.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.kube_assets import find
from moorage_testkit.mesh import Mesh

from .harness import Figure
from .kube import account, agent, clusters, nodes_known

GROUP, NODE, DRIVER, DEVICES = "/apis/resource.k8s.io/v1", "n0", "bench.example.com", 4


def slice_of(tainted: str = "", generation: int = 1) -> dict[str, Any]:
    devices: list[dict[str, Any]] = [
        {"name": f"gpu-{i}", "attributes": {"uuid": {"string": f"GPU-{i}"}}} for i in range(DEVICES)
    ]
    for device in devices:
        if device["name"] == tainted:
            device["taints"] = [{"key": "broken", "effect": "NoExecute"}]
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": 1}
    return {"driver": DRIVER, "pool": pool, "nodeName": NODE, "devices": devices}


def application() -> dict[str, Any]:
    pod = {"containers": [{"name": "main", "image": "registry.example/x:1"}]}
    template = {"metadata": {"labels": {"app": "mover"}}, "spec": pod}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "mover"}}, "template": template}
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "mover"}, "spec": spec}
    consumer = {"object": {"kind": "Deployment", "name": "mover"}, "container": "main", "needs": [{"class": "gpu"}]}
    app = {"name": "mover", "manifests": [web], "consumers": [consumer]}
    return {"kind": "Application", "metadata": {"name": "mover"}, "spec": {"apps": [app]}}


def slots(mesh: Mesh) -> list[str]:
    found = mesh.http("/v1/groups/default/mover/v1/default/why")["apps"]["mover"].get("claims", ())
    return sorted(part.rpartition("/")[2] for claim in found for slot in claim["slots"] for part in slot["parts"])


def bound(plane: ControlPlane) -> list[str]:
    """Returns the devices of pods that are bound and stay."""
    claims = {c["metadata"]["name"]: c for c in plane.get(f"{GROUP}/resourceclaims")["items"]}
    found = []
    for pod in plane.get("/api/v1/namespaces/default/pods?labelSelector=app=mover")["items"]:
        if "deletionTimestamp" in pod["metadata"] or not pod["spec"].get("nodeName"):
            continue
        for made in pod["status"].get("resourceClaimStatuses") or ():
            status = claims.get(made.get("resourceClaimName"), {}).get("status", {})
            found += [r["device"] for r in status.get("allocation", {}).get("devices", {}).get("results", ())]
    return sorted(found)


def waits(condition: Any, seconds: float = 60) -> float:
    """Waits for a condition, and returns when it held."""
    end = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > end:
            raise RuntimeError(f"not within {seconds:g} s")
        time.sleep(0.005)
    return time.perf_counter()


def rounds(plane: ControlPlane, mesh: Mesh, times: int) -> tuple[list[float], list[float]]:
    path = f"{GROUP}/resourceslices/gpus"
    decided, started = [], []
    for i in range(times):
        waits(lambda: bound(plane) == slots(mesh) and len(slots(mesh)) == 2)
        failing = slots(mesh)[0]
        live = plane.get(path)
        begin = time.perf_counter()
        plane.call("PUT", path, {**live, "spec": slice_of(failing, 2 * i + 2)})
        decided.append((waits(lambda gone=failing: gone not in slots(mesh)) - begin) * 1e3)
        started.append((waits(lambda: bound(plane) == slots(mesh) and len(bound(plane)) == 2) - begin) * 1e3)
        plane.call("PUT", path, {**plane.get(path), "spec": slice_of(generation=2 * i + 3)})
        time.sleep(0.5)
    return decided, started


async def failing_devices(times: int = 20) -> list[Figure]:
    assets, why = find()
    if assets is None:
        sys.stdout.write(f"{why}\n")
        return []
    with clusters(1) as (plane,), Mesh() as mesh:
        plane.node(NODE)
        plane.call("POST", f"{GROUP}/resourceslices", {"metadata": {"name": "gpus"}, "spec": slice_of()})
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
        with agent(mesh, plane):
            await nodes_known(mesh, plane, 1)
            await account(plane)
            await asyncio.to_thread(mesh.http, "/v1/apply", application())
            decided, started = await asyncio.to_thread(rounds, plane, mesh, times)
    return [
        Figure.of("device tainted until its slot moved", decided, "p99 <= 300 ms", p99=300),
        Figure.of("device tainted until the next pod is bound", started, "p99 <= 2000 ms", p99=2000),
    ]
