"""Requests that OpenStack Placement answers wrong, or not in time, are answered right and quickly."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
import pytest

from moorage.parts import Budget, candidates_in_steps
from moorage.placement.core import candidates
from moorage.placement.core.call import Call
from moorage.placement.core.errors import Refused

from .service import PlacementService as Service

SHARES = "MISC_SHARES_VIA_AGGREGATE"
AGGREGATE = "a0000000-0000-4000-8000-000000000000"


def service(tree: dict[str, Any], version: int = 40) -> Service:
    found = Service(version)
    found.tree(tree)
    return found


def steps(given: Service, query: str, most: int = 100_000, limit: int = 10) -> tuple[int, int]:
    """Returns how many candidates were found, and how many steps that took. The search must end by itself."""
    budget = Budget(most)
    request = candidates.read(Call(given.state, given.version, {}, parse_qsl(query, keep_blank_values=True)))
    found = 0
    for candidate in candidates_in_steps(given.state.forest, request, budget):
        found += candidate is not None
        if found == limit:
            break
    assert not budget.spent
    return found, most - budget.left


def test_p1_a_class_asked_with_and_without_suffix_adds_up_once_in_each_candidate() -> None:
    given = service({"cn": {"children": {"a": {"VCPU": 8}, "b": {"VCPU": 8}}}})
    found = given.candidates("resources=VCPU:3&resources_A=VCPU:2&resources_B=VCPU:1")
    expected = []
    for one in "ab":
        for two in "ab":
            for three in "ab":
                sums: dict[str, int] = {}
                for name, amount in ((one, 3), (two, 2), (three, 1)):
                    sums[name] = sums.get(name, 0) + amount
                expected.append({name: {"VCPU": n} for name, n in sums.items()})
    assert len(found) == 8
    assert sorted(map(repr, map(sorted, map(dict.items, found)))) == sorted(
        map(repr, map(sorted, map(dict.items, expected)))
    )


def test_p2_existing_use_is_never_forgotten() -> None:
    """Wide trees: the use of every child counts, and each candidate can be allocated as it is."""
    children = {f"c{i}": {"VGPU": 2, **({"used": {"VGPU": i % 3}} if i % 3 else {})} for i in range(12)}
    given = service({"cn": {"VCPU": 8, "used": {"VCPU": 7}, "children": children}})
    found = given.candidates("resources=VCPU:1&resources_A=VGPU:1&resources_B=VGPU:1&group_policy=none")
    assert found
    for candidate in found:
        assert all(amounts["VGPU"] <= 2 - int(name[1:]) % 3 for name, amounts in candidate.items() if name != "cn")
    assert given.candidates("resources=VCPU:2") == []


@pytest.mark.parametrize("amount", [2**31 - 1, 2**31, 2**63, 10**30])
@pytest.mark.parametrize("name", ["\0", "\ud800", "é" * 200, "'; DROP TABLE", "%", "_"])
def test_p3_what_a_strict_database_refuses_is_answered(amount: int, name: str) -> None:
    """Amounts beyond its integers, and names that its texts cannot have."""
    given = service({"cn": {"VCPU": 4, "children": {"numa": {"MEMORY_MB": 2**31 - 1}}}})
    requests: list[tuple[str, str, str, Any, dict[str, str]]] = [
        ("GET", "/resource_providers", f"resources=VCPU:{amount}", None, {}),
        ("GET", "/resource_providers", f"name={quote(name, errors='surrogatepass')}", None, {}),
        ("GET", "/allocation_candidates", f"resources=VCPU:{amount},MEMORY_MB:{amount}", None, {}),
        ("GET", "/allocation_candidates", f"resources=MEMORY_MB:{amount}&resources_A=VCPU:1", None, {}),
        ("GET", "/allocation_candidates", f"resources_A=VCPU:1&required_A={quote(name, errors='replace')}", None, {}),
        ("GET", "/usages", f"project_id={quote(name, errors='replace')}", None, {}),
        ("GET", "/traits", f"name=startswith:{quote(name, errors='replace')}", None, {}),
        ("POST", "/resource_providers", "", {"name": name.encode(errors="replace").decode()}, {}),
    ]
    offer = {"total": min(amount, 2**31 - 1), "allocation_ratio": 3e38}
    requests.append(
        (
            "PUT",
            "/resource_providers/{uuid}/inventories/{resource_class}",
            "",
            {"resource_provider_generation": 1, **offer},
            {"uuid": given.ids["numa"], "resource_class": "MEMORY_MB"},
        )
    )
    requests.append(("GET", "/allocation_candidates", f"resources=MEMORY_MB:{amount}", None, {}))
    inventories = {"resource_provider_generation": 1, "inventories": {"VCPU": {"total": amount, "max_unit": amount}}}
    requests.append(("PUT", "/resource_providers/{uuid}/inventories", "", inventories, {"uuid": given.ids["cn"]}))
    for method, route, query, body, path in requests:
        for version in (*range(10, 41, 6), 40):
            try:
                given.call(method, route, query, body, version, **path)
            except Refused as refused:
                assert refused.status in (400, 409), (method, route, query, version)


def test_p4_a_group_that_a_sharing_provider_meets_alone_hides_no_host() -> None:
    hosts = {f"cn{i}": {"VCPU": 4, "aggregates": [AGGREGATE]} for i in range(3)}
    given = service({**hosts, "disk": {"DISK_GB": 100, "traits": [SHARES], "aggregates": [AGGREGATE]}})
    found = given.candidates("resources=DISK_GB:10&resources_A=VCPU:1")
    assert {name for candidate in found for name in candidate} == {"cn0", "cn1", "cn2", "disk"}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("required_N=!CUSTOM_SLOW", {"b"}), (f"member_of_N={AGGREGATE}", {"b"}), ("in_tree_N=b", {"b"})],
)
def test_p5_p6_a_group_without_resources_is_met_by_each_of_its_conditions(condition: str, expected: set[str]) -> None:
    slow, member = {"traits": ["CUSTOM_SLOW"]}, {"aggregates": [AGGREGATE]}
    given = service(
        {
            "a": {"traits": ["CUSTOM_SLOW"], "children": {"za": {"VCPU": 4, **slow}}},
            "b": {"children": {"zb": {"VCPU": 4, **member}}},
        }
    )
    condition = condition.replace("in_tree_N=b", f"in_tree_N={given.ids['b']}")
    found = given.mappings(f"resources_C=VCPU:1&{condition}&same_subtree=_C,_N")
    assert found
    roots = {given.state.root_of(given.ids[name]) for mapping in found for names in mapping.values() for name in names}
    assert roots == {given.ids[name] for name in expected}


# -- searches that never ended --------------------------------------------------------------------------------------


def gpus(hosts: int, children: int = 8) -> Service:
    return service({f"cn{h}": {"children": {f"g{h}-{i}": {"VGPU": 1} for i in range(children)}} for h in range(hosts)})


def groups(count: int) -> str:
    return "&".join(f"resources_{i}=VGPU:1" for i in range(count))


@pytest.mark.parametrize("hosts", [1, 100])
def test_eight_cards_one_by_one(hosts: int) -> None:
    """There are 40,320 assignments on each host."""
    found, took = steps(gpus(hosts), groups(8))
    assert found == 10 and took < 2_000


def test_sixteen_groups_over_sixty_four_providers() -> None:
    assert steps(gpus(1, 64), groups(16))[1] < 2_000


def test_sixty_four_groups_over_sixty_three_providers_have_no_solution() -> None:
    found, took = steps(gpus(1, 63), groups(64))
    assert found == 0 and took < 10_000


def test_sixteen_isolated_groups_over_fifteen_providers_have_no_solution() -> None:
    """Each card has room for all groups; only the policy forbids it."""
    given = service({"cn": {"children": {f"g{i}": {"VGPU": 16} for i in range(15)}}})
    found, took = steps(given, f"{groups(16)}&group_policy=isolate")
    assert found == 0 and took < 10_000


def test_four_classes_spread_over_sixteen_children() -> None:
    """There are 65,536 ways on each host."""
    amounts = {"VCPU": 4, "MEMORY_MB": 4, "DISK_GB": 4, "VGPU": 4}
    given = service({"cn": {"children": {f"c{i}": dict(amounts) for i in range(16)}}})
    found, took = steps(given, "resources=VCPU:1,MEMORY_MB:1,DISK_GB:1,VGPU:1")
    assert found == 10 and took < 500


def test_groups_without_resources_that_many_providers_meet() -> None:
    given = service({"cn": {"VCPU": 4, "children": {f"c{i}": {"VGPU": 1} for i in range(40)}}})
    query = "resources=VCPU:1&required_A=!CUSTOM_X&required_B=!CUSTOM_X&required_C=!CUSTOM_X&same_subtree=_A,_B,_C"
    given.call("PUT", "/traits/{name}", name="CUSTOM_X")
    found, took = steps(given, query)
    assert found == 10 and took < 2_000


def test_a_long_answer_is_made_in_steps() -> None:
    """A request never keeps others waiting: what is made at a time is bounded, however many candidates there are."""
    given = gpus(60, 4)
    operation = candidates.listed(Call(given.state, 40, {}, [("resources_A", "VGPU:1"), ("resources_B", "VGPU:1")]))
    pauses = 0
    while True:
        try:
            next(operation)
        except StopIteration as end:
            body = msgspec.json.decode(b"".join(end.value.body.pieces))
            break
        pauses += 1
    assert len(body["allocation_requests"]) == 60 * 4 * 3
    assert pauses > 4
