"""An agent reports what exporters write about the zones of nodes, on a real control plane with their definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moorage.agent.core.pod_fingerprint import fingerprint, pod_hash
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.polling import until

from .conftest import Mesh, Start
from .test_agent import CLUSTER, clean, deployment  # noqa: F401 - a fixture

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
NAME = "noderesourcetopologies.topology.node.k8s.io"
AMOUNT = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def pairs(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "value": value}}}


DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": NAME,
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
    },
    "spec": {
        "group": "topology.node.k8s.io",
        "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "topologyPolicies": {"type": "array", "items": {"type": "string"}},
                            "attributes": pairs({"type": "string"}),
                            "zones": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "properties": {
                                        **{name: {"type": "string"} for name in ("name", "type", "parent")},
                                        "costs": pairs({"type": "integer", "format": "int64"}),
                                        "resources": {
                                            "type": "array",
                                            "items": {
                                                "type": "object",
                                                "properties": {
                                                    "name": {"type": "string"},
                                                    **dict.fromkeys(("capacity", "allocatable", "available"), AMOUNT),
                                                },
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
async def definition(plane: ControlPlane) -> None:
    plane.call("POST", DEFINITIONS, DEFINITION)

    def served() -> bool:
        conditions = plane.get(f"{DEFINITIONS}/{NAME}").get("status", {}).get("conditions", [])
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await until(served, 30, "the definition is served")


@pytest.fixture(autouse=True)
def removed(plane: ControlPlane, definition: None) -> Iterator[None]:
    yield
    plane.call("DELETE", f"{DEFINITIONS}/{NAME}")


def topology(node: str, available: str, **attributes: str) -> dict[str, Any]:
    def zone(i: int, left: str) -> dict[str, Any]:
        cpu = {"name": "cpu", "capacity": 4, "allocatable": "4", "available": left}
        costs = [{"name": f"node-{j}", "value": 10 if i == j else 20} for j in (0, 1)]
        return {"name": f"node-{i}", "type": "Node", "resources": [cpu], "costs": costs}

    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "zones": [zone(0, available), zone(1, "4")],
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
    }


async def test_zones_their_use_and_the_pods_that_count(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    node = "edge-1-n0"
    policy = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}
    plane.call("POST", TOPOLOGIES, topology(node, "4", **policy))
    agents(plane)
    await until(lambda: node in mesh.nodes and bool(mesh.nodes[node].zones), 30, "the zones of the node")
    row = mesh.nodes[node]
    assert row.zones is not None
    assert [(z.id, z.inventories, z.distances["numa-1"]) for z in row.zones] == [
        ("numa-0", {"cpu": "4"}, 20),
        ("numa-1", {"cpu": "4"}, 10),
    ]
    assert row.topology_manager is not None
    assert (row.topology_manager.policy, row.topology_manager.scope, row.in_use) == ("single-numa-node", "pod", {})

    there = deployment("web", cpu="1", claim="cl-1")
    there["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    await mesh.want(CLUSTER, "web", 5, there)
    await until(lambda: len(mesh.pods) == 2 and all(p.node == node for p in mesh.pods.values()), 30, "pods on the node")
    assert mesh.nodes[node].counted == []

    # The exporter tells which pods it has seen.
    pods = list(mesh.pods.values())
    of_both = fingerprint(pod_hash(pod.namespace, pod.name) for pod in pods)
    change = topology(node, "2", **policy, nodeTopologyPodsFingerprint=of_both)
    change = {name: change[name] for name in ("zones", "attributes")}
    plane.call("PATCH", f"{TOPOLOGIES}/{node}", change, "application/merge-patch+json")
    await until(lambda: mesh.nodes[node].in_use == {"numa-0": {"cpu": "2"}}, 30, "what is in use")
    await until(lambda: mesh.nodes[node].counted == sorted(pod.uid for pod in pods), 30, "both pods count")

    plane.call("DELETE", f"{TOPOLOGIES}/{node}")
    await until(lambda: mesh.nodes[node].zones == [] and not mesh.nodes[node].counted, 30, "no zones any more")
