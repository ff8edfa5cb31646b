"""Locks of zones: what is taken of one tells whether pods of roles that do not share would be together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.qos.node_policy import NodePolicy, parse_node_policy
from moorage.qos.role_locks import GROUPS, LOCK_TOTAL, fits_beside, is_mixed, lock_amount


def policy(**shares: list[str]) -> NodePolicy:
    """Returns a policy of bound roles by the roles that each lists. The role of every node that shares with itself does not, here."""
    roles = {name: {"numa": "bind", "sharesNumaWith": listed} for name, listed in shares.items()}
    roles["numa-enhancement"] = {"numa": "bind"}
    return parse_node_policy(json.dumps({"kind": "NodePolicy", "spec": {"roles": roles}}).encode())


def amounts(found: NodePolicy, *names: str) -> list[int]:
    return [lock_amount(found, name) for name in names]


def test_roles_that_share_among_themselves_take_the_same() -> None:
    found = policy(a=["a", "b"], b=["a", "b"], c=["c"], alone=[], pair=["other"], other=["pair"])
    a, b, c, *others = amounts(found, "a", "b", "c", "alone", "pair", "other", "storage-service")
    assert a == b != c and max(a, c) < LOCK_TOTAL
    assert others == [LOCK_TOTAL] * 4


def test_a_role_between_two_that_do_not_share_is_with_one_of_them() -> None:
    a, middle, c = amounts(policy(a=["a", "m"], m=["a", "c", "m"], c=["c", "m"]), "a", "m", "c")
    assert a != c and middle in (a, c)


def test_pods_of_more_groups_than_can_be_told_apart_share_with_nobody() -> None:
    names = [f"r{i}" for i in range(GROUPS + 2)]
    found = amounts(policy(**{name: [name] for name in names}), *names)
    assert len(set(found[:GROUPS])) == GROUPS and found[GROUPS:] == [LOCK_TOTAL] * 2


def test_the_role_of_every_node_takes_one_unit_by_any_of_its_names() -> None:
    found = parse_node_policy(b"{kind: NodePolicy}")
    assert amounts(found, "numa-enhancement", "numa-sharing && cpu-execlusive") == [1, 1]


@given(st.lists(st.integers(0, 400), min_size=GROUPS, max_size=GROUPS), st.integers(0, GROUPS))
def test_a_pod_comes_only_beside_pods_of_its_group(pods: list[int], number: int) -> None:
    units = amounts(policy(**{f"r{i}": [f"r{i}"] for i in range(GROUPS + 1)}), *(f"r{i}" for i in range(GROUPS + 1)))
    taken = sum(count * unit for count, unit in zip(pods, units, strict=False))
    there = {i for i, count in enumerate(pods) if count}
    assert is_mixed(taken) == (len(there) > 1)
    allowed = not there or (there == {number} and number < GROUPS)
    assert fits_beside(taken, units[number]) == allowed
    assert fits_beside(np.array([taken]), units[number]).tolist() == [allowed]


@pytest.mark.parametrize("unit", [1, LOCK_TOTAL])
def test_nobody_comes_beside_a_pod_that_is_alone(unit: int) -> None:
    assert not fits_beside(LOCK_TOTAL, unit) and not is_mixed(LOCK_TOTAL)
