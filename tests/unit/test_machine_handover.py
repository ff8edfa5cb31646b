"""Slots go from reservations to guests and back, whatever the order of events: one cluster's machines against a small Kubernetes."""

from __future__ import annotations

import copy
import random
import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.machine_groups.effects import Effect
from moorage.machine_groups.group_state import grants_text, read_grants
from moorage.machine_groups.handover_records import StoredGrant
from moorage.machine_groups.names import GIVEN_ALONE, GUEST, MACHINE_TYPE, NODE_POOL, POD_ROLE, RESERVATION
from moorage.machine_groups.reports import MeshReports
from moorage.machine_groups.slot_assignment import MAX_GRANTS
from moorage.machine_groups.windows import parse_time
from moorage.model.machines import Grant, Reservation
from moorage.model.object_names import CLAIM, NAMESPACE
from moorage.podspec import pinned_node
from moorage_testkit.machine_world import World
from moorage_testkit.machines import machine

SIZE = {"cpu": "2", "memory": "1Gi"}


def offline(slots: int, available: int | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {**SIZE, **spec}, "available": slots if available is None else available, "offlineSlots": slots}


def world(slots: int = 3, nodes: int = 2, per_node: int = 2, seed: int = 1, **more: Any) -> World:
    names = [f"n{i}" for i in range(nodes)]
    document = machine("g", {"a": offline(slots, **more)}, {name: ["a"] for name in names}, taint=True)
    return World(document, {name: {"cpu": str(2 * per_node), "memory": "64Gi"} for name in names}, random.Random(seed))


def settled(world: World, **usage: int) -> None:
    world.rest()
    assert world.usage("g")["a"] == {"maximum": 3, "reserved": 0, "used": 0, "waiting": 0, **usage}


def test_slots_are_reserved_given_and_taken_back() -> None:
    w = world()
    settled(w, reserved=3)
    w.guest("one", "a")
    w.guest("two", "a")
    settled(w, reserved=1, used=2)
    for i in range(3):
        w.guest(f"more-{i}", "a")
    settled(w, used=3, waiting=2)
    assert all(p["spec"].get("nodeName") for p in w.guests()) is False
    # One ends, one is deleted while it waits, one is deleted while it runs.
    w.finish(w.objects["Pod", "team", "one"])
    settled(w, used=3, waiting=1)
    for pod in w.guests():
        if pod["spec"].get("schedulingGates"):
            w.delete_pod(pod)
    settled(w, used=3)
    w.delete_pod(w.objects["Pod", "team", "two"])
    settled(w, used=2, reserved=1)


def test_guests_that_wait_are_told_why_once() -> None:
    w = world(slots=1, nodes=1)
    w.now = parse_time("2027-01-15T08:00:00Z")
    w.guest("first", "a")
    w.guest("second", "a")
    w.guest("never", "a", nodeSelector={"disk": "none"})
    for _ in range(5):
        w.rest()
        w.now += 2
    assert sorted(told for told in w.told if told[0] != "g") == [("never", "SlotShort"), ("second", "SlotShort")]
    w.core.expects_mesh = True
    w.guest("third", "a")
    w.rest()
    w.now += 5
    w.rest()
    assert w.told[-1] == ("third", "MeshUnreachable") and len(w.told) == 4


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


def test_a_guest_that_waits_is_let_onto_a_node_that_has_got_another_type() -> None:
    """It was let in before, and does not tolerate the taint of that type yet."""
    w = world(slots=1, nodes=1, per_node=4)
    w.guest("first", "a")
    w.rest()
    w.guest("second", "a", tolerations=[{"key": "theirs", "operator": "Exists"}])
    w.rest()
    found = w.objects["Machine", "", "g"]
    found["spec"]["machineTypes"].append({"name": "b", **offline(1)})
    found["spec"]["nodePool"][0]["machineType"].append({"name": "b"})
    w.change("Machine", found)
    w.rest()
    w.finish(w.objects["Pod", "team", "first"])
    w.rest()
    second = w.objects["Pod", "team", "second"]["spec"]
    assert second["nodeName"] == "n0"
    keys = [toleration["key"].rpartition("/")[2] for toleration in second["tolerations"]]
    assert keys == ["theirs", "a", "node-pool", "b"]
    taints = w.objects["Node", "", "n0"]["spec"]["taints"]
    assert {taint["key"].rpartition("/")[2] for taint in taints} == {"a", "b", "node-pool"}


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
    settled(w, reserved=1, used=2)
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


def test_slots_are_counted_by_state() -> None:
    w = world(slots=3, nodes=1)
    w.rest()
    counts = {"reserved": 2.0, "granted": 0.0, "used": 0.0, "short": 1.0}
    assert w.core.slot_counts() == {("g/a", state): count for state, count in counts.items()}
    w.guest("one", "a")
    while not w.core.slot_counts()["g/a", "granted"]:
        w.step()
    w.rest()
    assert w.core.slot_counts()["g/a", "used"] == 1 and w.core.slot_counts()["g/a", "granted"] == 0
    (seconds,) = w.core.take_handover_times()
    assert 0 <= seconds < 60 and w.core.take_handover_times() == []


def test_what_guests_had_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.machine_groups.guest_shapes._MAX_SHARED", 4)
    w = world(slots=1, nodes=1)
    for i in range(40):
        w.guest(f"g{i}", "a", labels={"job": f"{i}"}, nodeSelector={"job": f"{i}"})
        w.rest()
        w.remove("Pod", "team", f"g{i}")
    w.rest()
    assert len(w.core.shapes._shapes) + len(w.core.shapes._shared_labels) < 20


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


def test_nothing_is_written_at_rest() -> None:
    w = world()
    for i in range(5):
        w.guest(f"g{i}", "a")
    w.rest()
    w.now += 5
    w.rest()  # those that wait were told why
    before = w.version
    for _ in range(20):
        w.now += 61
        w.core.wake(w.now)
        w.plan()
        assert w.pending == []
    assert w.version == before


def test_replicas_never_change_where_fewer_fit_than_are_available() -> None:
    w = world(slots=3, nodes=1)
    seen = set()
    for _ in range(40):
        w.rest()
        seen.add(w.objects["StatefulSet", NAMESPACE, "a-g"]["spec"]["replicas"])
        w.now += 30
    assert seen == {3}
    assert w.usage("g")["a"] == {"maximum": 3, "reserved": 2, "used": 0, "waiting": 0}
    short = w.condition("g", "CapacityShort")
    assert short["status"] == "True" and short["message"] == "a: 1 of 3 slots find no room"


@pytest.mark.parametrize("seed", range(20))
def test_slots_go_where_other_pods_leave_room(seed: int) -> None:
    """All that fit are held, and given to guests, although nobody tells of other Pods."""
    rng = random.Random(seed)
    count, per_node = rng.randint(1, 4), rng.randint(1, 3)
    w = world(rng.randint(1, count * per_node), count, per_node, seed)
    room = 0
    for i in range(count):
        taken = rng.randint(0, 2 * per_node)
        w.stranger(f"stranger-{i}", f"n{i}", str(taken))
        room += (2 * per_node - taken) // 2
    most = w.objects["Machine", "", "g"]["spec"]["machineTypes"][0]["available"]
    for _ in range(12):
        w.rest()
        w.now += 8
    fit = min(room, most)
    assert w.usage("g")["a"] == {"maximum": most, "reserved": fit, "used": 0, "waiting": 0}
    for i in range(most):
        w.guest(f"g{i}", "a")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": most, "reserved": 0, "used": fit, "waiting": most - fit}
    # What is full is tried again, less and less often.
    writes = []
    for _ in range(4):
        before = sum(w.writes.values())
        for _ in range(20):
            w.rest()
            w.now += 60
        writes.append(sum(w.writes.values()) - before)
    assert (writes[-1] < writes[0] or not writes[0]) and w.usage("g")["a"]["used"] == fit
    # As soon as somebody leaves and it is tried again, there is room.
    for i in range(count):
        w.remove("Pod", "other", f"stranger-{i}")
    for _ in range(90):
        w.rest()
        w.now += 60
    assert w.usage("g")["a"]["used"] == most


@pytest.mark.parametrize("seed", range(20))
def test_slots_that_find_room_stay_where_others_find_none(seed: int) -> None:
    """Whatever the order in which reservations without room leave and what is stored changes."""
    w = world(4, 2, 4, seed)
    taken = random.Random(seed).randint(1, 7)
    w.stranger("stranger", "n0", str(taken))
    held: set[str] = set()  # uids of reservations that found room
    for i in range(600):
        w.step()
        w.now += 0.1
        if i % 20 == 0:
            w.core.wake(w.now)
        bound = {p["metadata"]["uid"] for p in w.pods() if p["spec"].get("nodeName")}
        assert held <= bound, "a reservation that had room was removed"
        held = bound
    w.rest()
    assert sum(p["spec"].get("nodeName") == "n0" for p in w.pods()) == 1 + (8 - taken) // 2
    assert w.usage("g")["a"] == {"maximum": 4, "reserved": 4, "used": 0, "waiting": 0}


@pytest.mark.parametrize("seed", range(5))
def test_a_guest_gets_no_place_that_only_looks_free(seed: int) -> None:
    """It waits until the slots that find no room are elsewhere, which takes less than being pinned in vain."""
    w = world(4, 2, 4, seed)
    w.stranger("stranger", "n0", "5")
    w.rest()
    assert w.usage("g")["a"]["reserved"] == 1
    w.guest("early", "a")
    w.rest()
    w.now += 8
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 4, "reserved": 3, "used": 1, "waiting": 0}


def test_a_guest_that_no_node_can_take_burns_no_slot() -> None:
    w = world()
    w.guest("never", "a", nodeSelector={"disk": "none"})
    w.guest("later", "a")
    settled(w, reserved=2, used=1, waiting=1)
    assert w.objects["Pod", "team", "later"]["spec"]["nodeName"]


def test_guests_that_keep_apart_do_not_get_slots_of_one_node() -> None:
    """Not even those that get theirs in one plan."""
    w = world(slots=4, nodes=2)
    w.rest()
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for i in range(3):
        w.guest(f"g{i}", "a", labels={"app": "x"}, affinity=apart)
    w.rest()
    assert sorted(p["spec"].get("nodeName", "") for p in w.guests()) == ["", "n0", "n1"]
    assert w.usage("g")["a"] == {"maximum": 4, "reserved": 2, "used": 2, "waiting": 1}
    # One that the mesh gave a slot where it may not be waits for another one.
    waiting = next(p for p in w.guests() if not p["spec"].get("nodeName"))
    w.core.set_connected(True)
    uid = waiting["metadata"]["uid"]
    w.core.set_grant(Grant(uid=uid, machine="g/a", node="n0", claim="c"), w.now)
    w.rest()
    handover = w.core.group("g")
    assert handover is not None and handover.pause_of(uid) > w.now
    assert waiting["spec"]["schedulingGates"]


def test_guests_go_by_priority_and_age() -> None:
    w = world(slots=1, nodes=1)
    w.rest()
    for name, priority in (("old", 0), ("new", 0), ("urgent", 5)):
        w.guest(name, "a", priority=priority)
    order = []
    for _ in range(3):
        w.rest()
        (running,) = [p for p in w.guests() if p["spec"].get("nodeName") and not p["status"].get("phase")]
        order.append(running["metadata"]["name"])
        w.finish(running)
    assert order == ["urgent", "old", "new"]


def test_a_guest_with_another_gate_is_not_ready() -> None:
    w = world()
    w.guest("busy", "a", schedulingGates=[{"name": "example.com/quota"}])
    settled(w, reserved=3, waiting=1)
    pod = w.objects["Pod", "team", "busy"]
    pod["spec"]["schedulingGates"] = [g for g in pod["spec"]["schedulingGates"] if "quota" not in g["name"]]
    w.change("Pod", pod)
    settled(w, reserved=2, used=1)


def test_a_stranger_in_the_place_costs_a_pause_and_no_slot() -> None:
    w = world(slots=1, nodes=1, per_node=1)
    settled_usage = {"maximum": 1, "reserved": 1, "used": 0, "waiting": 0}
    w.rest()
    assert w.usage("g")["a"] == settled_usage
    guest = w.guest("late", "a")
    while not pinned_node(w.objects["Pod", "team", "late"]["spec"]):
        for act in (w.observe, w.plan, w.answer, w.controllers, w.kubelets):
            act()
    stranger: dict[str, Any] = {"metadata": {"name": "s", "namespace": "x", "labels": {}}, "status": {}}
    stranger["spec"] = {"nodeName": "n0", "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    w.create("Pod", stranger)
    w.now += 61
    w.rest()
    # Its reservation is wanted again, and the pinned Pod tries again after its pause.
    assert w.objects["StatefulSet", NAMESPACE, "a-g"]["spec"]["replicas"] == 1
    handover = w.core.group("g")
    assert handover is not None and handover.pause_of(guest["metadata"]["uid"]) > w.now
    w.remove("Pod", "x", "s")
    w.rest()
    assert w.usage("g")["a"]["waiting"] + w.usage("g")["a"]["used"] == 1
    w.now += 3600
    w.rest()
    assert w.usage("g")["a"]["used"] == 1


class _Picky(World):
    """A small Kubernetes whose scheduler keeps some Pods off a Node for reasons that nobody else knows, like a port of the Node."""

    def fits(self, pod: dict[str, Any], node: str) -> bool:
        keeps_off = node in ("n1", pod["metadata"]["labels"].get("off"))
        return super().fits(pod, node) and not (keeps_off and "off" in pod["metadata"]["labels"])

    def replace(self, name: str, off: str = "n1") -> None:
        """Makes the next Pod of a ReplicaSet, if it has none."""
        pods = [
            p for p in self.guests() if p["metadata"]["labels"].get("off") and "deletionTimestamp" not in p["metadata"]
        ]
        if not pods:
            self.guest(f"{name}-{self.version}", "a", labels={"off": off}, owner=name)


def test_successors_of_a_guest_that_was_not_bound_try_other_nodes() -> None:
    """Its ReplicaSet makes another, which would get the same slot again and again: the one that leaves first."""
    for seed in range(5):
        names = ["n0", "n1"]
        document = machine("g", {"a": offline(2)}, {name: ["a"] for name in names})
        w = _Picky(document, {name: {"cpu": "2", "memory": "8Gi"} for name in names}, random.Random(seed))
        w.rest()
        tried = set()
        began = w.now
        while w.now < began + 200:
            w.replace("web")
            w.rest()
            tried |= {(p["metadata"]["name"], pinned_node(p["spec"])) for p in w.guests()}
            w.now += 10
        assert w.usage("g")["a"] == {"maximum": 2, "reserved": 1, "used": 1, "waiting": 0}
        assert [p["spec"]["nodeName"] for p in w.guests()] == ["n0"] and len(tried - {("", "")}) <= 3, tried


def test_a_guest_that_is_bound_nowhere_is_tried_less_and_less_often() -> None:
    names = ["n0", "n1"]
    document = machine("g", {"a": offline(2)}, {name: ["a"] for name in names})
    w = _Picky(document, {name: {"cpu": "2", "memory": "8Gi"} for name in names}, random.Random(1))
    w.rest()
    began, evicted = w.now, w.writes["eviction"]
    while w.now < began + 3600:
        w.replace("web", "n0")
        w.rest()
        w.now += 10
    # On each of two Nodes after 1, 2, 4 … minutes; without that 60 times.
    assert 6 <= w.writes["eviction"] - evicted <= 14
    (successor,) = [g for g in MeshReports(w.core, "lab/a", "s", 1).report().guests if g.state == "waiting"]
    assert successor.nodes == [], "the mesh gives it no slot either"


def test_unused_slots_of_a_lost_node_move_after_a_while() -> None:
    w = world(slots=2, nodes=2)
    w.rest()
    first = w.objects["Node", "", "n0"]
    first["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    w.change("Node", first)
    w.rest()
    assert NODE_POOL not in first["metadata"]["labels"]
    assert w.condition("g", "NodesHealthy")["status"] == "False"
    assert w.usage("g")["a"]["reserved"] == 0
    w.now += 301
    w.rest()
    assert w.usage("g")["a"]["reserved"] == 2
    assert {p["spec"].get("nodeName") for p in w.pods()} == {"n1"}


def test_unused_slots_move_although_no_kubelet_ends_their_pods() -> None:
    """A Node that is lost says nothing: what is deleted there stays, and with it the number of a StatefulSet's Pod."""
    w = world(slots=2, nodes=2)
    w.guest("guest", "a")
    w.rest()
    node = w.objects["Node", "", "n0"]
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    w.change("Node", node)
    w.silent.add("n0")
    w.rest()
    lost = {p["metadata"]["uid"] for p in w.pods() if p["spec"].get("nodeName") == "n0"}
    assert len(lost) == 2
    w.now += 301
    w.rest()
    used = w.objects["Pod", "team", "guest"]["spec"]["nodeName"] == "n0"
    assert w.usage("g")["a"] == {"maximum": 2, "reserved": 1, "used": 1, "waiting": 0}
    stay = {p["metadata"]["uid"] for p in w.pods() if p["spec"].get("nodeName") == "n0"}
    assert len(stay) == used, "only the guest stays, whom nobody may end"


def test_children_share_the_slots_of_their_parent() -> None:
    child = {"spec": {"dependence": {"machineType": "a", "availableRatio": 0.5}}}
    document = machine("g", {"a": offline(2), "c": child}, {"n0": ["a"], "n1": ["a"]})
    w = World(document, {n: {"cpu": "2", "memory": "64Gi"} for n in ("n0", "n1")}, random.Random(1))
    w.rest()
    assert w.usage("g")["c"] == {"maximum": 4, "reserved": 4, "used": 0, "waiting": 0}
    w.guest("c0", "c")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 2, "reserved": 1, "used": 1, "waiting": 0}
    assert w.usage("g")["c"] == {"maximum": 4, "reserved": 3, "used": 1, "waiting": 0}
    w.guest("c1", "c")
    w.guest("whole", "a")
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 2, "reserved": 0, "used": 2, "waiting": 0}
    assert w.usage("g")["c"] == {"maximum": 4, "reserved": 0, "used": 2, "waiting": 0}
    for name in ("c0", "c1"):
        w.finish(w.objects["Pod", "team", name])
    w.rest()
    assert w.usage("g")["a"] == {"maximum": 2, "reserved": 1, "used": 1, "waiting": 0}


def test_a_machine_that_earlier_releases_accepted_keeps_its_slots() -> None:
    """New ones like it are refused."""
    window = {"name": "w", "slots": 1, "from": "2030-01-01T00:00:00Z", "until": "2030-01-02T00:00:00Z"}
    size = {"dependence": {"machineType": "a", "availableRatio": 0.5}}
    child = {"spec": size, "offlineSlots": 1, "windows": [window]}
    document = machine("g", {"a": offline(2), "c": child}, {"n0": ["a"]})
    w = World(document, {"n0": {"cpu": "4", "memory": "64Gi"}}, random.Random(1))
    w.guest("one", "a")
    settled(w, maximum=2, reserved=1, used=1)
    w.start()
    w.guest("two", "a")
    settled(w, maximum=2, used=2)
    assert w.condition("g", "Ready")["status"] == "True"
    (told,) = MeshReports(w.core, "lab/a", "s", 1).report().machines
    assert told.machine is not None and not told.invalid, "the mesh keeps its reservations, too"


def let_in(w: World, node: str) -> int:
    """Returns how many guests were let onto a Node."""
    return sum(
        p["metadata"]["labels"].get(POD_ROLE) == GUEST
        and not p["spec"].get("schedulingGates")
        and (p["spec"].get("nodeName") or pinned_node(p["spec"])) == node
        and p["status"].get("phase") != "Succeeded"
        for p in w.pods()
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_never_more_are_let_in_than_there_are_slots(seed: int) -> None:
    rng = random.Random(seed)
    slots, nodes, per_node = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 2)
    w = world(slots, nodes, per_node, seed)
    made = 0
    for _ in range(rng.randint(50, 250)):
        chance = rng.random()
        if chance < 0.06 and made < 8:
            w.guest(f"g{made}", "a")
            made += 1
        elif chance < 0.1 and (bound := [p for p in w.guests() if p["spec"].get("nodeName")]):
            pod = rng.choice(bound)
            w.finish(pod) if rng.random() < 0.5 else w.delete_pod(pod)
        elif chance < 0.11:
            w.start()
        else:
            w.step()
        total = sum(let_in(w, f"n{i}") for i in range(nodes))
        assert total <= slots
        for i in range(nodes):
            assert let_in(w, f"n{i}") <= per_node
    w.rest()
    usage = w.usage("g")["a"]
    room = min(slots, nodes * per_node)
    live = [p for p in w.guests() if p["status"].get("phase") != "Succeeded"]
    assert usage["used"] == min(len(live), room), usage
    assert usage["reserved"] == room - usage["used"], usage
    assert usage["waiting"] == len(live) - usage["used"], usage
    assert (w.condition("g", "CapacityShort")["status"] == "True") == (room < slots)
    assert MACHINE_TYPE in w.pods()[0]["metadata"]["labels"]


def _disturb(w: World, rng: random.Random) -> None:
    """Does something that others may do: changes what is ours, makes a Node unhealthy or healthy again, or lets time pass."""
    node = w.objects["Node", "", rng.choice([key[2] for key in w.objects if key[0] == "Node"])]
    stateful_set = w.objects.get(("StatefulSet", NAMESPACE, "a-g"))
    what = rng.randrange(5)
    if what == 0 and stateful_set is not None:
        stateful_set["spec"]["replicas"] = rng.randint(0, 6)
        w.change("StatefulSet", stateful_set)
    elif what == 1 and stateful_set is not None:
        stateful_set["metadata"]["labels"].pop(MACHINE_TYPE, None)
        w.change("StatefulSet", stateful_set)
    elif what == 2:
        node["metadata"]["labels"].pop(NODE_POOL, None)
        w.change("Node", node)
    elif what == 3:
        node["spec"]["unschedulable"] = not node["spec"].get("unschedulable")
        w.change("Node", node)
    else:
        w.now += rng.uniform(0, 40)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_slots_are_as_many_as_they_should_be_whatever_others_did(seed: int) -> None:
    """Guests that are not bound in time are evicted or wait; at no time are more let in than there are slots."""
    rng = random.Random(seed)
    slots, nodes, per_node = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 2)
    w = world(slots, nodes, per_node, seed)
    for i in range(rng.randint(50, 250)):
        chance = rng.random()
        if chance < 0.05 and len(w.guests()) < 8:
            w.guest(f"g{i}", "a", owner=rng.choice(("", "web")))
        elif chance < 0.08 and (bound := [p for p in w.guests() if p["spec"].get("nodeName")]):
            w.delete_pod(rng.choice(bound))
        elif chance < 0.09:
            w.start()
        elif chance < 0.15:
            _disturb(w, rng)
        else:
            w.step()
        for n in range(nodes):
            assert let_in(w, f"n{n}") <= per_node
        assert sum(let_in(w, f"n{n}") for n in range(nodes)) <= slots
    for key, node in list(w.objects.items()):
        if key[0] == "Node":
            node["spec"]["unschedulable"] = False
            w.change("Node", node)
    for _ in range(4):  # until everything is put back, and everyone tried again
        w.rest()
        w.now += 3700
    w.rest()
    usage, room = w.usage("g")["a"], min(slots, nodes * per_node)
    live = len(w.guests())
    used = min(live, room)
    assert usage == {"maximum": slots, "reserved": room - used, "used": used, "waiting": live - used}
    labels = [obj["metadata"]["labels"] for key, obj in w.objects.items() if key[0] == "Node"]
    assert all(found[NODE_POOL] == "ready" for found in labels)
    before = w.writes.total()
    w.rest()
    assert w.writes.total() == before, "nothing is written at rest"


@pytest.mark.parametrize("node", ["n{}", "ip-10-0-{}-17.us-west-2.compute.internal", "n{}." + "x" * 200])
def test_as_many_grants_as_are_stored_at_a_time_find_room_in_annotations(node: str) -> None:
    rng = random.Random(3)
    grants = {}
    for i in range(MAX_GRANTS):
        uid = str(uuid.UUID(int=rng.getrandbits(128)))
        at = 1_800_000_000 + rng.random() * 100
        grants[uid] = StoredGrant(node=node.format(i % 500), claim=f"offline-{uid}", at=at, window="w", until=at + 1000)
    text = grants_text(grants)
    assert read_grants(text) == grants and len(text) < 200 << 10
    few = dict(list(grants.items())[:3])
    assert grants_text(few).startswith("{") and read_grants(grants_text(few)) == few
    assert read_grants("zlib:junk") == read_grants("zlib:" + "A" * 40) == read_grants("{") == {} and not grants_text({})


def test_what_the_cluster_gave_out_alone_is_known_to_the_mesh_once_it_answers() -> None:
    w = world(slots=2)
    w.guest("before", "a")
    w.rest()
    before = w.objects["Pod", "team", "before"]["metadata"]
    assert before["labels"][CLAIM] == f"offline-{before['uid']}" and GIVEN_ALONE in before["annotations"]
    assert [CLAIM in p["metadata"]["labels"] for p in w.pods() if p["metadata"]["labels"][POD_ROLE] == RESERVATION] == [
        False
    ]
    # The mesh tells of its claim: reservations and guests that are there count in their slots.
    slots = dict(Counter(p["spec"]["nodeName"] for p in w.pods()))
    w.core.set_order(Reservation(machine="g/a", claim="claim", slots=slots, offline=slots))
    w.core.set_connected(True)
    w.core.set_grant(Grant(uid=before["uid"], machine="g/a", node=next(iter(slots)), claim="claim"), w.now)
    w.rest()
    assert {p["metadata"]["labels"].get(CLAIM) for p in w.pods()} == {"claim"}
    assert GIVEN_ALONE in w.objects["Pod", "team", "before"]["metadata"]["annotations"]
    # Cut off again, it gives out the other one; a process that starts then knows the claim, too.
    w.start()
    w.guest("after", "a")
    w.guest("late", "a")
    w.rest()
    pods = {name: w.objects["Pod", "team", name] for name in ("after", "late")}
    assert (
        pods["after"]["metadata"]["labels"][CLAIM] == "claim"
        and GIVEN_ALONE in pods["after"]["metadata"]["annotations"]
    )
    assert pods["late"]["spec"]["schedulingGates"], "both offline slots are in use"
