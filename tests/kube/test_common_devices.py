"""Devices that several nodes of a real cluster reach, raced for by groups that eight mergers decide: each is given once."""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.mesh import Mesh

from .fleet import agent_of, apply, pods, remove, until, why

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "rack.example.com"
NAMES = [f"racer-{i}" for i in range(5)]
#: The devices, by how their slice says which nodes reach them.
REACHED: dict[str, dict[str, Any]] = {
    "everywhere": {"allNodes": True},
    "some": {
        "nodeSelector": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["edge-1-n2", "edge-1-n3"]}
                    ]
                }
            ]
        }
    },
}
DEVICES = {"everywhere": ["e-0", "e-1"], "some": ["s-0"]}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh("--workers", "merger=8") as mesh:
        yield mesh


@pytest.fixture(scope="module")
def cluster(mesh: Mesh, planes: list[ControlPlane]) -> Iterator[ControlPlane]:
    """The cluster edge-1, with the devices, joined."""
    plane = planes[0]
    for pool, reach in REACHED.items():
        devices = [{"name": name} for name in DEVICES[pool]]
        spec = {"driver": DRIVER, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": devices}
        plane.call("POST", f"{GROUP}/resourceslices", {"metadata": {"name": f"rack-{pool}"}, "spec": spec | reach})
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "rack"}, "spec": {"selectors": [selector]}})
    agent: AgentProcess | None = None
    try:
        done = mesh.run("cluster", "join", "--kubeconfig", str(plane.kubeconfig), "--context", plane.name, "--provider", "lab", "--no-deploy")  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        agent = agent_of(mesh, plane)
        agent.start()
        until(lambda: len(parts(mesh)) == 3, 60, "three devices")
        yield plane
    finally:
        if agent is not None:
            agent.stop()
        for path in (*(f"resourceslices/rack-{pool}" for pool in REACHED), "deviceclasses/rack"):
            with contextlib.suppress(urllib.error.HTTPError):
                plane.call("DELETE", f"{GROUP}/{path}")


def parts(mesh: Mesh) -> dict[str, dict[str, Any]]:
    items = mesh.http("/v1/parts?limit=500")["items"]
    return {item["id"]: item for item in items if item["id"].startswith(DRIVER)}


def document(name: str) -> dict[str, Any]:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "rack"}}]}}},
    }
    container = {"name": "main", "image": "registry.example/x:1", "resources": {"claims": [{"name": "rack"}]}}
    claims = [{"name": "rack", "resourceClaimTemplateName": name}]
    web = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [container], "resourceClaims": claims},
            },
        },
    }
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [{"name": name, "manifests": [template, web]}]},
    }


def bound_to(plane: ControlPlane, name: str) -> list[str]:
    """Returns the nodes of the group's pods that stay."""
    staying = [pod for pod in pods(plane, name) if "deletionTimestamp" not in pod["metadata"]]
    return [pod["spec"].get("nodeName", "") for pod in staying]


def allocated(plane: ControlPlane) -> list[str]:
    """Returns the devices that claims have."""
    return sorted(
        result["device"]
        for claim in plane.get(f"{GROUP}/resourceclaims")["items"]
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    )


def in_phase(mesh: Mesh, phase: str, names: list[str]) -> list[str]:
    return [name for name in names if why(mesh, name)["phase"] == phase]


def given_once(mesh: Mesh) -> int:
    """Returns how many devices one claim holds, of which no more is used than it holds."""
    found = parts(mesh).values()
    return sum(len(part["holders"]) == 1 and part["used"] == {"RACK_EXAMPLE_COM": "1"} for part in found)


def test_each_device_is_given_once_whichever_nodes_reach_it(mesh: Mesh, cluster: ControlPlane) -> None:
    nodes = [f"edge-1-n{i}" for i in range(4)]
    reached = {"e-0": nodes, "e-1": nodes, "s-0": nodes[2:]}
    until(
        lambda: {ident.rpartition("/")[2]: part["nodes"] for ident, part in parts(mesh).items()} == reached,
        40,
        "each device is reached by its nodes",
    )
    with ThreadPoolExecutor(len(NAMES)) as threads:
        list(threads.map(lambda name: apply(mesh, document(name)), NAMES))
    until(lambda: len(in_phase(mesh, "Running", NAMES)) == 3, 60, "as many run as there are devices")
    until(lambda: len(in_phase(mesh, "Pending", NAMES)) == 2, 40, "the others wait")
    until(lambda: allocated(cluster) == ["e-0", "e-1", "s-0"], 40, "each is allocated")
    left, wanted = list(NAMES), 3
    while left:
        done = in_phase(mesh, "Running", left)
        until(lambda: given_once(mesh) == wanted, 40, "each device has one holder")  # noqa: B023
        until(lambda: all(len(bound_to(cluster, name)) == 1 for name in done), 40, "each has one pod")  # noqa: B023
        assert all(bound_to(cluster, name)[0] in nodes for name in done)
        remove(mesh, done[0])
        left.remove(done[0])
        wanted = min(3, len(left))
        until(lambda: len(in_phase(mesh, "Running", left)) == wanted, 60, "who waited got the device")  # noqa: B023
        until(lambda: len(devices := allocated(cluster)) == len(set(devices)) == wanted, 60, "each is allocated once")  # noqa: B023
