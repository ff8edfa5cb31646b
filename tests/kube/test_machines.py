"""Machines on a real API server with its scheduler and controllers: reservations, guests and Nodes. Everything runs as the service
account with the rights that joining gives."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from moorage.kube import connect
from moorage.machine_groups import read
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.names import (
    DOMAIN,
    GROUP_VERSION,
    MACHINE_GROUP,
    MACHINE_TYPE,
    MESH,
    NODE_POOL,
    ORIGIN,
    POD_ROLE,
    SLOT_GATE,
    SLOT_OF,
)
from moorage.machines.install import install
from moorage.machines.mesh_documents import write_documents
from moorage.model.machines import MachineDocument
from moorage.model.object_names import NAMESPACE
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess, Refused
from moorage_testkit.machines import machine
from moorage_testkit.polling import wait_until
from moorage_testkit.servers import free_port

from .conftest import settled

NODES = ["m0", "m1", "m2"]
GUEST = {MACHINE_TYPE: "a"}
TEAM = "team"
METRICS = free_port()
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"


@pytest.fixture(scope="module")
def cluster() -> Iterator[MachineCluster]:
    with ControlPlane("machines") as plane:
        for name in NODES:
            plane.node(name, allocatable={"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"})
        found = MachineCluster(plane)
        asyncio.run(found.install(lambda api: install(api, "moorage", 2, lambda _text: None, deploy=False)))
        found.namespace(TEAM)
        yield found


@pytest.fixture(scope="module")
def process(cluster: MachineCluster) -> Iterator[MachinesProcess]:
    """Runs `moorage machines` as the service account, and waits until its hooks answer."""
    process = MachinesProcess(cluster, MOORAGE_METRICS=f"127.0.0.1:{METRICS}")
    try:
        until(lambda: process.is_ready() and hooks_answer(cluster), 40)
        yield process
    finally:
        process.remove()


@pytest_asyncio.fixture
async def ready(cluster: MachineCluster, process: MachinesProcess) -> AsyncIterator[None]:
    """Removes all Machines and Pods after a test."""
    yield
    await asyncio.to_thread(clean, cluster)


def until(check: Callable[[], bool], seconds: float) -> None:
    wait_until(check, within=seconds)


def hooks_answer(cluster: MachineCluster) -> bool:
    """Returns whether a guest of an unknown Machine is refused by our hook, and not because it cannot be reached."""
    try:
        cluster.pod(TEAM, "probe", {MACHINE_TYPE: "none"}, query="?dryRun=All")
    except Refused as refused:
        return "MachineUnknown" in refused.message
    return False


def clean(cluster: MachineCluster) -> None:
    for kind in ("apps/v1", "batch/v1"):
        plurals = ("deployments", "statefulsets", "daemonsets") if kind == "apps/v1" else ("jobs",)
        for plural in plurals:
            for obj in cluster.call("GET", f"/apis/{kind}/namespaces/{TEAM}/{plural}")["items"]:
                cluster.delete(f"/apis/{kind}/namespaces/{TEAM}/{plural}/{obj['metadata']['name']}")

    def is_clean() -> bool:
        for found in cluster.call("GET", f"/apis/{GROUP_VERSION}/machines")["items"]:
            with contextlib.suppress(Refused):  # it is gone
                cluster.delete(f"/apis/{GROUP_VERSION}/machines/{found['metadata']['name']}")
        pods = cluster.pods(TEAM) + cluster.pods(NAMESPACE)
        for pod in pods:
            with contextlib.suppress(Refused):
                cluster.delete_pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
        return not pods and not any(is_marked(cluster, name) for name in NODES)

    until(is_clean, 60)


def is_marked(cluster: MachineCluster, name: str) -> bool:
    """Returns whether a Node has labels, annotations or taints of Machines."""
    node = cluster.call("GET", f"/api/v1/nodes/{name}")
    meta = node["metadata"]
    return DOMAIN in str((meta["labels"], meta.get("annotations"), node["spec"].get("taints")))


def offline(slots: int, available: int | None = None, **spec: Any) -> dict[str, Any]:
    size = {"cpu": "2", "memory": "1Gi", **spec}
    return {"spec": size, "available": slots if available is None else available, "offlineSlots": slots}


def the_machine(slots: int = 3, nodes: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return machine("g", {"a": offline(slots, **more)}, {name: ["a"] for name in nodes or NODES}, taint=True)


async def usage(
    cluster: MachineCluster, maximum: int, reserved: int, used: int, waiting: int, seconds: float = 25
) -> None:
    wanted = (maximum, reserved, used, waiting)

    def check() -> bool:
        return cluster.usage("g").get("a") == wanted

    try:
        await settled(check, seconds)
    except AssertionError:
        pods = [
            (
                p["metadata"]["name"],
                p["spec"].get("nodeName"),
                p["spec"].get("schedulingGates"),
                p["status"].get("phase"),
            )
            for p in cluster.pods(NAMESPACE) + cluster.pods(TEAM)
        ]
        raise AssertionError(f"usage is {cluster.usage('g')}, not {wanted}: {pods}") from None


async def test_slots_are_held_and_given_to_guests(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine())
    await usage(cluster, 3, 3, 0, 0)
    good = {"Ready": "True", "CapacityShort": "False", "NodesHealthy": "True"}
    await settled(lambda: cluster.conditions("g") == good, 30, "all is well")
    for i in range(2):
        cluster.pod(TEAM, f"guest-{i}", GUEST)
    await usage(cluster, 3, 1, 2, 0)
    for pod in cluster.pods(TEAM):
        assert pod["metadata"]["labels"][MACHINE_GROUP] == "g" and pod["metadata"]["labels"][POD_ROLE] == "guest"
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}
    for i in range(2, 5):
        cluster.pod(TEAM, f"guest-{i}", GUEST)
    await usage(cluster, 3, 0, 3, 2)
    waiting = [p for p in cluster.pods(TEAM) if p["spec"].get("schedulingGates")]
    cluster.delete_pod(TEAM, waiting[0]["metadata"]["name"])
    cluster.delete_pod(TEAM, "guest-0")
    await usage(cluster, 3, 0, 3, 0)
    for pod in cluster.pods(TEAM):
        cluster.delete_pod(TEAM, pod["metadata"]["name"])
    await usage(cluster, 3, 3, 0, 0)
    # What users change is put back.
    cluster.patch(f"{SETS}/a-g", {"spec": {"replicas": 7}, "metadata": {"labels": {MACHINE_TYPE: "x"}}})
    await settled(
        lambda: (s := cluster.call("GET", f"{SETS}/a-g"))["spec"]["replicas"] == 3 and s["metadata"]["labels"][MACHINE_TYPE] == "a"
    )  # fmt: skip
    await usage(cluster, 3, 3, 0, 0)


async def test_the_objects_of_a_machine(cluster: MachineCluster, ready: None) -> None:
    document = the_machine(2)
    document["spec"]["nodePool"][2]["mode"] = "maintenance"
    cluster.machine(document)
    await usage(cluster, 2, 2, 0, 0)
    found = cluster.call("GET", f"{SETS}/a-g")
    assert found["spec"]["serviceName"] == "a-g" and found["spec"]["podManagementPolicy"] == "Parallel"
    service_path = f"/api/v1/namespaces/{NAMESPACE}/services/a-g"
    await settled(lambda: cluster.find(service_path), 30, "its Service is made")
    assert cluster.call("GET", service_path)["spec"]["clusterIP"] == "None"
    path = f"/apis/{GROUP_VERSION}/machinenodepools/g-node-pool"

    def pool_conditions() -> dict[str, str]:
        pool = cluster.find(path) or {}
        return {n["name"]: n["condition"] for n in (pool.get("status") or {}).get("nodePool") or ()}

    await settled(
        lambda: pool_conditions() == {"m0": "Ready", "m1": "Ready", "m2": "Maintenance"}, 30, "Nodes are told"
    )
    pool = cluster.call("GET", path)
    assert pool["spec"]["machineTypeStock"] == [{"name": "a"}] and pool["spec"]["machineGroup"] == "g"
    await settled(lambda: is_marked(cluster, "m0"), 30, "Nodes are marked")  # in one request each
    node = cluster.call("GET", "/api/v1/nodes/m0")
    assert node["metadata"]["labels"][NODE_POOL] == "ready"
    assert node["metadata"]["labels"]["imperator.tenzen-y.io/a"] == "g"
    assert node["metadata"]["annotations"][MACHINE_GROUP] == "g"
    taints = {t["key"]: t["value"] for t in node["spec"]["taints"]}
    assert taints == {"imperator.tenzen-y.io/a": "g", NODE_POOL: "ready"}
    # An edit of what is derived is put back.
    cluster.patch(path, {"spec": {"machineTypeStock": []}})
    await settled(lambda: cluster.call("GET", path)["spec"]["machineTypeStock"] == [{"name": "a"}])
    # Deleting it cleans the Nodes and waits for no guest.
    cluster.pod(TEAM, "guest", GUEST)
    await usage(cluster, 2, 1, 1, 0)
    cluster.delete(f"/apis/{GROUP_VERSION}/machines/g")
    await settled(lambda: not any(is_marked(cluster, name) for name in NODES), 30, "Nodes are cleaned")
    assert len(cluster.bound(TEAM)) == 1
    await settled(lambda: cluster.find(f"{SETS}/a-g") is None, 20, "its objects go")


def metric(name: str) -> float:
    """Returns the value of a metric with its labels; 0 where there is none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


def reasons(cluster: MachineCluster, kind: str, namespace: str = "default") -> list[str]:
    """Returns the reasons of events about objects of a kind."""
    events = cluster.call("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [event["reason"] for event in events if event["regarding"]["kind"] == kind]


async def test_slots_and_hand_overs_are_measured(cluster: MachineCluster, ready: None) -> None:
    before = metric("moorage_machines_handover_seconds_count")
    cluster.machine(the_machine(3))
    await usage(cluster, 3, 3, 0, 0)
    cluster.pod(TEAM, "guest", GUEST)
    await usage(cluster, 3, 2, 1, 0)
    states = {"reserved": 2, "granted": 0, "used": 1, "short": 0}
    labelled = {f'moorage_machines_slots{{machine="g/a",state="{state}"}}': count for state, count in states.items()}
    await settled(lambda: {name: metric(name) for name in labelled} == labelled, 30)
    await settled(lambda: metric("moorage_machines_handover_seconds_count") == before + 1, 30)
    await settled(lambda: metric('moorage_machines_admission_seconds_count{outcome="allowed"}') >= 2, 30)
    await settled(lambda: metric('moorage_machines_writes_total{kind="open"}') >= 1, 30)
    await settled(lambda: "Reconciled" in reasons(cluster, "Machine"), 10, "an event on the Machine")


async def test_replicas_flap(cluster: MachineCluster, ready: None) -> None:
    """Where two of three fit, the number of replicas never changes; it flipped 121 times in 20 s."""
    cluster.machine(the_machine(3, ["m0"], cpu="3"))
    await usage(cluster, 3, 2, 0, 0)
    await settled(lambda: cluster.conditions("g")["CapacityShort"] == "True", 30)
    version = cluster.call("GET", f"{SETS}/a-g")["metadata"]["generation"]
    await asyncio.sleep(5)
    assert cluster.call("GET", f"{SETS}/a-g")["metadata"]["generation"] == version
    assert cluster.usage("g")["a"] == (3, 2, 0, 0)


async def test_an_impossible_guest_burns_a_slot(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    cluster.pod(TEAM, "never", GUEST, nodeSelector={"disk": "none"})
    await usage(cluster, 1, 1, 0, 1)
    cluster.pod(TEAM, "later", GUEST)
    await usage(cluster, 1, 0, 1, 1)


async def test_parallel_guests_all_pass_on_the_last_slot(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(1))
    await usage(cluster, 1, 1, 0, 0)
    await asyncio.gather(*(asyncio.to_thread(cluster.pod, TEAM, f"g{i}", GUEST) for i in range(12)))
    events = f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events"
    await settled(
        lambda: any(e["reason"] == "SlotShort" for e in cluster.call("GET", events)["items"]), 20, "it is told"
    )
    for waiting in reversed(range(12)):
        await usage(cluster, 1, 0, 1, waiting)
        (name,) = [p["metadata"]["name"] for p in cluster.pods(TEAM) if p["spec"].get("nodeName")]
        cluster.delete_pod(TEAM, name)
    await usage(cluster, 1, 1, 0, 0)


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


async def test_one_lost_node_stops_the_others(cluster: MachineCluster, ready: None) -> None:
    document = the_machine(2, ["m0", "m1"])
    cluster.machine(document)
    await usage(cluster, 2, 2, 0, 0)
    with pytest.raises(Refused, match="UnknownNode"):
        cluster.patch(
            f"/apis/{GROUP_VERSION}/machines/g",
            {"spec": {"nodePool": [*document["spec"]["nodePool"], {"name": "gone", "mode": "ready", "machineType": [{"name": "a"}]}]}},
        )  # fmt: skip
    cluster.plane.node("m9", allocatable={"cpu": "8"})
    pool = [{"name": "m9", "mode": "ready", "machineType": [{"name": "a"}]}, *document["spec"]["nodePool"]]

    def is_taken() -> bool:
        try:
            cluster.patch(f"/apis/{GROUP_VERSION}/machines/g", {"spec": {"nodePool": pool}})
        except Refused as refused:
            assert "UnknownNode" in refused.message
            return False
        return True

    await settled(is_taken, 30, "the new Node is known")
    await settled(lambda: NODE_POOL in cluster.call("GET", "/api/v1/nodes/m9")["metadata"]["labels"], 20)
    cluster.delete("/api/v1/nodes/m9")
    await settled(lambda: cluster.conditions("g")["NodesHealthy"] == "False", 20, "the lost Node is told")
    cluster.patch("/api/v1/nodes/m1", {"metadata": {"labels": {NODE_POOL: None}}})
    await settled(lambda: NODE_POOL in cluster.call("GET", "/api/v1/nodes/m1")["metadata"]["labels"], 20)


async def test_nodes_are_never_cleaned(cluster: MachineCluster, ready: None) -> None:
    """A type, a taint and an entry that are dropped leave nothing on the Node, nor does a type of another Node."""
    types = {"a": offline(1), "b": offline(1)}
    path = f"/apis/{GROUP_VERSION}/machines/g"

    def marks(name: str) -> tuple[set[str], set[str]]:
        node = cluster.call("GET", f"/api/v1/nodes/{name}")
        keys = {key for key in node["metadata"]["labels"] if key.startswith("imperator.")}
        assert bool(keys) == (MACHINE_GROUP in (node["metadata"].get("annotations") or {})), "all in one request"
        return keys, {taint["key"] for taint in node["spec"].get("taints") or ()}

    a, b = "imperator.tenzen-y.io/a", "imperator.tenzen-y.io/b"
    cluster.machine(machine("g", types, {"m0": ["a", "b"], "m1": ["b"]}, taint=True))
    await settled(lambda: marks("m0") == ({a, b, NODE_POOL}, {a, b, NODE_POOL}), 20)
    await settled(lambda: marks("m1") == ({b, NODE_POOL}, {b, NODE_POOL}), 20)
    cluster.patch(path, {"spec": machine("g", types, {"m0": ["a"], "m1": ["b"]}, taint=True)["spec"]})
    await settled(lambda: marks("m0") == ({a, NODE_POOL}, {a, NODE_POOL}), 20, "without the type that it lost")
    cluster.patch(path, {"spec": machine("g", types, {"m0": ["a"], "m1": ["b"]})["spec"]})
    await settled(lambda: marks("m0") == ({a, NODE_POOL}, set()), 20, "without taints")
    cluster.patch(path, {"spec": machine("g", types, {"m1": ["a", "b"]})["spec"]})
    await settled(lambda: marks("m0") == (set(), set()), 20, "as before it was in the pool")


async def test_taints_are_rewritten_with_a_new_time_added(cluster: MachineCluster, ready: None) -> None:
    theirs = {"key": "example.com/theirs", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    cluster.patch("/api/v1/nodes/m0", {"spec": {"taints": [theirs]}})
    try:
        cluster.machine(the_machine(1, ["m0", "m1"]))
        await settled(lambda: len(cluster.call("GET", "/api/v1/nodes/m0")["spec"]["taints"]) == 3, 20, "ours are there")
        assert theirs in cluster.call("GET", "/api/v1/nodes/m0")["spec"]["taints"]
        cluster.delete(f"/apis/{GROUP_VERSION}/machines/g")
        await settled(
            lambda: cluster.call("GET", "/api/v1/nodes/m0")["spec"]["taints"] == [theirs], 20, "ours are gone"
        )
    finally:
        cluster.patch("/api/v1/nodes/m0", {"spec": {"taints": None}})


async def test_ready_stays_false(cluster: MachineCluster, ready: None) -> None:
    """A Machine that had a Node too few, and then none too few, is as a new one."""
    cluster.machine(the_machine(3, ["m0"], cpu="3"))
    await usage(cluster, 3, 2, 0, 0)
    path = f"/apis/{GROUP_VERSION}/machines/g"
    short = {"Ready": "True", "CapacityShort": "True", "NodesHealthy": "True"}
    await settled(lambda: cluster.conditions("g") == short, 30, "it is short of a slot")
    cluster.patch("/api/v1/nodes/m0", {"spec": {"unschedulable": True}})
    await settled(lambda: cluster.conditions("g")["NodesHealthy"] == "False", 20)
    cluster.patch("/api/v1/nodes/m0", {"spec": {"unschedulable": None}})
    cluster.patch(path, {"spec": the_machine(3, ["m0", "m1"], cpu="3")["spec"]})
    await usage(cluster, 3, 3, 0, 0)
    good = {"Ready": "True", "CapacityShort": "False", "NodesHealthy": "True"}
    await settled(lambda: cluster.conditions("g") == good, 20, "all is well again")

    def is_observed() -> bool:
        found = cluster.get_machine("g")
        return {c["observedGeneration"] for c in found["status"]["conditions"]} == {found["metadata"]["generation"]}

    await settled(is_observed, 30, "conditions are of what is stored")


async def test_a_cordoned_node_is_not_ready_at_once(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(2, ["m0", "m1"]))
    await usage(cluster, 2, 2, 0, 0)
    cluster.patch("/api/v1/nodes/m0", {"spec": {"unschedulable": True}})
    try:
        await settled(lambda: cluster.conditions("g")["NodesHealthy"] == "False", 10)
        taint = {"key": NODE_POOL, "value": "not-ready", "effect": "NoSchedule"}
        await settled(lambda: taint in cluster.call("GET", "/api/v1/nodes/m0")["spec"]["taints"], 30)
        assert NODE_POOL not in cluster.call("GET", "/api/v1/nodes/m0")["metadata"]["labels"]
    finally:
        cluster.patch("/api/v1/nodes/m0", {"spec": {"unschedulable": None}})
    await settled(lambda: cluster.conditions("g")["NodesHealthy"] == "True", 10)
    await usage(cluster, 2, 2, 0, 0)


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


async def test_removed_types_are_kept(cluster: MachineCluster, ready: None) -> None:
    types = {"a": offline(1), "b": offline(1)}
    cluster.machine(machine("g", types, {"m0": ["a", "b"], "m1": ["a"]}))
    await settled(lambda: cluster.usage("g").get("b") == (1, 1, 0, 0), 20)
    cluster.pod(TEAM, "guest", {MACHINE_TYPE: "b"})
    await settled(lambda: cluster.usage("g").get("b") == (1, 0, 1, 0), 20)
    kept = machine("g", {"a": offline(1)}, {"m0": ["a"], "m1": ["a"]})["spec"]
    cluster.patch(f"/apis/{GROUP_VERSION}/machines/g", {"spec": kept})
    await settled(lambda: cluster.find(f"{SETS}/b-g") is None, 20, "its objects go")
    # Its row stays while it is used.
    await settled(lambda: cluster.usage("g").get("b") == (0, 0, 1, 0), 20)
    cluster.delete_pod(TEAM, "guest")
    await settled(lambda: "b" not in cluster.usage("g"), 20)


async def test_a_machine_that_is_made_again_finds_its_guests(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine())
    await usage(cluster, 3, 3, 0, 0)
    for i in range(4):
        cluster.pod(TEAM, f"guest-{i}", GUEST)
    await usage(cluster, 3, 0, 3, 1)
    cluster.delete(f"/apis/{GROUP_VERSION}/machines/g")
    await settled(lambda: cluster.find(f"{SETS}/a-g") is None, 20, "its objects go")
    over = next(pod for pod in cluster.pods(TEAM) if pod["spec"].get("nodeName"))
    cluster.delete_pod(TEAM, over["metadata"]["name"])
    cluster.machine(the_machine())
    await usage(cluster, 3, 0, 3, 0)


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


async def test_the_next_leader_goes_on(cluster: MachineCluster, ready: None, process: MachinesProcess) -> None:
    second = MachinesProcess(cluster)
    try:
        await settled(second.is_ready, 30, "both are ready")
        cluster.machine(the_machine(2))
        await usage(cluster, 2, 2, 0, 0)
        cluster.pod(TEAM, "one", GUEST)
        await usage(cluster, 2, 1, 1, 0)
        process.stop(signal.SIGKILL)
        # The hooks are at a URL, which the next one has to write.
        await settled(lambda: hooks_answer(cluster), 20, "the other one answers")
        cluster.pod(TEAM, "two", GUEST)
        await usage(cluster, 2, 0, 2, 0, 15)
    finally:
        process.start()
        await settled(process.is_ready, 30, "it is ready again")
        second.remove()
        await settled(lambda: hooks_answer(cluster), 30, "it answers again")


async def test_nothing_is_written_at_rest(cluster: MachineCluster, ready: None) -> None:
    cluster.machine(the_machine(2))
    await usage(cluster, 2, 2, 0, 0)
    for i in range(4):
        cluster.pod(TEAM, f"g{i}", GUEST)
    await usage(cluster, 2, 0, 2, 2)

    def versions() -> dict[str, str]:
        paths = ["/api/v1/nodes", f"/apis/{GROUP_VERSION}/machines", f"/apis/{GROUP_VERSION}/machinenodepools", SETS]
        paths += [f"/api/v1/namespaces/{n}/pods" for n in (TEAM, NAMESPACE)]
        items = [obj for path in paths for obj in cluster.call("GET", path)["items"]]
        return {obj["metadata"]["uid"]: obj["metadata"]["resourceVersion"] for obj in items}

    for _ in range(6):  # what was begun before may end a while later on a busy machine
        before = await asyncio.to_thread(versions)
        await asyncio.sleep(4)
        if (after := await asyncio.to_thread(versions)) == before:
            break
    assert after == before


async def test_a_machine_of_the_mesh_that_is_refused_keeps_no_other_from_being_written(
    cluster: MachineCluster, ready: None
) -> None:
    cluster.machine(the_machine(1, ["m0"]))
    await usage(cluster, 1, 1, 0, 0)  # the hooks know it
    api = await connect(cluster.kubeconfig)
    try:
        state = ClusterMachines()
        own = cluster.get_machine("g")
        state.put_machine(own)
        documents = {}
        for name, group, node in (("first", "g", "m1"), ("second", "h", "m2")):
            wanted = machine(group, {"a": offline(1)}, {node: ["a"]})
            wanted["metadata"]["name"] = name
            found = read(wanted).machine
            assert found is not None
            documents[name] = MachineDocument(name=name, machine=found)
        await write_documents(api, state, documents)
    finally:
        await api.close()
    assert cluster.find(f"/apis/{GROUP_VERSION}/machines/first") is None, "its group is that of another Machine"
    assert cluster.get_machine("second")["metadata"]["labels"][ORIGIN] == MESH
