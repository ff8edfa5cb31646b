"""Guests of a real scheduler and controller manager in harder situations: drains, rollouts, resizes, windows, types that depend on
another, and rules about other Pods."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest

from moorage.machine_groups.names import GROUP_VERSION, MACHINE_TYPE, NODE_POOL
from moorage.model.object_names import NAMESPACE
from moorage.podspec import pinned_node
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess, Refused
from moorage_testkit.machines import machine, offline

from .conftest import settled
from .machines import GUEST, SETS, TEAM, cluster, process, ready, the_machine, usage

__all__ = ["cluster", "process", "ready"]  # fixtures, with a control plane of this module
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
PODS = f"/api/v1/namespaces/{TEAM}/pods"


def deployment(name: str, replicas: int, **rolling: int) -> dict[str, Any]:
    labels = {**GUEST, "app": name}
    spec = {"containers": [{"name": "c", "image": "one"}], "terminationGracePeriodSeconds": 0}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling or {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def told(cluster: MachineCluster, reason: str) -> set[str]:
    """Returns the names of Pods of which an event tells a reason."""
    events = cluster.call("GET", f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events")["items"]
    return {event["regarding"]["name"] for event in events if event["reason"] == reason}


def images(cluster: MachineCluster) -> list[str]:
    """Returns the images of Pods that are bound and stay."""
    found = [p for p in cluster.pods(TEAM) if p["spec"].get("nodeName") and "deletionTimestamp" not in p["metadata"]]
    return sorted(p["spec"]["containers"][0]["image"] for p in found)


async def test_a_surging_rollout_waits_and_an_event_says_so(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(2))
    await usage(cluster, 2, 2, 0, 0)
    cluster.call("POST", DEPLOYMENTS, deployment("web", 2))
    await usage(cluster, 2, 0, 2, 0)
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}}
    cluster.patch(f"{DEPLOYMENTS}/web", patch)
    await usage(cluster, 2, 0, 2, 1)
    (waiting,) = [p["metadata"]["name"] for p in cluster.pods(TEAM) if not p["spec"].get("nodeName")]
    await settled(lambda: waiting in told(cluster, "SlotShort"), 20, "it is told")
    assert images(cluster) == ["one", "one"]
    # One more slot, and it goes on by itself.
    types = [{"name": "a", **offline(3)}]
    cluster.patch(f"/apis/{GROUP_VERSION}/machines/g", {"spec": {"machineTypes": types}})
    await settled(lambda: images(cluster) == ["two", "two"], 40, "the rollout is complete")
    await usage(cluster, 3, 1, 2, 0)


async def test_a_drained_node_gives_its_slots_to_others(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(4, ["m0", "m1"], cpu="4"))
    await usage(cluster, 4, 4, 0, 0)
    cluster.call("POST", DEPLOYMENTS, deployment("web", 2))
    await usage(cluster, 4, 2, 2, 0)
    node = cluster.bound(TEAM)[0]
    cluster.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    try:
        await settled(lambda: NODE_POOL not in cluster.call("GET", f"/api/v1/nodes/{node}")["metadata"]["labels"], 20)
        for pod in cluster.pods(TEAM):
            if pod["spec"].get("nodeName") == node:
                meta = {"name": pod["metadata"]["name"], "namespace": TEAM}
                with contextlib.suppress(Refused):  # its successor is there already
                    cluster.call("POST", f"{PODS}/{meta['name']}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})  # fmt: skip
        other = "m1" if node == "m0" else "m0"
        await settled(lambda: cluster.bound(TEAM) == [other, other], 40, "all guests are on the other Node")
    finally:
        cluster.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    await usage(cluster, 4, 2, 2, 0)


async def test_a_guest_is_not_resized_beyond_its_slot(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    sidecar = {"name": "side", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}
    cluster.pod(TEAM, "guest", GUEST, initContainers=[sidecar])
    await usage(cluster, 1, 0, 1, 0)

    # As a kubelet does that can resize.
    await settled(lambda: cluster.call("GET", f"{PODS}/guest")["status"].get("containerStatuses"), 30, "it runs")
    pod = cluster.call("GET", f"{PODS}/guest")
    statuses = [
        {**status, "resources": {"requests": {"cpu": "1500m"}}} for status in pod["status"]["containerStatuses"]
    ]
    cluster.patch(f"{PODS}/guest/status", {"status": {"containerStatuses": statuses}})

    def resize(cpu: str) -> dict[str, Any]:
        amounts = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
        spec = {"containers": [{"name": "main", "resources": amounts}]}
        return cluster.call("PATCH", f"{PODS}/guest/resize", {"spec": spec}, "application/strategic-merge-patch+json")

    assert cluster.call("GET", f"{PODS}/guest")["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1500m"
    with pytest.raises(Refused, match="a slot of g/a has 2 cpu"):
        resize("1600m")
    assert resize("1")["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"


async def test_guests_that_keep_apart_get_slots_on_different_nodes(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(4, ["m0", "m1"], cpu="4"))
    await usage(cluster, 4, 4, 0, 0)
    labels = {**GUEST, "app": "apart"}
    term = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for i in range(3):
        cluster.pod(TEAM, f"apart-{i}", labels, affinity=apart)
    await usage(cluster, 4, 2, 2, 1)
    assert cluster.bound(TEAM) == ["m0", "m1"]
    gone = next(p["metadata"]["name"] for p in cluster.pods(TEAM) if p["spec"].get("nodeName") == "m0")
    cluster.delete_pod(TEAM, gone)
    await usage(cluster, 4, 2, 2, 0)
    assert cluster.bound(TEAM) == ["m0", "m1"]


async def test_slots_leave_a_node_that_other_pods_fill(cluster: MachineCluster, ready: None) -> None:
    """Nobody tells of other Pods; where the scheduler finds no room for reservations, their slots go to other Nodes, or to nobody."""
    requests = {"resources": {"requests": {"cpu": "5"}}}
    spec = {
        "nodeName": "m0",
        "containers": [{"name": "c", "image": "x", **requests}],
        "terminationGracePeriodSeconds": 0,
    }
    cluster.call("POST", PODS, {"metadata": {"name": "stranger"}, "spec": spec})
    cluster.machine(the_machine(4, ["m0", "m1"]))
    await usage(cluster, 4, 4, 0, 0, 40)
    assert cluster.bound(NAMESPACE) == ["m0", "m1", "m1", "m1"]
    # Where no Node has room for all, guests get the slots that are held, and no place that is not there.
    cluster.patch(f"/apis/{GROUP_VERSION}/machines/g", {"spec": the_machine(6, ["m0", "m1"])["spec"]})
    await settled(lambda: cluster.conditions("g")["CapacityShort"] == "True", 20)
    await usage(cluster, 6, 5, 0, 0, 40)
    await settled(
        lambda: not any(is_stuck(pod) for pod in cluster.pods(NAMESPACE)), 40, "no reservation is pinned in vain"
    )
    for i in range(6):
        cluster.pod(TEAM, f"g{i}", GUEST)
    await usage(cluster, 6, 0, 5, 1)


def is_stuck(pod: dict[str, Any]) -> bool:
    return not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")


async def test_types_that_depend_on_another_share_its_slots(cluster: MachineCluster, ready: None) -> None:
    child = {"spec": {"dependence": {"machineType": "a", "availableRatio": 0.5}}}
    cluster.machine(machine("g", {"a": offline(2), "half": child}, {"m0": ["a"]}))
    await settled(lambda: cluster.usage("g") == {"a": (2, 2, 0, 0), "half": (4, 4, 0, 0)}, 30)
    cluster.pod(TEAM, "half-0", {MACHINE_TYPE: "half"})
    await settled(lambda: cluster.usage("g") == {"a": (2, 1, 1, 0), "half": (4, 3, 1, 0)}, 30)
    assert cluster.call("GET", f"{PODS}/half-0")["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1"
    cluster.pod(TEAM, "half-1", {MACHINE_TYPE: "half"})
    cluster.pod(TEAM, "whole", GUEST)
    await settled(lambda: cluster.usage("g") == {"a": (2, 0, 2, 0), "half": (4, 0, 2, 0)}, 30)
    for i in range(2):
        cluster.delete_pod(TEAM, f"half-{i}")
    await settled(lambda: cluster.usage("g") == {"a": (2, 1, 1, 0), "half": (4, 2, 0, 0)}, 30)


@pytest.mark.long
async def test_a_stranger_in_the_place_costs_a_pause_and_no_slot(
    cluster: MachineCluster, ready: None, process: MachinesProcess
) -> None:
    """It comes between the reservation, which has left, and the guest."""
    cluster.machine(the_machine(1, ["m0"], cpu="5"))
    await usage(cluster, 1, 1, 0, 0)
    reservation = f"/api/v1/namespaces/{NAMESPACE}/pods/a-g-0"
    cluster.patch(reservation, {"metadata": {"finalizers": ["example.com/hold"]}})
    cluster.pod(TEAM, "guest", GUEST)
    await settled(lambda: "deletionTimestamp" in cluster.call("GET", reservation)["metadata"], 20, "it leaves")
    process.process.send_signal(signal.SIGSTOP)
    try:
        cluster.patch(reservation, {"metadata": {"finalizers": None}})
        await settled(lambda: cluster.find(reservation) is None, 10)
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "5"}}}
        cluster.pod(TEAM, "stranger", {"app": "s"}, containers=[container], nodeName="m0")
    finally:
        process.process.send_signal(signal.SIGCONT)
    await settled(lambda: pinned_node(cluster.call("GET", f"{PODS}/guest")["spec"]) == "m0", 20, "it is let in")
    # It is not bound in time: its reservation is wanted again, which finds no room either.
    await settled(lambda: cluster.conditions("g")["CapacityShort"] == "True", 90)
    await settled(lambda: cluster.call("GET", f"{SETS}/a-g")["spec"]["replicas"] == 1, 30)
    await usage(cluster, 1, 0, 0, 1)
    cluster.delete_pod(TEAM, "stranger")
    await usage(cluster, 1, 0, 1, 0, 150)
