"""Machines on a real API server with its scheduler and controllers: reservations, guests and Nodes. Everything runs as the service
account with the rights that joining gives."""

from __future__ import annotations

import asyncio
import signal
import urllib.request

import pytest

from moorage.kube import connect
from moorage.machine_groups import read
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.names import (
    GROUP_VERSION,
    MACHINE_GROUP,
    MACHINE_TYPE,
    MESH,
    NODE_POOL,
    ORIGIN,
    POD_ROLE,
)
from moorage.machines.mesh_documents import write_documents
from moorage.model.machines import MachineDocument
from moorage.model.object_names import NAMESPACE
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess, Refused
from moorage_testkit.machines import machine, offline

from .conftest import settled
from .machines import (
    GUEST,
    METRICS,
    NODES,
    SETS,
    TEAM,
    cluster,
    hooks_answer,
    is_marked,
    process,
    ready,
    the_machine,
    usage,
)

__all__ = ["cluster", "process", "ready"]  # fixtures, with a control plane of this module


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


@pytest.mark.parametrize("label", [MACHINE_TYPE, MACHINE_GROUP, POD_ROLE])
async def test_a_label_that_is_taken_off_a_reservation_is_put_back(
    cluster: MachineCluster, ready: None, label: str
) -> None:
    """Its StatefulSet lets it go without that, and makes no other of its name."""
    cluster.machine(the_machine(2))
    await usage(cluster, 2, 2, 0, 0)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/a-g-0"
    before = cluster.call("GET", path)["metadata"]
    cluster.patch(path, {"metadata": {"labels": {label: None}}})

    def is_as_before() -> bool:
        found = cluster.call("GET", path)["metadata"]
        return bool(found["labels"] == before["labels"] and found.get("ownerReferences") == before["ownerReferences"])

    await settled(is_as_before, 30, "its StatefulSet has it again")
    await usage(cluster, 2, 2, 0, 0)


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

    cluster.patch(f"/apis/{GROUP_VERSION}/machines/g", {"spec": {"nodePool": pool}})
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


async def test_while_nobody_answers_new_guests_are_refused_and_no_other_pod_is(
    cluster: MachineCluster, ready: None, process: MachinesProcess
) -> None:
    cluster.machine(the_machine(2))
    await usage(cluster, 2, 2, 0, 0)
    cluster.pod(TEAM, "one", GUEST)
    await usage(cluster, 2, 1, 1, 0)
    process.stop(signal.SIGKILL)
    try:
        with pytest.raises(Refused, match="failed calling webhook"):
            cluster.pod(TEAM, "two", GUEST)
        cluster.pod(TEAM, "other", {"app": "x"})
        cluster.pod("default", "elsewhere", GUEST, query="?dryRun=All")
        cluster.patch(f"/api/v1/namespaces/{TEAM}/pods/other", {"metadata": {"labels": {"app": "y"}}})
        cluster.delete_pod(TEAM, "one")  # what ends is not asked about
    finally:
        process.start()
        await settled(lambda: process.is_ready() and hooks_answer(cluster), 60, "it answers again")
    await usage(cluster, 2, 2, 0, 0)


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
