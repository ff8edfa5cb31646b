"""Tests explanations of queries without candidates: the counts of each group, and the reason with its numbers."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from .service import PlacementService as Service

AGGREGATE = "a0000000-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def service() -> Service:
    service = Service()
    zones = {
        f"zone{number}": {
            "VCPU": 4,
            "MEMORY_MB": 2048,
            "used": {"VCPU": used},
            "traits": ["HW_NUMA_ROOT"],
            "children": {} if number else {"card": {"FPGA": 1, "traits": ["CUSTOM_FAST"]}},
        }
        for number, used in enumerate((3, 1))
    }
    service.tree({"host": {"DISK_GB": 10, "children": zones}, "other": {"VCPU": 2, "aggregates": [AGGREGATE]}})
    service.call("PUT", "/traits/{name}", name="CUSTOM_SLOW")
    return service


def explain(service: Service, query: str) -> dict[str, Any]:
    found = service.call("GET", "/allocation_candidates/explain", query).body
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    assert shown["candidates"] == len(service.candidates(query))
    return shown


def reason(service: Service, query: str) -> dict[str, Any]:
    found = explain(service, query)
    assert found["candidates"] == 0
    (one,) = found["reasons"]
    shown: dict[str, Any] = one
    return shown


def test_a_query_with_candidates_has_counts_and_no_reasons(service: Service) -> None:
    found = explain(service, "resources_C=VCPU:3&required_C=HW_NUMA_ROOT")
    assert found["candidates"] == 1 and found["reasons"] == []
    assert found["groups"] == [
        {
            "group": "_C",
            "resources": {"VCPU": 3},
            "providers": 3,
            "withTraits": 2,
            "withAggregates": 2,
            "inTree": 2,
            "withRoom": 1,
        }
    ]


@pytest.mark.parametrize(
    ("query", "code", "text"),
    [
        ("resources=VGPU:1", "PartMissing", "no provider offers VGPU"),
        ("resources_A=FPGA:1,VCPU:1", "PartMissing", "no provider offers FPGA, VCPU together"),
        ("resources_A=FPGA:1&required_A=CUSTOM_SLOW", "PartMissing", "of 1 providers .* none has CUSTOM_SLOW"),
        ("resources_A=FPGA:1&required_A=!CUSTOM_FAST", "PartMissing", "none has !CUSTOM_FAST"),
        (f"resources_A=FPGA:1&member_of_A={AGGREGATE}", "PartMissing", "none is in the aggregates"),
        (f"resources_A=FPGA:1&in_tree_A={AGGREGATE}", "PartMissing", "none is in the tree"),
    ],
)
def test_what_the_first_group_lacks(service: Service, query: str, code: str, text: str) -> None:
    found = reason(service, query)
    assert found["code"] == code
    assert re.search(text, found["message"])


def test_the_nearest_miss_has_numbers(service: Service) -> None:
    found = reason(service, "resources_C=VCPU:4,MEMORY_MB:100")
    assert (found["code"], found["group"], found["need"]) == ("PartShort", "_C", "VCPU")
    assert (found["needed"], found["free"], found["samples"]) == ("4", "3", ["zone1"])


@pytest.mark.parametrize(
    ("query", "relation", "samples"),
    [
        ("resources_C=VCPU:2&resources_A=FPGA:1&same_subtree=_C,_A", "sameSubtree", {"zone1", "card"}),
        ("resources_C=VCPU:1&resources_M=VCPU:1&isolate=_C,_M&in_tree_C={other}", "isolate", {"other"}),
        ("resources_A=FPGA:1&root_required=CUSTOM_SLOW", "rootRequired", {"card"}),
        (f"resources_A=FPGA:1&root_member_of={AGGREGATE}", "rootMemberOf", {"card"}),
        ("resources=FPGA:1&required=CUSTOM_SLOW", "required", {"card"}),
        ("resources_A=FPGA:1&resources_C=VCPU:1&in_tree_C={other}", "tree", {"card"}),
        ("resources_A=VCPU:3&resources_B=VCPU:2", "tree", {"zone1"}),
    ],
)
def test_the_relation_that_excludes_the_rest(service: Service, query: str, relation: str, samples: set[str]) -> None:
    """The samples are the providers of the nearest miss."""
    if relation == "isolate":
        query += "&in_tree_M={other}"
    found = reason(service, query.format(other=service.ids["other"]))
    assert (found["code"], found["relation"]) == ("RelationFails", relation)
    assert set(found["samples"]) == samples


def test_several_relations_that_exclude_only_together(service: Service) -> None:
    query = "resources_C=VCPU:2&resources_A=FPGA:1&same_subtree=_C,_A&root_required=CUSTOM_SLOW"
    assert reason(service, query)["relation"] == "sameSubtree, rootRequired"
