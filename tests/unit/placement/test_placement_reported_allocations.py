"""Allocates of nodes and parts of clusters beside decisions."""

from __future__ import annotations

import uuid

from moorage.model.claims import Release, Withdrawal
from moorage.model.slots import PodPlace, Slot, with_parts
from moorage.placement.core.reported_names import claim_uuid
from moorage_testkit.fleets import node

from .reported_mesh import ONE, Mesh, decided, part, refused, zoned


def test_decisions_and_allocations_take_the_same_room() -> None:
    mesh = Mesh(one=[zoned()])
    zone, card = part("n-0/numa-0"), part("n-0/fpga-0")
    of_zone = {"n-0/numa-0": {"cpu": 3000}, "n-0/fpga-0": {"FPGA": 1}}
    mesh.fold(decided("k", *with_parts(Slot(node="n-0", resources={"cpu": 3000}), [PodPlace(of_zone, {})])))
    assert mesh.usages(zone) == {"VCPU": 3} and mesh.usages(card) == {"FPGA": 1}
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", mesh.body({zone: {"VCPU": 2}}))
    one = mesh.put({zone: {"VCPU": 1}})
    later = decided("l", Slot(node="n-0", resources={"cpu": 5000}))
    mesh.capacity.hold(later)
    assert not mesh.capacity.fits("l")
    mesh.call("DELETE", f"/allocations/{one}")
    assert mesh.capacity.fits("l")
    mesh.capacity.give_back("l")
    tick = mesh.writer.fleet.tick
    mesh.fold(Withdrawal(group="g-k", revision=1), Release(claims=["k"]))
    improved = mesh.writer.fleet.improved_since(tick)
    assert improved is not None and len(improved) and mesh.usages(zone) == {"VCPU": 0}


def test_what_an_allocation_gives_back_marks_its_node_improved() -> None:
    mesh = Mesh(one=[zoned(), zoned()])
    consumer = mesh.put({part("n-1/fpga-0"): {"FPGA": 1}})
    tick = mesh.writer.fleet.tick
    mesh.call("DELETE", f"/allocations/{consumer}")
    improved = mesh.writer.fleet.improved_since(tick)
    assert improved is not None and [mesh.writer.fleet.node_name(int(row)) for row in improved] == ["n-1"]


def test_claims_are_consumers_that_nobody_changes_here() -> None:
    mesh = Mesh(one=[zoned()])
    of_zone = {"n-0/numa-0": {"cpu": 1500}}
    slots = with_parts(Slot(node="n-0", resources={"cpu": 1500, "memory": 1 << 20}), [PodPlace(of_zone, {})] * 2)
    mesh.fold(decided("k", *slots))
    claim = claim_uuid("k")
    shown = mesh.call("GET", f"/allocations/{claim}")
    assert {p: a["resources"] for p, a in shown["allocations"].items()} == {
        part("n-0/numa-0"): {"VCPU": 3},
        part("n-0"): {"MEMORY_MB": 2},
    }
    assert (shown["project_id"], shown["consumer_type"]) == ("shop", "MOORAGE_CLAIM")
    held = mesh.call("GET", f"/resource_providers/{part('n-0/numa-0')}/allocations")["allocations"]
    assert {c: a["resources"] for c, a in held.items()} == {claim: {"VCPU": 3}}
    total = mesh.call("GET", "/usages?project_id=shop")["usages"]
    assert total == {"MOORAGE_CLAIM": {"VCPU": 3, "MEMORY_MB": 2, "consumer_count": 1}}
    empty = mesh.body({}, 1)
    assert "claim" in refused(mesh, "PUT", f"/allocations/{claim}", empty)
    assert "claim" in refused(mesh, "DELETE", f"/allocations/{claim}")
    assert "claim" in refused(
        mesh, "POST", "/allocations", {claim: empty, str(uuid.uuid4()): mesh.body({part("n-0"): {"MEMORY_MB": 1}})}
    )


def test_generations_grow_with_allocation_writes_and_additions_only() -> None:
    mesh = Mesh(one=[node(cpu="4")])
    root = part("n-0")
    assert mesh.show(root)["generation"] == 0
    consumer = mesh.put({root: {"VCPU": 1}})
    mesh.put({root: {"VCPU": 2}}, consumer, 1)
    assert mesh.show(root)["generation"] == 2
    mesh.report(ONE, node("n-0", cpu="8"))
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert mesh.show(root)["generation"] == 2
    mesh.call("PUT", "/traits/CUSTOM_T")
    body = {"resource_provider_generation": 2, "traits": ["CUSTOM_T"]}
    assert mesh.call("PUT", f"/resource_providers/{root}/traits", body)["resource_provider_generation"] == 3
    assert "generation" in refused(mesh, "PUT", f"/resource_providers/{root}/traits", body)
    assert mesh.show(root)["generation"] == 3


def test_what_does_not_grow_is_allowed_over_capacity() -> None:
    mesh = Mesh(one=[node(cpu="4")])
    root = part("n-0")
    consumer = mesh.put({root: {"VCPU": 4}})
    mesh.report(ONE, node("n-0", cpu="2"))
    assert mesh.usages(root)["VCPU"] == 4
    mesh.put({root: {"VCPU": 4}}, consumer, 1)
    mesh.put({root: {"VCPU": 3}}, consumer, 2)
    assert mesh.usages(root)["VCPU"] == 3 and mesh.free("cpu") == -1000
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{consumer}", mesh.body({root: {"VCPU": 4}}, 3))


def test_several_consumers_move_between_nodes_in_one_request() -> None:
    mesh = Mesh(one=[node(cpu="4"), node(cpu="4")])
    a, b = part("n-0"), part("n-1")
    first, second = mesh.put({a: {"VCPU": 4}}), mesh.put({b: {"VCPU": 4}})
    body = {first: mesh.body({b: {"VCPU": 4}}, 1), second: mesh.body({a: {"VCPU": 4}}, 1)}
    mesh.call("POST", "/allocations", body)
    assert (mesh.free("cpu", "n-0"), mesh.free("cpu", "n-1")) == (0, 0)
    again = {first: mesh.body({a: {"VCPU": 4}}, 2), second: mesh.body({a: {"VCPU": 1}}, 2)}
    assert "exceed" in refused(mesh, "POST", "/allocations", again)
    assert mesh.call("GET", f"/allocations/{first}")["allocations"].keys() == {b}


def test_a_reshape_moves_what_is_held_between_made_providers_and_nodes() -> None:
    mesh = Mesh(one=[node(cpu="4")])
    root = part("n-0")
    made = mesh.call("POST", "/resource_providers", {"name": "made"})["uuid"]
    mesh.call(
        "PUT",
        f"/resource_providers/{made}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 4}}},
    )
    consumer = mesh.put({made: {"VCPU": 3}})
    body = {
        "inventories": {made: {"resource_provider_generation": 2, "inventories": {}}},
        "allocations": {consumer: mesh.body({root: {"VCPU": 3}}, 1)},
    }
    mesh.call("POST", "/reshaper", body)
    assert mesh.free("cpu") == 1000 and mesh.usages(made) == {}
    of_node = {"inventories": {root: {"resource_provider_generation": 1, "inventories": {}}}, "allocations": {}}
    assert "reported" in refused(mesh, "POST", "/reshaper", of_node)
