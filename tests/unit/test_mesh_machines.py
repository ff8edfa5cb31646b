"""Machines as documents of the mesh: where their nodes are, everything that is wrong at once, and the pools that are made of them."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from moorage.machine_groups import Surroundings, read
from moorage.machine_groups.objects import node_pool
from moorage.machine_groups.written import document_of
from moorage.model.machines import Machine
from moorage.model.problems import Refused
from moorage.slots.core.layout import NodeKey
from moorage.slots.core.mesh_machines import SlotParts, StoredMachine, accept, is_pool_of, share_of
from moorage_testkit.machines import example, machine

WHERE = {"michiru": ["lab/edge-1"], "utaha": ["lab/edge-2"], "eriri": ["lab/edge-1", "lab/edge-2"]}
POOL = "spec.nodePool"


def clusters_with(node: str) -> list[str]:
    return WHERE.get(node, [])


def accepted(document: dict[str, Any], *stored: Machine) -> Machine:
    before = {one.name: StoredMachine(machine=one, uid="u") for one in stored}
    return accept(document, before, [], clusters_with)[0]


def refused(document: dict[str, Any], *stored: Machine) -> set[tuple[str, str]]:
    with pytest.raises(Refused) as found:
        accepted(document, *stored)
    return {(violation.path, violation.code) for violation in found.value.problem.errors}


def documented() -> dict[str, Any]:
    document = example()
    document["spec"]["nodePool"][2]["cluster"] = "lab/edge-2"
    return document


def clusters(found: Machine) -> dict[str, str]:
    return {node.name: node.cluster for node in found.node_pool}


def test_an_entry_is_in_the_cluster_that_it_names_or_else_in_the_only_one_with_its_node() -> None:
    assert clusters(accepted(documented())) == {"michiru": "lab/edge-1", "utaha": "lab/edge-2", "eriri": "lab/edge-2"}
    both = example()
    both["spec"] |= {"cluster": "lab/edge-2", "nodePool": both["spec"]["nodePool"][1:]}
    assert set(clusters(accepted(both)).values()) == {"lab/edge-2"}
    assert refused(example()) == {(f"{POOL}[2].name", "UnknownNode")}, "two clusters have it"
    # A node that was in the pool stays where it is, although two clusters have one now, and although none has it any more.
    before = accepted(documented())
    assert clusters(accepted(example(), before)) == clusters(before)
    assert accept(example(), {before.name: StoredMachine(machine=before, uid="u")}, [], lambda _node: [])[0] == before


def test_everything_that_is_wrong_is_told_at_once() -> None:
    document = documented()
    other = accepted(machine("other", {"a": {"spec": {"cpu": "1", "memory": "1Gi"}, "available": 1}}, {"michiru": ["a"]}))  # fmt: skip
    document["apiVersion"] = "v1"
    document["metadata"]["labels"]["imperator.tenzen-y.io/machine-group"] = "other"
    document["spec"]["nodePool"][1]["name"] = "nowhere"
    document["spec"]["nodePool"][2] |= {"cluster": "lab/edge-9", "mode": "broken"}
    document["spec"]["machineTypes"][0]["available"] = -1
    assert refused(document, other) == {
        ("apiVersion", "WrongKind"),
        ("metadata.labels[imperator.tenzen-y.io/machine-group]", "GroupTaken"),
        (f"{POOL}[0].name", "NodeTaken"),
        (f"{POOL}[1].name", "UnknownNode"),
        (f"{POOL}[2].name", "UnknownNode"),
        (f"{POOL}[2].mode", "BadValue"),
        ("spec.machineTypes[0].available", "OutOfRange"),
    }


@pytest.mark.parametrize("document", [{}, {"metadata": []}, {"spec": []}, {"spec": {"nodePool": {}}}, {"spec": {"nodePool": [1, {"name": []}]}}])  # fmt: skip
def test_documents_that_are_no_machines_are_refused(document: dict[str, Any]) -> None:
    assert refused({"metadata": {"name": "x"}, **document})


def test_a_pool_that_says_what_its_machine_says_changes_nothing() -> None:
    found = accepted(documented())
    pool = node_pool(found, "u")
    assert is_pool_of(found, pool)
    spec = pool["spec"]
    alias = {k: v for k, v in spec.items() if k != "machineGroup"} | {"machineGroupName": spec["machineGroup"]}
    reordered = spec | {"machineTypeStock": spec["machineTypeStock"][::-1]}
    short = copy.deepcopy(spec)
    del short["nodePool"][1]["taint"], short["machineTypeStock"]
    for same in (alias, reordered, short):
        assert is_pool_of(found, pool | {"spec": same}), same
    for number, change in enumerate(
        (
            {"machineGroup": "another"},
            {"machineTypeStock": spec["machineTypeStock"][:2]},
            {"machineTypeStock": 7},
            {"nodePool": spec["nodePool"][:2]},
            {"nodePool": [spec["nodePool"][0] | {"mode": "maintenance"}, *spec["nodePool"][1:]]},
            {"nodePool": None},
        )
    ):
        assert not is_pool_of(found, pool | {"spec": spec | change}), number


def test_what_earlier_releases_stored_can_be_written_and_applied_as_it_is() -> None:
    window = {"name": "w", "slots": 1, "from": "2030-01-01T00:00:00Z", "until": "2030-01-02T00:00:00Z"}
    size = {"dependence": {"machineType": "a", "availableRatio": 0.5}}
    child = {"spec": size, "offlineSlots": 1, "windows": [window]}
    kinds = {"a": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 1}, "c": child}
    document = machine("g", kinds, {"michiru": ["a"]})
    found = read(document, Surroundings(stored=True)).machine
    assert found is not None and is_pool_of(found, node_pool(found, "u"))
    node = msgspec.structs.replace(found.node_pool[0], cluster="lab/edge-1")
    stored = StoredMachine(machine=msgspec.structs.replace(found, node_pool=(node,)), uid="u")
    share = share_of(stored, "lab/edge-1", {"a": {NodeKey("lab/edge-1", "michiru"): 1}}, {}, {})
    assert read(document_of(share.machine)).violations == []
    assert accepted(document, stored.machine) == stored.machine
    broken = {(f"spec.machineTypes[1].{field}", "Contradiction") for field in ("offlineSlots", "windows")}
    assert refused(document) == broken, "a new one"
    document["spec"]["machineTypes"][0]["available"] = 2
    assert refused(document, stored.machine) == broken, "and one that is changed"


def test_a_share_has_no_more_slots_to_give_out_alone_than_there_are() -> None:
    """More may be in use when their number is made smaller."""
    child = {"spec": {"dependence": {"machineType": "a", "availableRatio": 0.5}}, "available": 1, "offlineSlots": 1}
    kinds = {"a": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 1}, "c": child}
    stored = StoredMachine(machine=accepted(machine("g", kinds, {"michiru": ["a"]})), uid="u")
    there = NodeKey("lab/edge-1", "michiru")
    share = share_of(stored, "lab/edge-1", {"a": {there: 1}}, {}, {"c": SlotParts({there: 2}, {})})
    assert read(document_of(share.machine)).violations == []
