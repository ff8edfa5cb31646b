"""Shows devices that share counters, are divided, or are reached by several nodes, and allocates them."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from moorage.ledger import free_of
from moorage.model.claims import Release, Withdrawal
from moorage.model.part_reports import (
    CapacityPolicy,
    CounterSetReport,
)
from moorage.model.reports import NodeReport
from moorage.model.slots import PodPlace, Slot, resource_of_part, with_parts
from moorage.placement.core.reported_names import claim_uuid
from moorage_testkit.fleets import node

from .reported_mesh import ONE, Mesh, Rack, decided, device, part, refused


def test_whole_devices_of_one_node_are_offered() -> None:
    devices = [
        device("free"),
        device("taken"),
        device("broken", healthy=False),
    ]
    report = node("n", in_use={"d.io/n/taken": {"D_IO": "1"}})
    mesh = Mesh(one=[msgspec.structs.replace(report, devices=devices)])
    free = part("d.io/n/free")
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == [{free: {"CUSTOM_D_IO": 1}}]
    offering = {
        name: list(mesh.call("GET", f"/resource_providers/{part(f'd.io/n/{name}')}/inventories")["inventories"])
        for name in ("free", "taken", "broken")
    }
    assert offering == {
        "free": ["CUSTOM_D_IO"],
        "taken": ["CUSTOM_D_IO"],
        "broken": ["CUSTOM_D_IO"],
    }
    mesh.put({free: {"CUSTOM_D_IO": 1}})
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == []
    row = mesh.writer.fleet.row_of(0, "n")
    assert row is not None and mesh.writer.fleet.parts_taken(row) == {"d.io/n/free": {"D_IO": 1}}


def test_devices_that_take_of_counters_are_offered_as_far_as_these_have_room() -> None:
    devices = [device("card", consumes={"c": {"m": "2"}})]
    devices += [device(f"half-{i}", consumes={"c": {"m": "1"}}) for i in (0, 1, 2)]
    counters = [CounterSetReport(driver="d.io", pool="n", name="c", counters={"m": "2"})]
    mesh = Mesh(one=[msgspec.structs.replace(node("n"), devices=devices, counters=counters)])
    card, *halves = (part(one.id) for one in devices)
    two = "resources_1=CUSTOM_D_IO:1&resources_2=CUSTOM_D_IO:1"
    pairs = {frozenset(found) for found in mesh.candidates(two)}
    assert pairs == {frozenset((a, b)) for a in halves for b in halves if a != b}, "a card is both halves"
    assert len(mesh.candidates(f"{two}&resources_3=CUSTOM_D_IO:1")) == 0
    assert len(mesh.candidates("resources=CUSTOM_D_IO:1")) == 4
    consumer = mesh.put({halves[0]: {"CUSTOM_D_IO": 1}})
    assert {p for found in mesh.candidates("resources=CUSTOM_D_IO:1") for p in found} == {*halves[1:]}
    assert mesh.usages(card) == {"CUSTOM_D_IO": 1}, "it cannot be taken"
    both = mesh.body({halves[1]: {"CUSTOM_D_IO": 1}, halves[2]: {"CUSTOM_D_IO": 1}})
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", both)
    mesh.call("DELETE", f"/allocations/{consumer}")
    mesh.put({card: {"CUSTOM_D_IO": 1}})
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == []
    above = mesh.show(card)["parent_provider_uuid"]
    assert mesh.show(above)["name"] == f"{ONE}/d.io/n/counters:c"
    assert mesh.call("GET", f"/resource_providers/{above}/inventories")["inventories"] == {}


def test_capacities_of_devices_that_are_divided_are_offered_in_the_steps_of_their_policies() -> None:
    policy = CapacityPolicy(default="1Gi", minimum="2Gi", maximum="40Gi", step="1Gi")
    capacity = {"memory": "80Gi", "slots": "4"}
    divided = device("gpu", divisible=True, capacity=capacity, policies={"memory": policy})
    mesh = Mesh(one=[msgspec.structs.replace(node("n"), devices=[divided])])
    gpu, gib = part(divided.id), 1 << 30
    found = mesh.call("GET", f"/resource_providers/{gpu}/inventories")["inventories"]
    units = ("total", "min_unit", "step_size", "max_unit")
    assert {name: tuple(of[unit] for unit in units) for name, of in found.items()} == {
        "CUSTOM_MEMORY": (80 * gib, 2 * gib, gib, 40 * gib),
        "CUSTOM_SLOTS": (4, 1, 1, 0x7FFFFFFF),
    }
    for amount in (gib, 41 * gib, 5 * gib // 2):
        assert mesh.candidates(f"resources=CUSTOM_MEMORY:{amount}") == []
        body = mesh.body({gpu: {"CUSTOM_MEMORY": amount}})
        assert "inventory constraints" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", body)
    mesh.put({gpu: {"CUSTOM_MEMORY": 40 * gib, "CUSTOM_SLOTS": 1}})
    mesh.put({gpu: {"CUSTOM_MEMORY": 39 * gib}})
    assert mesh.candidates(f"resources=CUSTOM_MEMORY:{2 * gib}") == []
    assert mesh.usages(gpu) == {"CUSTOM_MEMORY": 79 * gib, "CUSTOM_SLOTS": 1}


def reached(*nodes: str, takes: int = 0) -> list[NodeReport]:
    """Nodes that all reach one device, and another of which `takes` is taken of a counter of one."""
    rack = Rack({"x-0": frozenset(nodes), "x-1": frozenset(nodes[:1])}, {"x-0": takes, "x-1": takes}, 1)
    seen = {name: rack.seen_by(name) for name in nodes}
    return [
        msgspec.structs.replace(node(name, cpu="4"), devices=seen[name][0], counters=seen[name][1]) for name in nodes
    ]


def test_a_device_that_several_nodes_reach_shares_with_each_of_them() -> None:
    mesh = Mesh(one=[*reached("n-0", "n-1"), node("n-2", cpu="4")])
    common = part("d.io/rack/x-0")
    shown = mesh.show(common)
    assert (shown["parent_provider_uuid"], shown["name"]) == (None, f"{ONE}/d.io/rack/x-0")
    assert mesh.traits(common) == ["MISC_SHARES_VIA_AGGREGATE"]
    members = {
        name: set(mesh.call("GET", f"/resource_providers/{part(name)}/aggregates")["aggregates"])
        for name in ("d.io/rack/x-0", "n-0", "n-1", "n-2")
    }
    assert [bool(members["d.io/rack/x-0"] & members[name]) for name in ("n-0", "n-1", "n-2")] == [True, True, False]
    both = [found for found in mesh.candidates("resources=VCPU:1,CUSTOM_D_IO:1") if common in found]
    assert {frozenset(found) - {common} for found in both} == {frozenset({part(name)}) for name in ("n-0", "n-1")}
    assert len([f for f in mesh.candidates("resources=CUSTOM_D_IO:1") if common in f]) == 1, (
        "it is one, whoever reaches it"
    )
    mesh.put({common: {"CUSTOM_D_IO": 1}, part("n-1"): {"VCPU": 1}})
    assert not [found for found in mesh.candidates("resources=VCPU:1,CUSTOM_D_IO:1") if common in found]


@pytest.mark.parametrize("takes", [0, 1])
def test_a_common_device_stays_a_consumers_whichever_nodes_go(takes: int) -> None:
    first, second, third = reached("n-0", "n-1", "n-2", takes=takes)
    mesh = Mesh(one=[first, second, third])
    common = part("d.io/rack/x-0")
    consumer = mesh.put({common: {"CUSTOM_D_IO": 1}})
    name = resource_of_part("d.io/rack/x-0", "D_IO")

    def free(at: str) -> int | None:
        found = mesh.writer.fleet.row_of(0, at)
        assert found is not None
        return free_of(mesh.writer.fleet, found, name)

    assert [free(at) for at in ("n-0", "n-1", "n-2")] == [0, 0, 0]
    for gone, left in ("n-0", ["n-1", "n-2"]), ("n-1", ["n-2"]):
        mesh.report(ONE, gone=(gone,))
        assert [free(at) for at in left] == [0] * len(left)
        assert mesh.usages(common) == {"CUSTOM_D_IO": 1}
        mesh.put({common: {"CUSTOM_D_IO": 1}}, consumer, mesh.state.consumers[consumer].generation)
    mesh.report(ONE, gone=("n-2",))
    assert mesh.call("GET", f"/resource_providers/{common}/inventories")["inventories"] == {}
    mesh.report(ONE, first, second)
    assert [free("n-0"), free("n-1")] == [0, 0]
    tick = mesh.writer.fleet.tick
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert [free("n-0"), free("n-1")] == [1, 1]
    fleet = mesh.writer.fleet
    improved = fleet.improved_since(tick)
    assert improved is not None and {fleet.node_name(int(r)) for r in improved} == {"n-0", "n-1"}


@pytest.mark.parametrize("common_first", [True, False])
def test_a_device_that_becomes_common_or_its_nodes_own_stays_a_consumers(common_first: bool) -> None:
    common = reached("n-0", "n-1")
    own = [msgspec.structs.replace(node("n-0", cpu="4"), devices=[device("x-0", "rack")]), node("n-1", cpu="4")]
    own[1].devices = []
    first, then = (common, own) if common_first else (own, common)
    mesh, provider_of = Mesh(one=first), part("d.io/rack/x-0")
    consumer = mesh.put({provider_of: {"CUSTOM_D_IO": 1}})
    for generation, nodes in enumerate((then, first, then), 1):
        mesh.report(ONE, *nodes)
        assert mesh.usages(provider_of) == {"CUSTOM_D_IO": 1}
        assert mesh.show(provider_of)["parent_provider_uuid"] == (part("n-0") if nodes is own else None)
        assert not [found for found in mesh.candidates("resources=CUSTOM_D_IO:1") if provider_of in found]
        mesh.put({provider_of: {"CUSTOM_D_IO": 1}}, consumer, generation)
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert mesh.usages(provider_of) == {"CUSTOM_D_IO": 0}


def test_decisions_and_consumers_do_not_get_the_same_common_device() -> None:
    mesh = Mesh(one=reached("n-0", "n-1", takes=1))
    first, second = part("d.io/rack/x-0"), part("d.io/rack/x-1")
    slot = with_parts(
        Slot(node="n-1", count=1, resources={"cpu": 1000}), [PodPlace({"d.io/rack/x-0": {"D_IO": 1}}, {})]
    )
    held = decided("k", *slot)
    mesh.capacity.hold(held)
    assert mesh.capacity.fits(held.id)
    mesh.fold(held)
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == [], "both take of one counter"
    for each in (first, second):
        body = mesh.body({each: {"CUSTOM_D_IO": 1}})
        assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", body)
    holders = mesh.call("GET", f"/resource_providers/{first}/allocations")["allocations"]
    assert holders == {claim_uuid("k"): {"resources": {"CUSTOM_D_IO": 1}, "consumer_generation": 1}}
    mesh.fold(Withdrawal(group=held.group, revision=1), Release(claims=["k"]))
    mesh.put({second: {"CUSTOM_D_IO": 1}})
    again = decided("l", *slot)
    mesh.capacity.hold(again)
    assert not mesh.capacity.fits(again.id)
