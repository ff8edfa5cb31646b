"""Tests that slots of another controller of Machines are taken over once it is gone, one by one, and no running guest stops."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.machine_groups.documents import read
from moorage.machine_groups.names import (
    GUEST,
    MACHINE_GROUP,
    MACHINE_TYPE,
    NODE_MARKS,
    NODE_POOL,
    OTHER_FINALIZER,
    OTHER_NAMESPACE,
    POD_ROLE,
    RESERVATION,
    SLOT_GATE,
    SLOT_OF,
)
from moorage.model.object_names import NAMESPACE
from moorage_testkit.machine_world import TEAM, World
from moorage_testkit.machines import machine

OTHER = "Deployment imperator-system/imperator-controller"
SIZE = {"cpu": "2", "memory": "1Gi"}
Object = dict[str, Any]


def labels(role: str, group: str = "g") -> dict[str, str]:
    return {MACHINE_GROUP: group, MACHINE_TYPE: "a", POD_ROLE: role}


def pod(name: str, namespace: str, role: str, node: str, group: str = "g") -> Object:
    containers = [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]
    spec: Object = {"containers": containers} | ({"nodeName": node} if node else {})
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels(role, group)},
        "spec": spec,
        "status": {},
    }


def left_behind(
    reserved: list[str], guests: list[str], *, slots: int, per_node: int, seed: int = 1, nodes: int = 2
) -> World:
    """Returns a cluster as the other controller leaves it. `reserved` and `guests`: Nodes of Pods, "" of those that are not bound."""
    names = [f"n{i}" for i in range(nodes)]
    kind = {"spec": SIZE, "available": slots, "offlineSlots": slots}
    allocatable = {name: {"cpu": str(2 * per_node), "memory": "64Gi"} for name in names}
    w = World(machine("g", {"a": kind}, {name: ["a"] for name in names}), allocatable, random.Random(seed))
    owner = {"kind": "Machine", "name": "g", "uid": w.machine("g")["metadata"]["uid"], "controller": True}
    for plural in ("StatefulSet", "Service"):
        meta = {"name": "g-a", "namespace": OTHER_NAMESPACE, "labels": labels(RESERVATION), "ownerReferences": [owner]}
        w.create(plural, {"metadata": meta, "spec": {"replicas": len(reserved)}})
    meta = {"name": "g-node-pool", "labels": {MACHINE_GROUP: "g"}, "ownerReferences": [owner], "finalizers": [OTHER_FINALIZER]}  # fmt: skip
    w.create("MachineNodePool", {"metadata": meta, "spec": {"machineGroupName": "g", "nodePool": []}})
    for number, node in enumerate(reserved):
        w.create("Pod", pod(f"g-a-{number}", OTHER_NAMESPACE, RESERVATION, node))
    for number, node in enumerate(guests):
        w.create("Pod", pod(f"guest-{number}", TEAM, GUEST, node))
    for name in names:
        marked = w.objects["Node", "", name]
        marked["metadata"]["labels"] |= {NODE_POOL: "ready", "imperator.tenzen-y.io/a": "g"}
        marked["metadata"]["annotations"] = {MACHINE_GROUP: "g"}
        w.change("Node", marked)
    w.start()  # a process that comes later lists all of this before it acts
    return w


def old(w: World) -> list[Object]:
    return [p for p in w.pods() if p["metadata"]["namespace"] == OTHER_NAMESPACE]


def bound(w: World, namespace: str) -> Counter[str]:
    found = [p["spec"].get("nodeName", "") for p in w.pods() if p["metadata"]["namespace"] == namespace]
    return Counter(node for node in found if node)


def test_while_the_other_controller_is_there_nothing_is_written_but_the_status() -> None:
    w = left_behind(["n0", "n1"], ["n0"], slots=4, per_node=2)
    w.core.set_other_controller(OTHER)
    before = {key: obj["metadata"]["resourceVersion"] for key, obj in w.objects.items() if key[0] != "Machine"}
    w.rest()
    assert {key: obj["metadata"]["resourceVersion"] for key, obj in w.objects.items() if key[0] != "Machine"} == before
    assert w.condition("g", "Ready")["reason"] == "OtherControllerActive"
    assert set(w.writes) == {"status"}


def test_reservations_guests_objects_and_nodes_are_taken_over() -> None:
    w = left_behind(["n0", "n1", ""], ["n0"], slots=4, per_node=2)
    w.core.set_other_controller(OTHER)
    w.rest()
    w.core.set_other_controller("")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 4, "reserved": 3, "used": 1, "waiting": 0}
    assert old(w) == [] and not [key for key in w.objects if key[1] == OTHER_NAMESPACE]
    assert bound(w, NAMESPACE) == {"n0": 1, "n1": 2}
    guest = w.objects["Pod", TEAM, "guest-0"]
    assert guest["metadata"]["annotations"][SLOT_OF] == "g/a" and "deletionTimestamp" not in guest["metadata"]
    pool = w.objects["MachineNodePool", "", "g-node-pool"]
    assert "finalizers" not in pool["metadata"] and pool["spec"]["machineGroup"] == "g"
    assert NODE_MARKS in w.objects["Node", "", "n0"]["metadata"]["annotations"]
    assert w.condition("g", "Ready")["reason"] == "Reconciled"
    before = w.version
    for _ in range(5):
        w.now += 61
        w.core.wake(w.now)
        w.plan()
        assert w.pending == []
    assert w.version == before


def test_a_pool_of_another_name_goes_with_its_finalizer() -> None:
    w = left_behind([], [], slots=1, per_node=1)
    pool = w.objects["MachineNodePool", "", "g-node-pool"]
    w.remove("MachineNodePool", "", "g-node-pool")
    w.create("MachineNodePool", {**pool, "metadata": {**pool["metadata"], "name": "older-node-pool"}})
    w.rest()
    assert [key[2] for key in w.objects if key[0] == "MachineNodePool"] == ["g-node-pool"]


def test_a_guest_that_was_let_in_without_a_gate_gets_the_next_slot() -> None:
    w = left_behind(["n0"], [""], slots=1, per_node=1, nodes=1)
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 1, "reserved": 0, "used": 1, "waiting": 0}
    assert w.objects["Pod", TEAM, "guest-0"]["spec"]["nodeName"] == "n0"


def test_a_new_guest_gets_a_place_that_the_other_controller_holds() -> None:
    w = left_behind(["n0"], [], slots=1, per_node=1, nodes=1)
    w.guest("late", "a")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 1, "reserved": 0, "used": 1, "waiting": 0}
    assert SLOT_GATE not in str(w.objects["Pod", TEAM, "late"]["spec"])


def test_reservations_of_a_group_that_is_gone_are_removed() -> None:
    w = left_behind([], [], slots=1, per_node=1)
    w.create("Pod", pod("x-a-0", OTHER_NAMESPACE, RESERVATION, "n0", group="x"))
    w.rest()
    assert old(w) == []


def test_marks_of_a_node_that_is_in_no_pool_are_taken_off() -> None:
    w = left_behind([], [], slots=1, per_node=1)
    marked = {NODE_POOL: "not-ready", "imperator.tenzen-y.io/b": "gone", "imperator.tenzen-y.io/own": "theirs"}
    meta = {"name": "lost", "labels": dict(marked), "annotations": {MACHINE_GROUP: "gone", "keep": "it"}}
    taints = [{"key": NODE_POOL, "value": "not-ready", "effect": "NoSchedule"}, {"key": "own", "effect": "NoSchedule"}]
    w.create("Node", {"metadata": meta, "spec": {"taints": taints}, "status": {}})
    w.rest()
    found = w.objects["Node", "", "lost"]
    assert found["metadata"]["labels"] == {"imperator.tenzen-y.io/own": "theirs"}
    assert found["metadata"]["annotations"] == {"keep": "it"} and found["spec"]["taints"] == taints[1:]


def test_the_number_of_gpus_may_be_stored_as_text() -> None:
    gpu = {"type": "nvidia.com/gpu", "family": "ampere"}
    for num, wanted in (("2", 2), (3, 3)):
        found = read(machine("g", {"a": {"spec": {**SIZE, "gpu": {**gpu, "num": num}}, "available": 1}}, {"n0": ["a"]}))
        assert found.machine is not None and found.machine.types[0].spec.gpu is not None
        assert found.machine.types[0].spec.gpu.num == wanted
    for num in ("500m", "0", "", "x"):
        found = read(machine("g", {"a": {"spec": {**SIZE, "gpu": {**gpu, "num": num}}, "available": 1}}, {"n0": ["a"]}))
        assert [v.path for v in found.violations] == ["spec.machineTypes[0].spec.gpu.num"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_places_are_replaced_one_by_one(seed: int) -> None:
    """Whatever the order of events, at most one place of each Node is open at a time, and no guest that runs is touched."""
    rng = random.Random(seed)
    nodes, per_node = rng.randint(1, 3), rng.randint(1, 3)
    places = [f"n{i}" for i in range(nodes) for _ in range(per_node)]
    rng.shuffle(places)
    guests = places[: rng.randint(0, len(places) - 1)]
    reserved = places[len(guests) :] + [""] * rng.randint(0, 2)
    w = left_behind(reserved, guests, slots=len(places), per_node=per_node, seed=seed, nodes=nodes)
    running = {p["metadata"]["uid"] for p in w.guests()}
    for _ in range(rng.randint(100, 400)):
        if rng.random() < 0.005:
            w.start()
        w.step()
        for i in range(nodes):
            there = sum(w_pod["spec"].get("nodeName") == f"n{i}" for w_pod in w.pods())
            assert per_node - 1 <= there <= per_node
    w.rest()
    assert old(w) == [] and running == {p["metadata"]["uid"] for p in w.guests()}
    used = len(guests)
    assert w.usage("g")["a"] == {"maximum": len(places), "reserved": len(places) - used, "used": used, "waiting": 0}
