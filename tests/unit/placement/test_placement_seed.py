"""Nested placement as its specification shows it: each tree, each query, and the candidates that it names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.placement.core.errors import Refused

from .service import PlacementService as Service

PUBLIC = "a0000000-0000-4000-8000-000000000001"
OTHER = "a0000000-0000-4000-8000-000000000002"


def same(found: list[Any], expected: list[Any]) -> None:
    def key(value: Any) -> bytes:
        return msgspec.json.encode(value, order="deterministic")

    assert sorted(map(key, found)) == sorted(map(key, expected))


@pytest.fixture
def numa() -> Service:
    service = Service()
    service.tree(
        {
            "cn": {
                "children": {
                    "numa0": {
                        "VCPU": 4,
                        "MEMORY_MB": 2048,
                        "used": {"VCPU": 2},
                        "children": {"fpga0_0": {"FPGA": 1}},
                    },
                    "numa1": {
                        "VCPU": 4,
                        "MEMORY_MB": 2048,
                        "children": {"fpga1_0": {"FPGA": 1}, "fpga1_1": {"FPGA": 1}},
                    },
                }
            }
        }
    )
    return service


@pytest.fixture
def nics() -> Service:
    service = Service()
    root, net1, net2 = ["CUSTOM_HW_NIC_ROOT"], ["CUSTOM_NET1"], ["CUSTOM_NET2"]
    service.tree(
        {
            "cn": {
                "children": {
                    "nic1": {
                        "traits": root,
                        "children": {
                            "pf1_1": {"CUSTOM_VF": 4, "traits": net1},
                            "pf1_2": {"CUSTOM_VF": 4, "traits": net2},
                        },
                    },
                    "nic2": {
                        "traits": root,
                        "children": {
                            "pf2_1": {"CUSTOM_VF": 2, "traits": net1},
                            "pf2_2": {"CUSTOM_VF": 2, "traits": net2},
                        },
                    },
                }
            }
        }
    )
    return service


COMPUTE = {"VCPU": 2, "MEMORY_MB": 512}


def test_same_subtree_keeps_cpu_and_card_on_one_zone(numa: Service) -> None:
    found = numa.candidates(
        "resources_COMPUTE=VCPU:2,MEMORY_MB:512&resources_ACCEL=FPGA:1&same_subtree=_COMPUTE,_ACCEL"
    )
    same(
        found,
        [
            {"numa0": COMPUTE, "fpga0_0": {"FPGA": 1}},
            {"numa1": COMPUTE, "fpga1_0": {"FPGA": 1}},
            {"numa1": COMPUTE, "fpga1_1": {"FPGA": 1}},
        ],
    )


def test_without_same_subtree_cards_of_other_zones_are_candidates_too(numa: Service) -> None:
    found = numa.candidates("resources_COMPUTE=VCPU:2,MEMORY_MB:512&resources_ACCEL=FPGA:1")
    assert {"numa0": COMPUTE, "fpga1_0": {"FPGA": 1}} in found
    assert len(found) == 6


def test_an_apart_group_comes_from_another_zone(numa: Service) -> None:
    """Checks `!` in same_subtree, which the specification leaves for later."""
    found = numa.candidates(
        "resources_COMPUTE=VCPU:2,MEMORY_MB:512&resources_ACCEL=FPGA:1&same_subtree=_COMPUTE,!_ACCEL"
    )
    same(
        found,
        [
            {"numa0": COMPUTE, "fpga1_0": {"FPGA": 1}},
            {"numa0": COMPUTE, "fpga1_1": {"FPGA": 1}},
            {"numa1": COMPUTE, "fpga0_0": {"FPGA": 1}},
        ],
    )


def test_a_resourceless_group_ties_two_networks_to_one_card(nics: Service) -> None:
    found = nics.candidates(
        "resources_VIF_NET1=CUSTOM_VF:1&required_VIF_NET1=CUSTOM_NET1"
        "&resources_VIF_NET2=CUSTOM_VF:1&required_VIF_NET2=CUSTOM_NET2"
        "&required_NIC_AFFINITY=CUSTOM_HW_NIC_ROOT&same_subtree=_VIF_NET1,_VIF_NET2,_NIC_AFFINITY"
    )
    one = {"CUSTOM_VF": 1}
    same(found, [{"pf1_1": one, "pf1_2": one}, {"pf2_1": one, "pf2_2": one}])


PAIR = (
    "resources_VIF1=CUSTOM_VF:1&resources_VIF2=CUSTOM_VF:1&required_NIC_AFFINITY=CUSTOM_HW_NIC_ROOT"
    "&same_subtree=_VIF1,_VIF2,_NIC_AFFINITY"
)


@pytest.fixture
def one_card() -> Service:
    service = Service()
    card = {"traits": ["CUSTOM_HW_NIC_ROOT"], "children": {"pf1_1": {"CUSTOM_VF": 4}, "pf1_2": {"CUSTOM_VF": 4}}}
    service.tree({"cn": {"children": {"nic1": card, "nic2": {"traits": ["CUSTOM_HW_NIC_ROOT"]}}}})
    return service


def test_isolated_groups_take_different_functions_in_both_orders(one_card: Service) -> None:
    """Since mappings exist the two assignments of suffixes are told apart."""
    found = one_card.mappings(PAIR + "&group_policy=isolate")
    nic = ["nic1"]
    same(
        found,
        [
            {"_VIF1": ["pf1_1"], "_VIF2": ["pf1_2"], "_NIC_AFFINITY": nic},
            {"_VIF1": ["pf1_2"], "_VIF2": ["pf1_1"], "_NIC_AFFINITY": nic},
        ],
    )
    assert all(
        c == {"pf1_1": {"CUSTOM_VF": 1}, "pf1_2": {"CUSTOM_VF": 1}}
        for c in one_card.candidates(PAIR + "&group_policy=isolate")
    )


@pytest.mark.parametrize("policy", ["", "&group_policy=none"])
def test_groups_may_share_a_function_where_no_policy_forbids_it(one_card: Service, policy: str) -> None:
    found = one_card.candidates(PAIR + policy)
    assert {"pf1_1": {"CUSTOM_VF": 2}} in found
    assert {"pf1_2": {"CUSTOM_VF": 2}} in found
    assert len(found) == 4


def test_group_policy_is_required_before_1_40(one_card: Service) -> None:
    with pytest.raises(Refused, match="group_policy"):
        one_card.call("GET", "/allocation_candidates", PAIR, version=39)


def test_granular_isolation_keeps_only_the_named_groups_apart(one_card: Service) -> None:
    query = PAIR.replace("&required_NIC", "&resources_X=CUSTOM_VF:1&required_NIC")
    everywhere = one_card.candidates(query)
    apart = one_card.mappings(query + "&isolate=_VIF1")
    assert len(everywhere) == 8
    assert len(apart) == 2
    for mapping in apart:
        assert mapping["_VIF1"] not in (mapping["_VIF2"], mapping["_X"])


def test_isolate_and_group_policy_exclude_each_other(one_card: Service) -> None:
    with pytest.raises(Refused, match="exclude"):
        one_card.candidates(PAIR + "&group_policy=none&isolate=_VIF1")


def test_isolate_of_an_unknown_suffix_is_refused(one_card: Service) -> None:
    with pytest.raises(Refused, match="_NONE"):
        one_card.candidates(PAIR + "&isolate=_NONE")


@pytest.fixture
def hosts() -> Service:
    service = Service()
    service.tree(
        {
            "multi": {"VCPU": 8, "traits": ["COMPUTE_VOLUME_MULTI_ATTACH"], "aggregates": [PUBLIC]},
            "windows": {"VCPU": 8, "traits": ["CUSTOM_WINDOWS"], "aggregates": [OTHER]},
            "plain": {
                "VCPU": 8,
                "children": {"child": {"traits": ["COMPUTE_VOLUME_MULTI_ATTACH"], "aggregates": [PUBLIC]}},
            },
        }
    )
    return service


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("root_required=COMPUTE_VOLUME_MULTI_ATTACH", {"multi"}),
        ("root_required=!CUSTOM_WINDOWS", {"multi", "plain"}),
        ("root_required=in:COMPUTE_VOLUME_MULTI_ATTACH,CUSTOM_WINDOWS", {"multi", "windows"}),
        (f"root_member_of={PUBLIC}", {"multi"}),
        (f"root_member_of=!{PUBLIC}", {"windows", "plain"}),
        (f"root_member_of=in:{PUBLIC},{OTHER}", {"multi", "windows"}),
        (f"root_member_of=!in:{PUBLIC},{OTHER}", {"plain"}),
        (f"root_member_of={PUBLIC}&root_member_of={OTHER}", set()),
    ],
)
def test_roots_are_chosen_by_their_own_traits_and_aggregates(hosts: Service, query: str, expected: set[str]) -> None:
    assert {name for c in hosts.candidates(f"resources=VCPU:1&{query}") for name in c} == expected


def test_root_required_is_given_once(hosts: Service) -> None:
    with pytest.raises(Refused, match="only once"):
        hosts.candidates("resources=VCPU:1&root_required=CUSTOM_WINDOWS&root_required=CUSTOM_WINDOWS")


def test_a_query_without_resources_is_refused(nics: Service) -> None:
    with pytest.raises(Refused, match="at least one resources"):
        nics.candidates("required_NIC=CUSTOM_HW_NIC_ROOT&same_subtree=_NIC")


def test_a_resourceless_group_outside_same_subtree_is_refused(nics: Service) -> None:
    with pytest.raises(Refused, match=r"should be specified in `same_subtree`"):
        nics.candidates("resources=CUSTOM_VF:1&required_NIC=CUSTOM_HW_NIC_ROOT")


def test_a_resourceless_group_without_suffix_asks_for_one_part_of_the_tree(hosts: Service) -> None:
    found = hosts.mappings("resources_C=VCPU:1&required=COMPUTE_VOLUME_MULTI_ATTACH")
    same(found, [{"_C": ["multi"], "": ["multi"]}, {"_C": ["plain"], "": ["child"]}])


@pytest.mark.parametrize("suffix", ["_" + "a" * 63, "_mixedCase-9", "PORT_6a3d3a5e-0000-4000-8000-000000000000"])
def test_suffixes_are_free_text_and_returned_as_given(hosts: Service, suffix: str) -> None:
    assert {s for m in hosts.mappings(f"resources{suffix}=VCPU:1") for s in m} == {suffix}


@pytest.mark.parametrize("suffix", ["_" + "a" * 64, "_a.b", "_ä"])
def test_other_suffixes_are_refused(hosts: Service, suffix: str) -> None:
    with pytest.raises(Refused) as refused:
        hosts.candidates(f"resources{suffix}=VCPU:1")
    assert refused.value.status == 400


def test_traits_do_not_flow_down(hosts: Service) -> None:
    assert hosts.candidates("resources=VCPU:1&required=COMPUTE_VOLUME_MULTI_ATTACH") == [{"multi": {"VCPU": 1}}]
