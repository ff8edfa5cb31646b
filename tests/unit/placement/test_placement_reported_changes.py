"""Tells what clients may change about nodes and parts of clusters, and what stays of trees that change under allocations."""

from __future__ import annotations

import uuid

import pytest

from moorage.fleet import with_additions
from moorage.model.claims import Release, Withdrawal
from moorage.model.slots import Slot
from moorage.parts.inside import AddedNames
from moorage.placement.core.errors import Refused
from moorage_testkit.fleets import node, provider, two_zones

from .reported_mesh import ONE, Mesh, decided, part, refused, zoned


def test_name_parent_and_inventories_are_the_clusters() -> None:
    mesh = Mesh(one=[zoned()])
    root, url = part("n-0"), f"/resource_providers/{part('n-0')}"
    inventory = {"resource_provider_generation": 0, "total": 1}
    for method, path, body in (
        ("PUT", url, {"name": "other"}),
        (
            "PUT",
            f"/resource_providers/{part('n-0/numa-0')}",
            {"name": f"{ONE}/n-0/numa-0", "parent_provider_uuid": None},
        ),
        ("DELETE", url, None),
        ("DELETE", f"{url}/inventories", None),
        ("PUT", f"{url}/inventories", {"resource_provider_generation": 0, "inventories": {}}),
        ("POST", f"{url}/inventories", {"resource_class": "VGPU", **inventory}),
        ("PUT", f"{url}/inventories/MEMORY_MB", inventory),
        ("DELETE", f"{url}/inventories/MEMORY_MB", None),
        ("POST", "/resource_providers", {"name": "child", "parent_provider_uuid": root}),
    ):
        assert "reported" in refused(mesh, method, path, body), (method, path)
    assert "already exists" in refused(mesh, "POST", "/resource_providers", {"name": f"{ONE}/n-0/numa-1"})
    assert "already exists" in refused(mesh, "POST", "/resource_providers", {"name": "x", "uuid": root})
    assert "in use" in refused(mesh, "DELETE", "/traits/CUSTOM_FPGA_A").lower()
    assert mesh.call("PUT", url, {"name": f"{ONE}/n-0"})["uuid"] == root, "a name that stays"


def test_clients_add_traits_and_aggregates_and_remove_only_those() -> None:
    mesh = Mesh(one=[zoned()])
    zone, url = part("n-0/numa-0"), f"/resource_providers/{part('n-0/numa-0')}"
    mesh.call("PUT", "/traits/CUSTOM_GOLD")
    found = mesh.call("PUT", f"{url}/traits", {"resource_provider_generation": 0, "traits": ["CUSTOM_GOLD"]})
    assert found["traits"] == ["CUSTOM_GOLD", "HW_NUMA_ROOT"] or sorted(found["traits"]) == [
        "CUSTOM_GOLD",
        "HW_NUMA_ROOT",
    ]
    assert mesh.candidates("resources=VCPU:1&required=CUSTOM_GOLD") == [{zone: {"VCPU": 1}}]
    own = str(uuid.uuid4())
    mesh.call("PUT", f"{url}/aggregates", {"resource_provider_generation": 1, "aggregates": [own]})
    assert mesh.candidates(f"resources_1=VCPU:1&member_of_1={own}") == [{zone: {"VCPU": 1}}]
    mesh.report(ONE, zoned("n-0", requested={"cpu": "1"}))
    assert mesh.candidates("resources=VCPU:1&required=CUSTOM_GOLD") == [{zone: {"VCPU": 1}}], "agents do not touch them"
    mesh.call("DELETE", f"{url}/traits")
    assert mesh.traits(zone) == ["HW_NUMA_ROOT"]
    assert mesh.call("GET", f"{url}/aggregates")["aggregates"] == [own]
    assert mesh.show(zone)["generation"] == 3


def test_additions_in_the_fleet_are_no_reported_names() -> None:
    """Inventory merges additions into the rows that decisions see. They can be removed all the same."""
    mesh = Mesh(one=[zoned()])
    zone, url = part("n-0/numa-0"), f"/resource_providers/{part('n-0/numa-0')}"
    mesh.call("PUT", "/traits/CUSTOM_GOLD")
    mesh.call("PUT", f"{url}/traits", {"resource_provider_generation": 0, "traits": ["CUSTOM_GOLD"]})
    row = mesh.writer.row(0, "n-0")
    assert row is not None
    merged = with_additions(
        row, {"/numa-0": AddedNames(traits=["CUSTOM_GOLD"]), "": AddedNames(traits=["CUSTOM_ROOT"])}
    )
    mesh.writer.put(0, ONE, [merged])
    fleet = mesh.writer.fleet
    at = fleet.part_row(0, "n-0/numa-0")
    assert fleet.parts.traits.sets[int(fleet.parts.trait_set[at])] == {"HW_NUMA_ROOT", "GOLD"}
    mesh.call("DELETE", f"{url}/traits")
    assert mesh.traits(zone) == ["HW_NUMA_ROOT"] and mesh.traits(part("n-0")) == []
    assert mesh.candidates("resources=VCPU:1&required=CUSTOM_GOLD") == []


def test_a_part_that_is_gone_stays_while_something_names_it() -> None:
    mesh = Mesh(one=[zoned()])
    card = part("n-0/fpga-0")
    consumer = mesh.put({card: {"FPGA": 1}})
    without = node("n-0", cpu="8", memory="16Gi", zones=two_zones("4"), providers=[])
    mesh.report(ONE, without)
    shown = mesh.show(card)
    assert (shown["name"], shown["root_provider_uuid"], shown["generation"]) == (f"{ONE}/n-0/fpga-0", part("n-0"), 1)
    assert mesh.usages(card) == {"FPGA": 1}
    assert mesh.call("GET", f"/resource_providers/{card}/inventories")["inventories"] == {}
    tree = mesh.call("GET", f"/resource_providers?in_tree={part('n-0')}")["resource_providers"]
    assert card in {p["uuid"] for p in tree}
    assert mesh.candidates("resources=FPGA:1") == []
    mesh.report(ONE, zoned("n-0"))
    assert mesh.usages(card) == {"FPGA": 1} and mesh.show(card)["generation"] == 1, "back as it was, and still held"
    assert mesh.candidates("resources=FPGA:1") == [{part("n-0/fpga-1"): {"FPGA": 1}}]
    mesh.report(ONE, without)
    mesh.call("DELETE", f"/allocations/{consumer}")
    with pytest.raises(Refused) as error:
        mesh.show(card)
    assert error.value.status == 404
    mesh.report(ONE, zoned("n-0"))
    assert mesh.show(card)["generation"] == 1, "the generation goes on"


def test_a_consumer_keeps_what_it_has_of_a_part_that_is_gone_while_it_changes_all_else() -> None:
    mesh = Mesh(one=[zoned()])
    card, zone, other = part("n-0/fpga-0"), part("n-0/numa-0"), part("n-0/numa-1")
    consumer = mesh.put({card: {"FPGA": 1}, zone: {"VCPU": 3}, other: {"VCPU": 1}})
    half = [z for z in two_zones("4") if z.id != 0]
    cards = [provider("fpga-1", "numa-1", FPGA="1")]
    mesh.report(ONE, node("n-0", cpu="8", memory="16Gi", zones=half, providers=cards))
    assert mesh.usages(card) == {"FPGA": 1} and mesh.usages(zone) == {"VCPU": 3}
    mesh.put({card: {"FPGA": 1}, zone: {"VCPU": 2}, other: {"VCPU": 2}}, consumer, 1)
    assert (mesh.usages(card), mesh.usages(zone)) == ({"FPGA": 1}, {"VCPU": 2})
    more = mesh.body({card: {"FPGA": 1}, zone: {"VCPU": 3}}, 2)
    assert "invalid" in refused(mesh, "PUT", f"/allocations/{consumer}", more), "it takes no more of what is gone"
    stranger = mesh.body({card: {"FPGA": 1}}, None)
    assert "invalid" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", stranger)
    mesh.report(ONE, zoned("n-0"))
    assert (mesh.usages(card), mesh.usages(zone)) == ({"FPGA": 1}, {"VCPU": 2}), "it counts again"
    assert mesh.usages(part("n-0/any"))["VCPU"] == 4, "of the node it takes what its zones give"
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert mesh.usages(part("n-0/any"))["VCPU"] == 0 and mesh.usages(zone)["VCPU"] == 0


def test_a_node_that_is_gone_stays_while_a_claim_names_it() -> None:
    mesh = Mesh(one=[node(cpu="4"), node(cpu="4")])
    mesh.fold(decided("k", Slot(node="n-1", resources={"cpu": 1000})))
    mesh.report(ONE, gone=("n-1",))
    assert mesh.usages(part("n-1")) == {"VCPU": 1} and mesh.show(part("n-1"))["parent_provider_uuid"] is None
    mesh.fold(Withdrawal(group="g-k", revision=1), Release(claims=["k"]))
    assert mesh.call("GET", "/resource_providers")["resource_providers"] != []
    with pytest.raises(Refused):
        mesh.show(part("n-1"))


def test_a_part_that_moves_keeps_what_is_held_of_it() -> None:
    mesh = Mesh(one=[zoned()])
    card = part("n-0/fpga-0")
    mesh.put({card: {"FPGA": 1}})
    cards = [provider(f"fpga-{z}", "numa-1", FPGA="1") for z in (0, 1)]
    mesh.report(ONE, node("n-0", cpu="8", zones=two_zones("4"), providers=cards))
    assert mesh.show(card)["parent_provider_uuid"] == part("n-0/numa-1") and mesh.usages(card) == {"FPGA": 1}


def test_a_part_that_shrinks_is_over_capacity() -> None:
    mesh = Mesh(one=[node(cpu="8", providers=[provider("nic", SRIOV_NET_VF="8")])])
    nic = part("n-0/nic")
    consumer = mesh.put({nic: {"SRIOV_NET_VF": 6}})
    mesh.report(ONE, node("n-0", cpu="8", providers=[provider("nic", SRIOV_NET_VF="4")]))
    assert mesh.usages(nic) == {"SRIOV_NET_VF": 6}
    body = mesh.body({nic: {"SRIOV_NET_VF": 1}}, None)
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", body)
    mesh.put({nic: {"SRIOV_NET_VF": 5}}, consumer, 1)
    mesh.put({nic: {"SRIOV_NET_VF": 2}}, consumer, 2)
    assert len(mesh.candidates("resources=SRIOV_NET_VF:2")) == 1
