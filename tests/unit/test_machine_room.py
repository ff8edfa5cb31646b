"""Slots are held where there is room, which nobody tells, and leave Nodes that are lost."""

from __future__ import annotations

import random

import pytest

from moorage.machine_groups.names import NODE_POOL
from moorage.model.object_names import NAMESPACE
from moorage_testkit.machine_world import world


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
