"""Machines put back changes that others make to their objects, and write and tell what becomes of their Nodes and types."""

from __future__ import annotations

import copy
import random

import pytest

from moorage.machine_groups.effects import Effect
from moorage.machine_groups.names import MACHINE_TYPE, NODE_POOL
from moorage.machine_groups.reports import MeshReports
from moorage.model.object_names import NAMESPACE
from moorage_testkit.machine_world import World, world
from moorage_testkit.machines import machine, offline


def test_events_tell_what_changes_with_a_machine() -> None:
    w = world(slots=3, nodes=1)
    w.rest()
    w.now += 5
    w.rest()
    assert w.told == [("g", "Reconciled"), ("g", "CapacityShort")]
    node = w.objects["Node", "", "n0"]
    for unschedulable in (True, False):
        node["spec"]["unschedulable"] = unschedulable
        w.change("Node", node)
        w.rest()
        w.now += 5
        w.rest()
    assert w.told[2:] == [("g", "NodesNotReady"), ("g", "AllNodesReady")]


@pytest.mark.parametrize("watch_first", [True, False])
def test_a_node_that_others_write_at_the_same_time_is_written_again_at_once(watch_first: bool) -> None:
    """Kubernetes taints a Node that is cordoned while its label is being taken off."""
    w = world()
    w.rest()
    node = w.objects["Node", "", "n0"]
    node["spec"]["unschedulable"] = True
    w.change("Node", node)
    while w.events:
        w.observe()
    effects, _ = w.core.plan(w.now)
    (effect,) = [e for e in effects if e.kind == "Node"]
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    node["spec"]["taints"] = [*node["spec"].get("taints", []), taint]
    w.change("Node", node)
    assert w.perform(effect) is None, "a conflict"
    if watch_first:
        while w.events:
            w.observe()
    w.core.done(effect, None, w.now)
    while w.events:
        w.observe()
    again, _ = w.core.plan(w.now)
    assert [e.name for e in again if e.kind == "Node"] == ["n0"]


def test_what_others_change_again_and_again_is_put_back_at_once_and_then_every_30_seconds() -> None:
    w = world(slots=3, nodes=2)
    w.rest()
    before, began = w.writes.total(), w.now
    while w.now < began + 120:
        found = w.objects["StatefulSet", NAMESPACE, "a-g"]
        found["spec"]["replicas"] = 7
        w.change("StatefulSet", found)
        pool = w.objects["MachineNodePool", "", "g-node-pool"]
        pool["spec"]["machineTypeStock"] = []
        w.change("MachineNodePool", pool)
        node = w.objects["Node", "", "n0"]
        node["metadata"]["labels"][NODE_POOL] = "theirs"
        w.change("Node", node)
        w.rest()
    # Three things: each at once the first times, and four times later; answers of some are lost.
    assert 12 <= w.writes.total() - before <= 40, w.writes


@pytest.mark.parametrize("other", ["", "Deployment imperator-system/imperator-controller"])
def test_a_controller_that_writes_the_same_status_is_answered_every_30_seconds(other: str) -> None:
    """It writes whenever the object changes: two that answer each other at once would do nothing else."""
    w = world()
    w.rest()
    w.core.set_other_controller(other)
    w.rest()
    before, began = w.writes["status"], w.now
    while w.now < began + 120:
        found = w.machine("g")
        found["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "Theirs"}]
        w.change("Machine", found)
        w.rest()
        w.now += 1
    assert 4 <= w.writes["status"] - before <= 12
    w.now += 30
    w.rest()
    assert w.condition("g", "Ready")["reason"] == ("OtherControllerActive" if other else "Reconciled")


def test_objects_of_the_same_name_do_not_wait_for_each_other() -> None:
    """A Machine and a Node that are made again and again are new each time."""
    w = world(slots=0, nodes=2)
    for _ in range(4):
        w.rest()
        began = w.now
        assert w.condition("g", "Ready")["status"] == "True"
        assert w.objects["Node", "", "n0"]["metadata"]["labels"][NODE_POOL] == "ready"
        spec = copy.deepcopy(w.machine("g")["spec"])
        meta = {"name": "g", "labels": w.machine("g")["metadata"]["labels"]}
        w.remove("Machine", "", "g")
        w.rest()
        w.remove("Node", "", "n0")
        status = {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
        w.create("Node", {"metadata": {"name": "n0", "labels": {}}, "spec": {}, "status": status})
        w.create("Machine", {"metadata": meta, "spec": spec})
    assert w.now < began + 15


def test_nothing_waits_because_others_changed_an_object_again() -> None:
    """Neither guests for a slot while somebody changes its StatefulSet, nor marks of a Node that is not ready any more."""
    w = world(slots=3, nodes=2)
    w.rest()
    for _ in range(4):
        found = w.objects["StatefulSet", NAMESPACE, "a-g"]
        found["metadata"]["labels"][MACHINE_TYPE] = "x"
        w.change("StatefulSet", found)
        node = w.objects["Node", "", "n0"]
        node["metadata"]["labels"].pop(NODE_POOL, None)
        w.change("Node", node)
        w.rest()
    assert NODE_POOL not in node["metadata"]["labels"], "it is not put back again at once"
    began = w.now
    w.guest("one", "a")
    node["spec"]["unschedulable"] = True
    w.change("Node", node)
    w.rest()
    taints = {taint["key"]: taint["value"] for taint in node["spec"]["taints"]}
    assert w.now < began + 5 and taints[NODE_POOL] == "not-ready"
    assert w.usage("g")["a"]["used"] == 1


def test_one_lost_node_stops_the_others() -> None:
    w = world()
    w.rest()
    w.remove("Node", "", "n0")
    node = w.objects["Node", "", "n1"]
    node["spec"]["unschedulable"] = True
    w.change("Node", node)
    w.rest()
    taints = {taint["key"]: taint["value"] for taint in node["spec"]["taints"]}
    assert taints[NODE_POOL] == "not-ready" and NODE_POOL not in node["metadata"]["labels"]
    assert w.condition("g", "NodesHealthy")["message"] == "n0, n1"


def test_removed_types_are_kept() -> None:
    """The objects of a type that is removed go; its row stays while it is used."""
    w = world(slots=3, nodes=2, per_node=4)
    found = w.objects["Machine", "", "g"]
    found["spec"]["machineTypes"].append({"name": "b", **offline(1)})
    found["spec"]["nodePool"][0]["machineType"].append({"name": "b"})
    w.change("Machine", found)
    w.rest()
    w.guest("guest", "b")
    w.rest()
    assert w.usage("g")["b"] == {"maximum": 1, "reserved": 0, "used": 1, "waiting": 0}
    del found["spec"]["machineTypes"][1], found["spec"]["nodePool"][0]["machineType"][1]
    w.change("Machine", found)
    w.rest()
    assert not {("StatefulSet", NAMESPACE, "b-g"), ("Service", NAMESPACE, "b-g")} & w.objects.keys()
    assert w.usage("g")["b"] == {"maximum": 0, "reserved": 0, "used": 1, "waiting": 0}
    w.finish(w.objects["Pod", "team", "guest"])
    w.rest()
    assert w.usage("g").keys() == {"a"}


@pytest.mark.parametrize("restarts", [False, True])
def test_ready_stays_false(restarts: bool) -> None:
    """What a Machine of another controller has against the rules is told, and nothing of it changes; once it is mended, it is as a new one."""
    w = world(slots=3, nodes=2)
    w.guest("one", "a")
    w.rest()
    found = w.objects["Machine", "", "g"]
    good = copy.deepcopy(found["spec"])
    found["spec"]["machineTypes"][0]["spec"]["cpu"] = "-5"
    w.change("Machine", found)
    if restarts:
        w.start()
    w.rest()
    ready = w.condition("g", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Invalid")
    assert "spec.machineTypes[0].spec.cpu" in ready["message"]
    assert w.objects["Node", "", "n0"]["metadata"]["labels"][NODE_POOL] == "ready"
    assert sum(bool(pod["spec"].get("nodeName")) for pod in w.pods()) == 3
    found["spec"] = good
    w.change("Machine", found)
    if restarts:  # as the process does for a group that it did not know
        w.rest()
        w.start()
    w.guest("two", "a")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 3, "reserved": 1, "used": 2, "waiting": 0}
    assert w.condition("g", "Ready")["status"] == "True"


def test_what_becomes_of_a_node_is_told_at_once() -> None:
    """Also where the status was written just before."""
    w = world()
    w.rest()
    w.guest("one", "a")
    w.rest()
    w.core.by_group["g"].status_at = w.now
    node = w.objects["Node", "", "n0"]
    for unschedulable, state in ((True, "False"), (False, "True"), (True, "False")):
        node["spec"]["unschedulable"] = unschedulable
        w.change("Node", node)
        while w.events:
            w.observe()
        w.plan()
        statuses = [effect for effect in w.pending if effect.verb == "status"]
        assert {effect.kind for effect in statuses} == {"Machine", "MachineNodePool"}
        while w.pending:
            effect = w.pending.pop(0)
            w.core.done(effect, w.perform(effect), w.now)
        assert w.condition("g", "NodesHealthy")["status"] == state


def test_nodes_and_machines_that_came_and_went_are_forgotten() -> None:
    w = world(slots=2, nodes=1)
    w.rest()
    status = {"allocatable": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}

    def size() -> int:
        return len(w.core.writes._repaired) + len(w.core._versions)

    sizes = []
    for i in range(4):
        w.create("Node", {"metadata": {"name": f"x{i}", "labels": {}}, "spec": {}, "status": status})
        w.create("Machine", machine(f"h{i}", {"b": offline(0)}, {f"x{i}": ["b"]}))
        w.rest()
        assert w.objects["Node", "", f"x{i}"]["metadata"]["labels"][NODE_POOL] == "ready"
        w.remove("Machine", "", f"h{i}")
        w.rest()
        w.remove("Node", "", f"x{i}")
        w.rest()
        sizes.append(size())
    assert len(set(sizes)) == 1, sizes


@pytest.mark.parametrize(("purpose", "kind"), [("pin", "Pod"), ("node", "Node")])
def test_an_answer_that_comes_after_its_object_went_brings_nothing_back(purpose: str, kind: str) -> None:
    """Requests and watches are different connections: what a watch says of the end may come before the answer to a request."""
    w = world(slots=1, nodes=1)
    while not (found := [effect for effect in w.pending if effect.purpose == purpose]):
        w.step()
    effect = found[0]
    answer = w.perform(effect)
    assert answer is not None
    w.remove(*effect.key)
    while w.events:
        w.observe()
    w.core.done(effect, answer, w.now)
    group = w.core.group("g")
    assert group is not None
    assert effect.name not in (group.reservations if kind == "Pod" else w.core.nodes)


def test_the_answer_to_a_deletion_that_comes_after_it_brings_nothing_back() -> None:
    """It has a newer version than anything that a watch said before."""
    w = world(slots=1, nodes=1)
    w.rest()
    pod = copy.deepcopy(w.objects["Pod", NAMESPACE, "a-g-0"])
    w.remove("Pod", NAMESPACE, "a-g-0")
    while w.events:
        w.observe()
    pod["metadata"] |= {"resourceVersion": str(w.version), "deletionTimestamp": "2027-01-15T08:00:00Z"}
    w.core.done(Effect("delete", "Pod", NAMESPACE, "a-g-0", {}, "reservation"), pod, w.now)
    group = w.core.group("g")
    assert group is not None and not group.reservations


def test_a_machine_that_earlier_releases_accepted_keeps_its_slots() -> None:
    """New ones like it are refused."""
    window = {"name": "w", "slots": 1, "from": "2030-01-01T00:00:00Z", "until": "2030-01-02T00:00:00Z"}
    size = {"dependence": {"machineType": "a", "availableRatio": 0.5}}
    child = {"spec": size, "offlineSlots": 1, "windows": [window]}
    document = machine("g", {"a": offline(2), "c": child}, {"n0": ["a"]})
    w = World(document, {"n0": {"cpu": "4", "memory": "64Gi"}}, random.Random(1))
    w.guest("one", "a")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 2, "reserved": 1, "used": 1, "waiting": 0}
    w.start()
    w.guest("two", "a")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 2, "reserved": 0, "used": 2, "waiting": 0}
    assert w.condition("g", "Ready")["status"] == "True"
    (told,) = MeshReports(w.core, "lab/a", "s", 1).report().machines
    assert told.machine is not None and not told.invalid, "the mesh keeps its reservations, too"
