"""Pods with the scheduling gate of their claim, on a real control plane: an agent pins each to a slot, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import msgspec

from moorage.agent.install_manifests import OWN_RULES, RULES
from moorage.model.desired_state import PinnedClaim, PinnedSlot, Pins
from moorage.podspec import CLAIM, GATE, PARTS, pinned_node
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.polling import until

from .conftest import Mesh, Start, settled
from .test_agent import CLUSTER, clean, deployment, there  # noqa: F401 - a fixture

NODES = [f"edge-1-n{i}" for i in range(4)]


def pins(**slots: int) -> Pins:
    """Slots by the number of the node: `n0=2`."""
    made = [
        PinnedSlot(node=f"edge-1-{node}", count=count, parts={f"edge-1-{node}/numa0": {"cpu": "1"}})
        for node, count in slots.items()
    ]
    return Pins(tag=str(slots), claims=[PinnedClaim(claim="c1", object="Deployment/web", slots=made)])


def gated(replicas: int, **spec: Any) -> dict[str, Any]:
    return deployment("web", replicas=replicas, claim="c1", schedulingGates=[{"name": GATE}], **spec)


def pods(plane: ControlPlane) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = plane.get(f"/api/v1/namespaces/default/pods?labelSelector={CLAIM}=c1")["items"]
    return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


def bound(plane: ControlPlane) -> dict[str, int]:
    """Returns the number of pods by node; "" has those that are not bound."""
    found = Counter(pod["spec"].get("nodeName", "") for pod in pods(plane))
    for pod in pods(plane):
        node = pod["spec"].get("nodeName", "")
        assert not node or (pinned_node(pod["spec"]) == node and "schedulingGates" not in pod["spec"])
    return {node.removeprefix("edge-1-"): count for node, count in found.items()}


async def test_pods_get_slots_through_all_that_happens_to_them(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["nowhere"]}]},
                ]
            }
        }
    }
    # With the rights that `join` gives, and no others.
    kubeconfig = plane.service_account("pinning", [*RULES, *OWN_RULES])
    first = agents(plane, kubeconfig=kubeconfig)
    await mesh.want(CLUSTER, "web", 5, gated(3, affinity=affinity), pins=pins(n0=1, n1=2))
    await settled(lambda: bound(plane) == {"n0": 1, "n1": 2}, 40, "each has a slot")
    on_first = next(pod for pod in pods(plane) if pod["spec"]["nodeName"] == "edge-1-n0")
    assert msgspec.json.decode(on_first["metadata"]["annotations"][PARTS]) == {
        "edge-1-n0": [{"count": 1, "parts": {"edge-1-n0/numa0": {"cpu": "1"}}}]
    }
    # More pods start where their slots are, and restart none.
    before = {pod["metadata"]["uid"] for pod in pods(plane)}
    await mesh.want(CLUSTER, "web", 6, gated(5, affinity=affinity), pins=pins(n0=2, n1=2, n2=1))
    await settled(lambda: bound(plane) == {"n0": 2, "n1": 2, "n2": 1}, 40, "each has a slot")
    assert before <= {pod["metadata"]["uid"] for pod in pods(plane)}
    # A pod that is deleted leaves its slot to the next one.
    gone = next(pod for pod in pods(plane) if pod["spec"]["nodeName"] == "edge-1-n2")["metadata"]
    plane.call("DELETE", f"/api/v1/namespaces/default/pods/{gone['name']}")
    await settled(
        lambda: (
            bound(plane) == {"n0": 2, "n1": 2, "n2": 1}
            and gone["uid"] not in {p["metadata"]["uid"] for p in pods(plane)}
        ),
        40,
        "another one has its slot",
    )
    # While no agent is there, new pods wait. The next one goes on, of two only one, and the mesh is not needed for it.
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    for pod in pods(plane):
        plane.call("DELETE", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
    await settled(lambda: bound(plane) == {"": 5}, 40, "new pods wait")
    mesh.silent = True
    agents(plane, kubeconfig=kubeconfig)
    agents(plane, kubeconfig=kubeconfig)
    await settled(lambda: bound(plane) == {"n0": 2, "n1": 2, "n2": 1}, 60, "each has a slot again")
    mesh.silent = False


async def test_a_slot_that_moves_takes_a_pod_with_it_that_is_not_bound(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    """No node has room for the second pod; the first runs and is let run."""
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, gated(2, cpu="7"), pins=pins(n0=2))
    await settled(lambda: bound(plane) == {"n0": 1, "": 1}, 40, "one waits at its gate")
    await mesh.want(CLUSTER, "web", 5, gated(2, cpu="7"), pins=pins(n0=1, n3=1))
    await settled(lambda: bound(plane) == {"n0": 1, "n3": 1}, 40, "it gets the slot that moved")
    # Pinned to a node that tells the scheduler to stay away, and then to another one.
    taint = [{"key": "closed", "effect": "NoSchedule"}]
    patch = {"spec": {"taints": taint}}
    plane.call("PATCH", "/api/v1/nodes/edge-1-n2", patch, "application/merge-patch+json")
    try:
        await mesh.want(CLUSTER, "web", 6, gated(3, cpu="7"), pins=pins(n0=1, n2=1, n3=1))
        await settled(
            lambda: any(pinned_node(p["spec"]) == "edge-1-n2" for p in pods(plane)), 40, "one is pinned there"
        )
        await settled(lambda: bound(plane) == {"n0": 1, "n3": 1, "": 1}, 40, "it is not bound there")
        await mesh.want(CLUSTER, "web", 6, gated(3, cpu="7"), pins=pins(n0=1, n1=1, n3=1))
        await settled(lambda: bound(plane) == {"n0": 1, "n1": 1, "n3": 1}, 40, "it is made again")
    finally:
        plane.call("PATCH", "/api/v1/nodes/edge-1-n2", {"spec": {"taints": None}}, "application/merge-patch+json")


async def test_pods_of_a_removed_app_go(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, gated(2), pins=pins(n0=1))
    await settled(lambda: bound(plane) == {"n0": 1, "": 1}, 40, "one has no slot")
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 40, "it is gone")
    assert there(plane, "/apis/apps/v1/namespaces/default/deployments/web") is None and not pods(plane)
