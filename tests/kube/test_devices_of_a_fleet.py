"""Apps with ResourceClaims on real clusters, from the document to the devices that kube-scheduler allocates."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.mesh import Mesh

from .fleet import apply, joined_agents, pods, remove, running, until, whole_mesh, why  # noqa: F401 - fixtures

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "fleet.example.com"
SLICE = "fleet-slice"


def slice_of(node: str, taints: dict[str, str] | None = None, generation: int = 1) -> dict[str, Any]:
    """Four GPUs of a node, two of each model."""
    made = [
        {"name": f"gpu-{i}", "attributes": {"uuid": {"string": f"GPU-{i}"}, "model": {"string": "ab"[i // 2]}}}
        | ({"taints": [{"key": "bad", "effect": taints[f"gpu-{i}"]}]} if taints and f"gpu-{i}" in taints else {})
        for i in range(4)
    ]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {"metadata": {"name": SLICE}, "spec": {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": made}}


@pytest.fixture(autouse=True)
def devices(planes: list[ControlPlane]) -> Iterator[None]:
    """edge-1 has devices; no other cluster does."""
    plane = planes[0]
    plane.call("POST", f"{GROUP}/resourceslices", slice_of("edge-1-n2"))
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
    yield
    paths = (f"resourceslices/{SLICE}", "deviceclasses/gpu", "deviceclasses/fleet.b")
    for path in (f"{GROUP}/{name}" for name in paths):
        with contextlib.suppress(urllib.error.HTTPError):
            plane.call("DELETE", path)


def document(name: str, model: str, replicas: int = 1) -> dict[str, Any]:
    selectors = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}]
    request = {"name": "one", "exactly": {"deviceClassName": "gpu", "selectors": selectors}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"{name}-gpu"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    container = {"name": "main", "image": "registry.example/x:1", "resources": {"claims": [{"name": "gpu"}]}}
    pod = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": f"{name}-gpu"}],
    }
    web = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }
    apps = [{"name": name, "replicas": 1, "manifests": [template, web]}]
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": apps},
    }


def in_use(mesh: Mesh, cluster: str) -> set[str]:
    """Returns the devices of a cluster that the mesh knows to be in use."""
    parts = mesh.http(f"/v1/parts?cluster={cluster}&limit=500")["items"]
    return {
        part["id"].rpartition("/")[2]
        for part in parts
        if part["id"].startswith(DRIVER) and any(map(float, part["used"].values()))
    }


def allocated(plane: ControlPlane) -> list[str]:
    """Returns the devices that claims have."""
    claims = plane.get(f"{GROUP}/resourceclaims")["items"]
    return sorted(
        result["device"]
        for claim in claims
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    )


def test_an_app_gets_the_devices_of_its_decision(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    plane = planes[0]
    until(lambda: any(p["id"].startswith(DRIVER) for p in mesh.http("/v1/parts?limit=500")["items"]), 40, "devices")
    apply(mesh, document("seer", "b", replicas=2))
    running(mesh, "seer")
    answer = why(mesh, "seer")
    assert answer["apps"]["seer"]["clusters"] == ["lab/edge-1"]
    assert allocated(plane) == ["gpu-2", "gpu-3"]
    # A third pod finds no device of the model, and nothing is restarted for it.
    before = {pod["metadata"]["uid"] for pod in pods(plane, "seer")}
    apply(mesh, document("seer", "b", replicas=3))
    until(lambda: why(mesh, "seer").get("pendingRevision") == 2, 40, "there is no third device")
    assert {pod["metadata"]["uid"] for pod in pods(plane, "seer")} == before
    # Another app takes what is left, of the other model.
    apply(mesh, document("other", "a"))
    running(mesh, "other")
    assert allocated(plane)[1:] == ["gpu-2", "gpu-3"] and len(allocated(plane)) == 3
    for name in ("seer", "other"):
        remove(mesh, name)
    until(lambda: not allocated(plane), 60, "all are given back")

    def left() -> list[str]:
        return [found["metadata"]["name"] for found in plane.get(f"{GROUP}/deviceclasses")["items"]]

    until(lambda: left() == ["gpu"], 60, "their classes are gone")


def test_a_decision_stands_while_pods_wait_for_conditions_of_their_devices(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    plane, condition = planes[0], "example.com/attached"
    found = slice_of("edge-1-n2", generation=2)
    for device in found["spec"]["devices"][2:]:
        device["bindingConditions"] = [condition]
        device["bindingFailureConditions"] = ["example.com/failed"]
    replace_slice(plane, found)
    apply(mesh, document("binder", "b", replicas=2))
    until(lambda: allocated(plane) == ["gpu-2", "gpu-3"], 60, "the scheduler allocates both")
    decision = why(mesh, "binder")["decision"]
    time.sleep(3)  # reports, settlements and the next check of waiting groups come and go
    assert why(mesh, "binder")["decision"] == decision
    assert not any(pod["spec"].get("nodeName") for pod in pods(plane, "binder")), "the conditions do not hold yet"
    for claim in plane.get(f"{GROUP}/resourceclaims")["items"]:
        now = "2026-01-01T00:00:00Z"
        holds = {"type": condition, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": now}
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        device = {name: result[name] for name in ("driver", "pool", "device")}
        status = {"devices": [device | {"conditions": [holds]}]}
        path = f"{GROUP}/namespaces/default/resourceclaims/{claim['metadata']['name']}/status"
        plane.call("PATCH", path, {"status": status}, "application/merge-patch+json")
    running(mesh, "binder")
    assert why(mesh, "binder")["decision"] == decision
    assert allocated(plane) == ["gpu-2", "gpu-3"]
    remove(mesh, "binder")
    until(lambda: not allocated(plane), 60, "all are given back")


def test_a_claim_that_does_not_compile_is_refused_with_its_path(mesh: Mesh, agents: dict[str, AgentProcess]) -> None:
    wrong = document("wrong", "a")
    requests = wrong["spec"]["apps"][0]["manifests"][0]["spec"]["spec"]["devices"]["requests"]
    requests[0]["exactly"]["selectors"][0]["cel"]["expression"] = "device.model == 'a'"
    with pytest.raises(urllib.error.HTTPError) as refused:
        mesh.http("/v1/apply", wrong)
    assert refused.value.code == 400
    (error,) = json.loads(refused.value.read())["errors"]
    at = "spec.apps[0].manifests[0].spec.spec.devices.requests[0].exactly.selectors[0].cel.expression"
    assert error["path"] == at and error["code"] == "SelectorError"


def test_a_need_for_a_class_gets_a_claim_to_its_devices(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    plane = planes[0]
    selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].?model.orValue("") == "b"'}}
    plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "fleet.b"}, "spec": {"selectors": [selector]}})
    wanted = document("needy", "b")
    (app,) = wanted["spec"]["apps"]
    web = app["manifests"].pop()
    pod = web["spec"]["template"]["spec"]
    del pod["resourceClaims"], pod["containers"][0]["resources"]
    pod["containers"].append({"name": "sidecar", "image": "registry.example/y:1"})
    app["manifests"] = [web]
    consumer = {
        "name": "c",
        "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "needy"},
        "container": "main",
        "needs": [{"name": "gpu", "class": "fleet.b", "count": 2}],
    }
    app["consumers"] = [consumer]
    apply(mesh, wanted)
    running(mesh, "needy")
    assert allocated(plane) == ["gpu-2", "gpu-3"]
    (found,) = pods(plane, "needy")
    claims = {c["name"]: c.get("resources", {}).get("claims") for c in found["spec"]["containers"]}
    assert claims == {"main": [{"name": "moorage-needs", "request": "need-0"}], "sidecar": None}
    assert "schedulingGates" not in found["spec"]
    affinity = found["spec"]["affinity"]["nodeAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    # Requested as resources of a container, the class is taken out before the API server sees it.
    remove(mesh, "needy")
    until(lambda: not allocated(plane), 60, "they are given back")
    app["consumers"] = []
    pod["containers"][0]["resources"] = {"limits": {"fleet.b": 1, "cpu": "100m"}}
    apply(mesh, wanted)
    until(lambda: len(allocated(plane)) == 1 and why(mesh, "needy")["phase"] == "Running", 60, "one device")
    (found,) = [p for p in pods(plane, "needy") if "deletionTimestamp" not in p["metadata"]]
    resources = found["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "100m"} and len(resources["claims"]) == 1
    remove(mesh, "needy")
    until(lambda: not allocated(plane), 60, "it is given back")


def test_a_class_of_the_mesh_is_carried_out_by_a_claim(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    """The cluster has no DeviceClass of this name."""
    plane = planes[0]
    expressions = [
        {"key": "Driver", "operator": "In", "values": [DRIVER]},
        {"key": "model", "operator": "In", "values": ["b"]},
    ]
    made = {
        "kind": "ResourceClass",
        "metadata": {"name": "mesh.b"},
        "spec": {"resourceSelector": [{"matchExpressions": expressions}]},
    }
    done = mesh.run("apply", "-f", "-", data=json.dumps(made).encode())
    assert done.returncode == 0, done.stderr.decode()
    wanted = document("classy", "b")
    (app,) = wanted["spec"]["apps"]
    app["manifests"] = [web := app["manifests"].pop()]
    pod = web["spec"]["template"]["spec"]
    del pod["resourceClaims"]
    pod["containers"][0]["resources"] = {"limits": {"mesh.b": 2}}
    apply(mesh, wanted)
    running(mesh, "classy")
    assert allocated(plane) == ["gpu-2", "gpu-3"]

    def written() -> list[dict[str, Any]]:
        (found,) = pods(plane, "classy")
        entries: list[dict[str, Any]] = json.loads(
            (found["metadata"].get("annotations") or {}).get("moorage.dev/devices", "[]")
        )
        return entries

    (entry,) = until(written, 40, "its devices are written on the pod")
    assert (entry["class"], entry["containers"], entry["quantity"]) == ("mesh.b", ["main"], 2)
    assert entry["decision"] and entry["parts"] == [f"{DRIVER}/edge-1-n2/gpu-{i}" for i in (2, 3)]
    assert mesh.run("delete", "resourceclass", "mesh.b").returncode == 0
    remove(mesh, "classy")
    until(lambda: not allocated(plane), 60, "they are given back")


def replace_slice(plane: ControlPlane, found: dict[str, Any]) -> None:
    live = plane.get(f"{GROUP}/resourceslices/{SLICE}")
    plane.call("PUT", f"{GROUP}/resourceslices/{SLICE}", {**live, "spec": found["spec"]})


def test_pods_share_a_device_by_what_they_take_of_it(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    """A share is of each capacity of one device, whatever the driver calls these."""
    plane = planes[0]
    found = slice_of("edge-1-n2", generation=2)
    capacity = {"memory": {"value": "80Gi"}, "other.example.com/lanes": {"value": "10"}}
    shared = {"name": "gpu-4", "attributes": {"model": {"string": "s"}}, "allowMultipleAllocations": True}
    found["spec"]["devices"].append({**shared, "capacity": capacity})
    replace_slice(plane, found)
    condition = {"key": "model", "operator": "Eq", "values": ["s"]}
    spec = {"resourceSelector": [{"matchExpressions": [condition]}]}
    made = {"kind": "ResourceClass", "metadata": {"name": "shared.gpu"}, "spec": spec}
    done = mesh.run("apply", "-f", "-", data=json.dumps(made).encode())
    assert done.returncode == 0, done.stderr.decode()
    wanted = document("sharing", "s", replicas=2)
    (app,) = wanted["spec"]["apps"]
    app["manifests"] = [web := app["manifests"].pop()]
    pod = web["spec"]["template"]["spec"]
    del pod["resourceClaims"]
    pod["containers"][0]["resources"] = {"limits": {"shared.gpu": "400m"}}
    apply(mesh, wanted)
    running(mesh, "sharing")
    claims = plane.get(f"{GROUP}/resourceclaims")["items"]
    results = [r for c in claims for r in c["status"]["allocation"]["devices"]["results"]]
    assert [r["device"] for r in results] == ["gpu-4", "gpu-4"]
    assert [r["consumedCapacity"] for r in results] == [{"memory": str(32 << 30), "other.example.com/lanes": "4"}] * 2
    remove(mesh, "sharing")
    until(lambda: not allocated(plane), 60, "they are given back")
    assert mesh.run("delete", "resourceclass", "shared.gpu").returncode == 0


def devices_of_pods(plane: ControlPlane, app: str) -> dict[str, str]:
    """Returns the devices of live pods that are bound, by uid."""
    claims = {c["metadata"]["name"]: c for c in plane.get(f"{GROUP}/resourceclaims")["items"]}
    found: dict[str, str] = {}
    for pod in pods(plane, app):
        if "deletionTimestamp" in pod["metadata"] or not pod["spec"].get("nodeName"):
            continue
        for status in pod["status"].get("resourceClaimStatuses") or ():
            allocation = claims.get(status.get("resourceClaimName"), {}).get("status", {}).get("allocation", {})
            for result in allocation.get("devices", {}).get("results", ()):
                found[pod["metadata"]["uid"]] = result["device"]
    return found


def test_pods_of_devices_that_fail_move_and_others_run_on(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    """First a taint, on which Kubernetes ends the pod, then a device that is gone, on which nobody but the mesh does."""
    plane = planes[0]
    wanted = document("mover", "a", replicas=2)
    request = wanted["spec"]["apps"][0]["manifests"][0]["spec"]["spec"]["devices"]["requests"][0]
    del request["exactly"]["selectors"]
    apply(mesh, wanted)
    running(mesh, "mover")
    assert sorted(devices_of_pods(plane, "mover").values()) == ["gpu-0", "gpu-1"]
    kept = next(uid for uid, device in devices_of_pods(plane, "mover").items() if device == "gpu-1")
    replace_slice(plane, slice_of("edge-1-n2", {"gpu-0": "NoExecute"}, generation=2))
    until(lambda: sorted(devices_of_pods(plane, "mover").values()) == ["gpu-1", "gpu-2"], 60, "the other device")
    running(mesh, "mover")
    assert kept in devices_of_pods(plane, "mover")
    template = plane.get(f"{GROUP}/namespaces/default/resourceclaimtemplates")["items"]
    assert all(found["metadata"].get("generation", 1) == 1 for found in template)
    # The device of the other pod disappears: its driver does not offer it any more.
    left = slice_of("edge-1-n2", {"gpu-0": "NoExecute"}, generation=3)
    left["spec"]["devices"] = [device for device in left["spec"]["devices"] if device["name"] != "gpu-1"]
    moved = next(uid for uid, device in devices_of_pods(plane, "mover").items() if device == "gpu-2")
    replace_slice(plane, left)
    until(lambda: sorted(devices_of_pods(plane, "mover").values()) == ["gpu-2", "gpu-3"], 60, "another device again")
    running(mesh, "mover")
    assert moved in devices_of_pods(plane, "mover") and kept not in devices_of_pods(plane, "mover")
    # Nothing is left for the next one: it says so, and its pods go on.
    replace_slice(plane, slice_of("edge-1-n2", {"gpu-0": "NoExecute", "gpu-1": "NoExecute"}, generation=4))
    gone = slice_of("edge-1-n2", {"gpu-0": "NoExecute", "gpu-1": "NoExecute"}, generation=5)
    gone["spec"]["devices"] = [device for device in gone["spec"]["devices"] if device["name"] != "gpu-3"]
    replace_slice(plane, gone)

    def lack() -> dict[str, Any]:
        codes = {reason["code"]: reason for reason in why(mesh, "mover").get("reasons") or ()}
        found: dict[str, Any] = codes.get("DeviceFailed") or codes.get("MassFailure") or {}
        return found

    until(lack, 60, "it waits")
    until(lambda: why(mesh, "mover")["phase"] == "Degraded", 40, "its phase says so")
    replace_slice(plane, slice_of("edge-1-n2", generation=6))
    running(mesh, "mover")
    remove(mesh, "mover")
    until(lambda: not allocated(plane), 60, "all are given back")


def test_an_extended_resource_is_served_by_the_devices_of_the_decision(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    """The pods request the resource in the document and have a claim in the cluster, so kube-scheduler chooses nothing else. A pod of
    somebody else that requests the resource gets what is left."""
    plane, resource = planes[0], "fleet.example.com/b"
    expression = f'device.attributes["{DRIVER}"].model == "b"'
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": resource}
    plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "fleet.b"}, "spec": spec})
    wanted = document("extended", "b")
    (app,) = wanted["spec"]["apps"]
    app["manifests"] = [web := app["manifests"].pop()]
    pod = web["spec"]["template"]["spec"]
    del pod["resourceClaims"]
    pod["containers"][0]["resources"] = {"limits": {resource: 1}}
    stranger = {
        "metadata": {"name": "stranger"},
        "spec": {
            "containers": [{"name": "c", "image": "registry.example/x:1", "resources": {"limits": {resource: 1}}}]
        },
    }
    apply(mesh, wanted)
    running(mesh, "extended")
    (claim,) = why(mesh, "extended")["apps"]["extended"]["claims"]
    (slot,) = claim["slots"]
    (device,) = slot["devices"]
    assert device["need"] == "fleet.example.com.b"
    assert allocated(plane) == [device["part"].rpartition("/")[2]] == ["gpu-2"]
    (found,) = pods(plane, "extended")
    resources = found["spec"]["containers"][0]["resources"]
    assert resource not in (resources.get("limits") or {}) and len(resources["claims"]) == 1
    plane.call("POST", "/api/v1/namespaces/default/pods", stranger)
    try:
        until(lambda: allocated(plane) == ["gpu-2", "gpu-3"], 60, "the stranger has the other device")
        # A displaced app gets another pod template, and there is no third device for the rollout.
        until(lambda: in_use(mesh, "lab/edge-1") == {"gpu-2", "gpu-3"}, 60, "the mesh knows of it")
        app["manifests"][0]["spec"]["replicas"] = 2
        apply(mesh, wanted)
        until(lambda: why(mesh, "extended").get("pendingRevision") == 2, 60, "there is no third device")
    finally:
        plane.call("DELETE", "/api/v1/namespaces/default/pods/stranger?gracePeriodSeconds=0")
    until(lambda: why(mesh, "extended")["phase"] == "Running" and len(allocated(plane)) == 2, 60, "it gets it then")
    remove(mesh, "extended")
    until(lambda: not allocated(plane), 60, "all are given back")


def test_pods_with_devices_of_a_plugin_say_so(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    """The cluster has an extended resource; the kubelet chooses which of its devices a pod gets."""
    plane = planes[2]
    conditions = [{"key": "Kind", "operator": "Eq", "values": ["nvidia-gpu"]}]
    spec = {"resourceSelector": [{"matchExpressions": conditions}]}
    made = {"kind": "ResourceClass", "metadata": {"name": "any.nvidia"}, "spec": spec}
    done = mesh.run("apply", "-f", "-", data=json.dumps(made).encode())
    assert done.returncode == 0, done.stderr.decode()
    wanted = document("story", "a")
    (app,) = wanted["spec"]["apps"]
    app["manifests"] = [web := app["manifests"].pop()]
    pod = web["spec"]["template"]["spec"]
    del pod["resourceClaims"]
    pod["containers"][0]["resources"] = {"limits": {"any.nvidia": 2}}
    apply(mesh, wanted)
    running(mesh, "story")

    def written() -> list[dict[str, Any]]:
        (found,) = pods(plane, "story")
        assert found["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        annotations = found["metadata"].get("annotations") or {}
        entries: list[dict[str, Any]] = json.loads(annotations.get("moorage.dev/devices", "[]"))
        return entries

    (entry,) = until(written, 40, "its devices are written on the pod")
    assert (entry["class"], entry["containers"], entry["quantity"]) == ("any.nvidia", ["main"], 2)
    (part,) = entry["parts"]
    assert part.startswith("core-1-n") and part.endswith("/nvidia.com/gpu") and entry["decision"] and entry["classUid"]
    remove(mesh, "story")
    assert mesh.run("delete", "resourceclass", "any.nvidia").returncode == 0
