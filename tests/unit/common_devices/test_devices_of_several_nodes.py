"""Devices that several nodes reach, and counters of which devices of several nodes take: nobody gets them twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec
import numpy as np
import pytest

from moorage.controllers.resource_class.core.explanations import device_reasons
from moorage.dra import objects as dra
from moorage.fit import Assigned, FitCache, Unassigned
from moorage.fit.device_counts import count_devices
from moorage.fleet import ExcerptFleet, copy_of
from moorage.fleet.class_status import devices_in
from moorage.kube.objects import Key
from moorage.model.claims import Release, Withdrawal
from moorage.parts import NAMELESS, SHARES, Budget, Forest, Group, Request, candidates
from moorage.parts.layout import provider_uuid
from moorage.placement.core.reported_columns import ReportedColumns
from moorage.placement.core.reported_names import class_of

from .cluster import (
    DRIVER,
    LAB,
    POOL,
    Cluster,
    Device,
    decision,
    given,
    is_sound,
    slots_of,
    solutions,
    wanting,
)

FAR = Device("far", ("n0", "n1"))


def test_two_nodes_that_reach_one_device_run_one_pod() -> None:
    cluster = Cluster({"n0": 8, "n1": 8}, [FAR])
    (slot,) = slots_of(cluster.assign(wanting()))
    assert given([slot]) == [(slot.node, FAR.ident)]
    refused = cluster.assign(wanting(pods=2))
    assert isinstance(refused, Unassigned)
    assert (refused.code, refused.needed, refused.best) == ("PartShort", 2, 1)


def test_nodes_leave_what_they_have_in_common_to_those_that_need_it() -> None:
    own = Device("own", ("n0",))
    cluster = Cluster({"n0": 1, "n1": 1}, [FAR, own])
    slots = slots_of(cluster.assign(wanting(pods=2)))
    assert given(slots) == [("n0", own.ident), ("n1", FAR.ident)]


def test_what_one_node_claims_is_claimed_of_all_that_reach_it_until_it_is_released() -> None:
    cluster = Cluster({"n0": 8, "n1": 8, "n2": 8}, [FAR])
    first = decision("d1", slots_of(cluster.assign(wanting())))
    (node,) = {slot.node for slot in first.claims[0].slots}
    other = {"n0": "n1", "n1": "n0"}[node]
    cluster.capacity.hold(first)
    assert cluster.capacity.fits("d1") and cluster.free(other, FAR) == 0 and cluster.free("n2", FAR) is None
    moved = [msgspec.structs.replace(slot, node=other) for slot in first.claims[0].slots]
    cluster.capacity.hold(decision("d2", moved))
    assert not cluster.capacity.fits("d2"), "of two decisions in flight one gets it"
    cluster.capacity.give_back("d2")
    cluster.fold(first)
    assert isinstance(cluster.assign(wanting()), Unassigned)
    row = cluster.fleet.row_of(0, other)
    assert row is not None and cluster.fleet.parts_taken(row) == {}, "it is not this node's claim"
    before = cluster.fleet.tick
    cluster.fold(Withdrawal(group="g-d1", revision=1), Release(claims=["k-d1"]))
    assert cluster.free(other, FAR) == cluster.free(node, FAR) == 1
    improved = cluster.fleet.improved_since(before)
    assert improved is not None and row in improved, "a group that waits for it at the other node is woken"


def test_claims_count_again_after_the_parts_were_laid_out_anew() -> None:
    cluster = Cluster({"n0": 8, "n1": 8}, [FAR])
    cluster.fold(decision("d1", slots_of(cluster.assign(wanting()))))
    more = Cluster({"n0": 8, "n1": 8}, [FAR, Device("late", ("n1", "n0"))])
    cluster.report(more.reports())
    assert [cluster.free(node, FAR) for node in ("n0", "n1")] == [0, 0]
    assert isinstance(cluster.assign(wanting()), Assigned)
    assert isinstance(cluster.assign(wanting(pods=2)), Unassigned)
    cluster.fold(Withdrawal(group="g-d1", revision=1), Release(claims=["k-d1"]))
    assert [cluster.free(node, FAR) for node in ("n0", "n1")] == [1, 1]


def test_what_a_stranger_has_is_in_use_at_every_node() -> None:
    cluster = Cluster({"n0": 8, "n1": 8}, [FAR])
    result = {"driver": DRIVER, "pool": POOL, "device": "far"}
    allocation = {"devices": {"results": [result]}}
    body = {"metadata": {"name": "c", "namespace": "x", "uid": "c"}, "status": {"allocation": allocation}}
    cluster.state.put_device_claim(Key("x", "c"), dra.device_claim(msgspec.json.encode(body)))
    cluster.report(cluster.reports())
    assert [cluster.free(node, FAR) for node in ("n0", "n1")] == [0, 0]


def test_devices_of_nodes_share_counters() -> None:
    devices = [Device("whole-0", ("n0",), takes=4), Device("whole-1", ("n1",), takes=4), Device("half", ("n1",), 2)]
    cluster = Cluster({"n0": 8, "n1": 8}, devices, counters=6)
    slots = slots_of(cluster.assign(wanting(pods=2)))
    assert given(slots) == [("n0", devices[0].ident), ("n1", devices[2].ident)]
    assert isinstance(cluster.assign(wanting(pods=3)), Unassigned)
    cluster.fold(decision("d1", [slot for slot in slots if slot.node == "n0"]))
    assert [cluster.free("n1", device) for device in devices[1:]] == [0, 1]
    copied = copy_of(cluster.fleet, rows_of=[0], resources=["cpu", "pods"], sums=[], claims=[], epochs=[])
    copy = ExcerptFleet(copied.encode([], [], b""))
    assert given(slots_of(cluster.assign(wanting(), fleet=copy))) == [("n1", devices[2].ident)]


def test_a_device_counts_once() -> None:
    cluster = Cluster({"n0": 8, "n1": 8}, [FAR, Device("own", ("n0",))])
    fleet = cluster.fleet
    assert len(devices_in(fleet, [0]).rows) == 2
    assert fleet.parts.counts() == {DRIVER: 2}
    counts = count_devices(fleet, wanting().groups[0].devices[0], np.ones(1, np.bool_))
    assert (counts.there[0], counts.free[0], counts.most_free[0]) == (2, 2, 2)


def test_a_device_counts_once_where_counters_are_shared() -> None:
    devices = [Device("d0", ("n1",), takes=1), Device("d1", ("n0",), takes=1), Device("d2", ("n0", "n1"), takes=1)]
    fleet = Cluster({"n0": 8, "n1": 8}, devices, counters=9).fleet
    assert len(devices_in(fleet, [0]).rows) == 3
    counts = count_devices(fleet, wanting().groups[0].devices[0], np.ones(1, np.bool_))
    assert (counts.there[0], counts.free[0], counts.most_free[0]) == (3, 3, 2)


def test_devices_whose_counters_are_used_up_are_not_free() -> None:
    devices = [Device("whole", ("n0",), 3), Device("half-0", ("n0",), 2), Device("half-1", ("n1",), 2)]
    cluster = Cluster({"n0": 8, "n1": 8}, devices, counters=4)
    cluster.fold(decision("d1", slots_of(cluster.assign(wanting()))))
    shape = wanting(name="late")
    assert isinstance(cluster.assign(shape), Unassigned)
    counts = count_devices(cluster.fleet, shape.groups[0].devices[0], np.ones(1, np.bool_))
    assert (counts.there[0], counts.free[0], counts.most_free[0], counts.starved[0]) == (3, 0, 0, 2)
    assert counts.counter == (f"{DRIVER}/{POOL}/counters:c", "M", 2, 1)
    assert counts.lacks(shape.groups[0].devices[0])[0]
    ((reason, _),) = device_reasons(cluster.fleet, "web", shape, np.ones(1, np.bool_))
    assert (reason.code, reason.needed, reason.free) == ("PartShort", "1", "0")
    assert f"of 2 more the counters are used up: nearest is {DRIVER}/{POOL}/counters:c, M 1 of 2" in reason.message


def test_candidates_come_in_the_same_order_whichever_node_was_first() -> None:
    devices = [FAR, Device("near", ("n1", "n2")), Device("d0", ("n2",), takes=1), Device("d1", ("n1",), takes=1)]
    device = Group({class_of(DRIVER): 1})
    requests = (Request({"_A": device, "_B": Group({"VCPU": 1})}), Request({"_A": device}))
    found = []
    for nodes in (("n0", "n1", "n2"), ("n2", "n0", "n1"), ("n1", "n2", "n0")):
        cluster, forest = Cluster(dict.fromkeys(nodes, 8), devices, counters=9), Forest()
        ReportedColumns(cluster.fleet, forest).write(0)
        each = [candidates(forest, request, Budget(10_000)) for request in requests]
        found.append(
            [[forest.ids[row] for rows in c.mappings.values() for row in rows] for those in each for c in those]
        )
    assert found[0] == found[1] == found[2] and len(found[0]) > 8


def test_they_are_providers_of_their_own_with_an_aggregate_in_common_with_the_nodes() -> None:
    devices = [FAR, Device("d0", ("n2",), takes=1), Device("d1", ("n1",), takes=1)]
    cluster = Cluster({"n0": 8, "n1": 8, "n2": 8}, devices, counters=9)
    forest = Forest()
    ReportedColumns(cluster.fleet, forest).write(0)
    rows = {ident: forest.rows[provider_uuid(LAB, ident)] for ident in ("n0", "n1", "n2", *(d.ident for d in devices))}
    counters = forest.rows[provider_uuid(LAB, f"{DRIVER}/{POOL}/counters:c")]
    assert len(forest.rows) == 7
    roots = {ident: int(forest.root[row]) for ident, row in rows.items()}
    assert (
        roots["n0"] == rows["n0"] and roots[FAR.ident] == rows[FAR.ident] and int(forest.parent[rows[FAR.ident]]) == -1
    )
    assert {roots[device.ident] for device in devices[1:]} == {counters}
    assert int(forest.leave[counters]) == counters + 3 and int(forest.leave[rows["n1"]]) == rows["n1"] + 1
    names = {ident: forest.aggregates.sets[int(forest.aggregate_set[row])] for ident, row in rows.items()}
    for device in devices:
        reaching = [node for node in ("n0", "n1", "n2") if names[device.ident] & names[node]]
        assert reaching == sorted(device.reach)
    assert all(SHARES in forest.traits.sets[int(forest.trait_set[rows[d.ident]])] for d in devices)
    assert len(list(candidates(forest, Request({NAMELESS: Group({"VCPU": 1})}), Budget(1000)))) == 3


def test_the_last_node_alone_may_have_parts() -> None:
    own = Device("own", ("n3",))
    slots = slots_of(Cluster({f"n{i}": 8 for i in range(4)}, [own]).assign(wanting()))
    assert given(slots) == [("n3", own.ident)]


def test_clusters_fit_by_what_their_nodes_hold_together() -> None:
    cluster = Cluster({"n0": 8, "n1": 8}, [FAR])
    fits = FitCache(cluster.fleet)
    assert fits.get(wanting()).fits[0]
    assert not fits.get(wanting(pods=2)).fits[0]


# --- against brute force ----------------------------------------------------------------------------------------------


def worlds(seeds: int, first: int = 0) -> Iterator[tuple[Random, dict[str, int], list[Device], int]]:
    for seed in range(first, first + seeds):
        rng = Random(seed)
        names = [f"n{i}" for i in range(rng.randint(2, 3))]
        counters = rng.choice([0, 0, 3, 5])
        devices = [
            Device(
                f"d{i}",
                tuple(sorted(rng.sample(names, rng.randint(1, len(names))))),
                rng.randint(0, 3) if counters else 0,
                rng.choice("ab"),
            )
            for i in range(rng.randint(1, 5))
        ]
        yield rng, {name: rng.randint(1, 3) for name in names}, devices, counters


def check(seeds: int, first: int) -> None:
    outcomes = Counter[bool]()
    for rng, cpu, devices, counters in worlds(seeds, first):
        cluster = Cluster(cpu, devices, counters)
        shapes = [
            wanting(rng.randint(1, 2), rng.randint(1, 3), rng.randint(1, 2), rng.choice(["", "a", "b"]), name)
            for name in "st"[: rng.randint(1, 2)]
        ]
        found = cluster.assign(*shapes)
        expected = solutions(cluster, devices, counters, shapes)
        outcomes[expected] += 1
        assert isinstance(found, Assigned) == expected, (cpu, devices, counters, shapes, found)
        if len(shapes) == 1:
            assert bool(FitCache(cluster.fleet).get(shapes[0]).fits[0]) == expected
        if isinstance(found, Assigned):
            slots = slots_of(found)
            assert is_sound(slots, devices, counters, shapes), (devices, slots)
            entry = decision("d", slots)
            cluster.capacity.hold(entry)
            assert cluster.capacity.fits("d")
            cluster.fold(entry)
            left = [d for d in devices if d.ident not in {part for _, part in given(slots)}]
            rest = counters - sum(d.takes for d in devices if d not in left)
            again = wanting(1, rng.randint(1, 2), 1, "", "again")
            late = cluster.assign(again)
            assert isinstance(late, Assigned) == solutions(cluster, left, rest, [again]), (devices, slots, late)
            if isinstance(late, Assigned):
                assert is_sound(slots_of(late), left, rest, [again])
    assert min(outcomes[True], outcomes[False]) > seeds // 20


def test_what_fits_is_found_and_what_does_not_is_refused() -> None:
    check(150, 0)


@pytest.mark.long
def test_what_fits_is_found_and_what_does_not_is_refused_in_many_worlds() -> None:
    check(3000, 1000)
