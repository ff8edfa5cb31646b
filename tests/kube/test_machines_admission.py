"""Guests of a real API server, with whatever their Pods have of their own: affinity, gates, sidecars, and controllers that make them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorage.machine_groups.names import (
    DOMAIN,
    MACHINE_GROUP,
    MACHINE_TYPE,
    NAMESPACE_LABELS,
    POD_ROLE,
    SLOT_GATE,
    SLOT_OF,
)
from moorage.machines.hook_configurations import NAME, mutating, paths
from moorage_testkit.machine_cluster import MachineCluster, Refused

from .conftest import settled
from .machines import GUEST, NODES, TEAM, cluster, hooks_answer, process, ready, the_machine, usage

__all__ = ["cluster", "process", "ready"]  # fixtures, with a control plane of this module


async def test_own_affinity_terms_let_guests_escape(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(1, ["m0"]))
    await usage(cluster, 1, 1, 0, 0)
    terms: list[dict[str, Any]] = [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m1"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    cluster.pod(TEAM, "sly", GUEST, affinity={"nodeAffinity": required})
    await usage(cluster, 1, 0, 1, 0)
    assert cluster.bound(TEAM) == ["m0"]


async def test_crash_on_exists(cluster: MachineCluster, ready: None) -> None:
    """Requirements without values, also in preferences, are taken as they are."""
    cluster.machine(the_machine(1, ["m0"]))
    await usage(cluster, 1, 1, 0, 0)
    requirements = [
        {"key": "kubernetes.io/hostname", "operator": "Exists"},
        {"key": "no/such", "operator": "DoesNotExist"},
    ]
    term = {"matchExpressions": requirements}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}],
    }
    cluster.pod(TEAM, "exists", GUEST, affinity={"nodeAffinity": affinity}, tolerations=[{"operator": "Exists"}])
    await usage(cluster, 1, 0, 1, 0)
    assert cluster.bound(TEAM) == ["m0"]


@pytest.mark.parametrize("affinity", [{"podAffinity": {}}, {"nodeAffinity": {}}, {}])
async def test_crash_on_affinity_without_node_affinity(
    cluster: MachineCluster, ready: None, affinity: dict[str, Any]
) -> None:
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    cluster.pod(TEAM, "odd", GUEST, affinity=affinity)
    await usage(cluster, 1, 0, 1, 0)


async def test_guest_updates_denied_and_jobs_never_finish(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(2))
    await usage(cluster, 2, 2, 0, 0)
    template = {
        "metadata": {"labels": GUEST},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]},
    }
    job = {"metadata": {"name": "work"}, "spec": {"completions": 4, "parallelism": 4, "template": template}}
    cluster.call("POST", f"/apis/batch/v1/namespaces/{TEAM}/jobs", job)

    def succeeded() -> bool:
        status = cluster.call("GET", f"/apis/batch/v1/namespaces/{TEAM}/jobs/work").get("status") or {}
        return bool(status.get("succeeded") == 4 and any(c["type"] == "Complete" for c in status.get("conditions", ())))

    await settled(succeeded, 40, "the Job completes")
    await usage(cluster, 2, 2, 0, 0)


async def test_a_wrong_container_name_becomes_index_0(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    with pytest.raises(Refused, match="there is no container 'nope'"):
        cluster.pod(TEAM, "wrong", {**GUEST, "imperator.tenzen-y.io/injecting-container": "nope"})


async def test_terminating_guests_are_not_counted(cluster: MachineCluster, ready: None) -> None:
    """A guest that ends slowly keeps its slot until it is gone."""
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    made = cluster.pod(TEAM, "slow", GUEST)
    path = f"/api/v1/namespaces/{TEAM}/pods/slow"
    cluster.patch(path, {"metadata": {"finalizers": ["example.com/stay"]}})
    await usage(cluster, 1, 0, 1, 0)
    cluster.delete(path)
    cluster.pod(TEAM, "next", GUEST)
    await usage(cluster, 1, 0, 1, 1)
    assert cluster.call("GET", path)["metadata"]["uid"] == made["metadata"]["uid"] and cluster.bound(TEAM) == []
    cluster.patch(path, {"metadata": {"finalizers": None}})
    await usage(cluster, 1, 0, 1, 0)
    assert [p["metadata"]["name"] for p in cluster.pods(TEAM)] == ["next"]


async def test_dry_runs_and_refused_pods_leak_nothing(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    for i in range(3):
        made = cluster.pod(TEAM, f"dry-{i}", GUEST, query="?dryRun=All")
        assert {"name": SLOT_GATE} in made["spec"]["schedulingGates"]
    with pytest.raises(Refused):
        cluster.pod(TEAM, "bad", GUEST, restartPolicy="Sometimes")
    await asyncio.sleep(1)
    assert cluster.usage("g")["a"] == (1, 1, 0, 0)


async def test_a_namespace_may_be_enabled_by_both_labels(cluster: MachineCluster, ready: None) -> None:
    """Two hooks change the guest then, the second one nothing."""
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    labels = dict.fromkeys(NAMESPACE_LABELS, "enabled")
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": "both", "labels": labels}})
    spec = cluster.pod("both", "dry", GUEST, query="?dryRun=All")["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    ours = [t for t in spec["tolerations"] if t["key"].startswith(DOMAIN)]
    assert (len(term["matchExpressions"]), len(ours), spec["schedulingGates"]) == (2, 2, [{"name": SLOT_GATE}])
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}


async def test_only_machines_open_gates_and_labels_stay(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(0))
    await settled(lambda: cluster.usage("g").get("a") == (0, 0, 0, 0), 20)
    cluster.pod(TEAM, "guest", GUEST)
    path = f"/api/v1/namespaces/{TEAM}/pods/guest"
    with pytest.raises(Refused, match="scheduling gate"):
        cluster.patch(path, {"spec": {"schedulingGates": None}})
    for key in (MACHINE_TYPE, MACHINE_GROUP, POD_ROLE):
        with pytest.raises(Refused, match="cannot be changed"):
            cluster.patch(path, {"metadata": {"labels": {key: "x"}}})
    # Nor does a guest become a Pod about which nobody is asked.
    with pytest.raises(Refused, match="cannot be changed"):
        cluster.patch(path, {"metadata": {"annotations": {SLOT_OF: None}}})
    cluster.patch(path, {"metadata": {"labels": {"app": "x"}, "annotations": {"app": "x"}}})


async def test_foreign_gates_sidecars_and_generated_names(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(2))
    await usage(cluster, 2, 2, 0, 0)
    cluster.pod(TEAM, "gated", GUEST, schedulingGates=[{"name": "example.com/quota"}])
    containers = [
        {"name": "main", "image": "x"},
        {"name": "side", "image": "x", "resources": {"requests": {"cpu": "500m"}}},
    ]
    body = {
        "metadata": {"generateName": "many-", "labels": GUEST},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 0},
    }
    made = cluster.call("POST", f"/api/v1/namespaces/{TEAM}/pods", body)
    assert made["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1500m"
    await usage(cluster, 2, 1, 1, 1)
    cluster.patch(f"/api/v1/namespaces/{TEAM}/pods/gated", {"spec": {"schedulingGates": [{"name": SLOT_GATE}]}})
    await usage(cluster, 2, 0, 2, 0)


async def test_guests_of_stateful_sets_and_daemon_sets(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(3, cpu="5"))  # one on each Node
    await usage(cluster, 3, 3, 0, 0)
    labels = {**GUEST, "app": "db"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}], "terminationGracePeriodSeconds": 0},
    }
    spec = {"selector": {"matchLabels": {"app": "db"}}, "serviceName": "db", "replicas": 2, "template": template}
    cluster.call("POST", f"/apis/apps/v1/namespaces/{TEAM}/statefulsets", {"metadata": {"name": "db"}, "spec": spec})
    await usage(cluster, 3, 1, 2, 0)
    cluster.delete(f"/apis/apps/v1/namespaces/{TEAM}/statefulsets/db")
    await settled(lambda: len(cluster.bound(TEAM)) <= 2, 20)
    for pod in cluster.pods(TEAM):
        cluster.delete_pod(TEAM, pod["metadata"]["name"])
    await usage(cluster, 3, 3, 0, 0)
    pod_spec = {"containers": [{"name": "c", "image": "x"}], "terminationGracePeriodSeconds": 0}
    template = {"metadata": {"labels": labels}, "spec": pod_spec | {"tolerations": [{"operator": "Exists"}]}}
    daemons = {"selector": {"matchLabels": {"app": "db"}}, "template": template}
    cluster.call("POST", f"/apis/apps/v1/namespaces/{TEAM}/daemonsets", {"metadata": {"name": "ds"}, "spec": daemons})
    await settled(lambda: cluster.bound(TEAM) == NODES, 40, "one guest on each Node")
    await usage(cluster, 3, 0, 3, 0)


async def test_pods_that_were_there_count_once_their_namespace_is_enabled(cluster: MachineCluster, ready: None) -> None:
    """Their group is the label's, or else that of the only Machine with their type; they get all labels of guests. One that does not
    tolerate the taints of its Nodes waits, and costs no slot."""
    cluster.machine(the_machine(3))
    await usage(cluster, 3, 3, 0, 0)
    cluster.namespace("later", label=None)
    try:
        tolerated: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}
        for name, labels, spec in (
            ("typed", GUEST, tolerated),
            ("grouped", {**GUEST, MACHINE_GROUP: "g"}, tolerated),
            ("plain", GUEST, {}),
        ):
            assert "schedulingGates" not in cluster.pod("later", name, labels, **spec)["spec"]
        cluster.patch("/api/v1/namespaces/later", {"metadata": {"labels": {NAMESPACE_LABELS[0]: "enabled"}}})
        await usage(cluster, 3, 1, 2, 1)
        wanted = {MACHINE_GROUP: "g", MACHINE_TYPE: "a", POD_ROLE: "guest"}
        await settled(lambda: all(wanted.items() <= p["metadata"]["labels"].items() for p in cluster.pods("later")), 30)
    finally:
        for name in ("typed", "grouped", "plain"):
            cluster.delete_pod("later", name)
    await usage(cluster, 3, 3, 0, 0)


async def test_a_pod_that_asks_for_a_slot_after_it_could_be_injected_is_refused(
    cluster: MachineCluster, ready: None
) -> None:
    """Another hook may have made it ask. In a namespace that is not enabled, nobody is asked about it."""
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    configurations = paths()["MutatingWebhookConfiguration"]

    def is_refused() -> bool:
        try:
            cluster.pod(TEAM, "late", GUEST, query="?dryRun=All")
        except Refused as refused:
            return "another hook changed what a guest needs" in refused.message
        return False

    cluster.delete(f"{configurations}/{NAME}")
    try:
        await settled(is_refused, 20, "a guest that was not injected is refused")
        cluster.pod(TEAM, "other", {"app": "x"}, query="?dryRun=All")
        cluster.pod("default", "elsewhere", GUEST, query="?dryRun=All")
    finally:
        cluster.call("POST", configurations, mutating())
        await settled(lambda: hooks_answer(cluster), 40, "guests are injected again")
