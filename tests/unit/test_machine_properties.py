"""Tests with random orders of events, and changes by others, that no more guests are let in than there are slots, and that at rest all are
accounted for."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.machine_groups.names import GUEST, MACHINE_TYPE, NODE_POOL, POD_ROLE
from moorage.model.object_names import NAMESPACE
from moorage.podspec import pinned_node
from moorage_testkit.machine_world import World, world


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
