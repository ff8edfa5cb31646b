"""Slots go from reservations to guests and back, whatever the order of events: one cluster's machines against a small Kubernetes."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

import pytest

from moorage.machine_groups.group_state import grants_text, read_grants
from moorage.machine_groups.handover_records import StoredGrant
from moorage.machine_groups.names import GIVEN_ALONE, MACHINE_GROUP, MACHINE_TYPE, POD_ROLE, RESERVATION
from moorage.machine_groups.reports import MeshReports
from moorage.machine_groups.slot_assignment import MAX_GRANTS
from moorage.machine_groups.windows import parse_time
from moorage.model.machines import Grant, Reservation
from moorage.model.object_names import CLAIM, NAMESPACE
from moorage.podspec import pinned_node
from moorage_testkit.machine_world import World, world
from moorage_testkit.machines import machine, offline


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


def test_labels_alone_are_no_reservation() -> None:
    """A Pod that is not of the StatefulSet of its type holds no slot, wherever it is."""
    w = world()
    settled(w, reserved=3)
    labels = {MACHINE_GROUP: "g", MACHINE_TYPE: "a", POD_ROLE: RESERVATION}
    owner = {"kind": "StatefulSet", "name": "other", "controller": True}
    for name, namespace, owners in (("a-g-7", NAMESPACE, []), ("other-0", NAMESPACE, [owner]), ("a-g-8", "team", [])):
        meta = {"name": name, "namespace": namespace, "labels": dict(labels), "ownerReferences": owners}
        w.create("Pod", {"metadata": meta, "spec": {"nodeName": "n0", "containers": []}, "status": {}})
    settled(w, reserved=3)
    assert {("Pod", NAMESPACE, "a-g-7"), ("Pod", NAMESPACE, "other-0")} <= w.objects.keys(), "they are let be"


def test_fewer_slots_than_are_used_evict_nobody_and_another_size_holds_for_new_pods() -> None:
    w = world()
    w.guest("one", "a")
    w.guest("two", "a")
    settled(w, reserved=1, used=2)
    found = w.objects["Machine", "", "g"]
    (kind,) = found["spec"]["machineTypes"]
    kind |= {"available": 1, "offlineSlots": 1}
    kind["spec"]["cpu"] = "1"
    w.change("Machine", found)
    settled(w, maximum=1, used=2)
    w.guest("three", "a")
    settled(w, maximum=1, used=2, waiting=1)
    assert not w.writes["eviction"] and not any("deletionTimestamp" in pod["metadata"] for pod in w.guests())
    for name, usage in (("one", {"used": 1, "waiting": 1}), ("two", {"used": 1}), ("three", {"reserved": 1})):
        w.finish(w.objects["Pod", "team", name])
        settled(w, maximum=1, **usage)
    (new,) = [pod for pod in w.pods() if pod["metadata"]["labels"][POD_ROLE] == RESERVATION]
    assert new["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"


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
