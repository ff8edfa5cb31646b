"""Policies are refused with every violation and its path, and mean the same for every name of a role."""

from __future__ import annotations

import pytest

from moorage.model.problems import Refused
from moorage.qos.node_policy import NodePolicy, parse_node_policy
from moorage_testkit.nodes import machine

GOOD = b"""
kind: NodePolicy
spec:
  pools: {online: {cpus: "0-37", min: 4}, offline: {cpus: "38-39", default: true}}
  roles:
    one: {exclusive: true, numa: bind, sharesNumaWith: [two, one]}
    two: {exclusive: true, numa: bind, sharesNumaWith: [one]}
    batch: {pool: offline}
"""


def errors(text: str) -> dict[str, str]:
    with pytest.raises(Refused) as refused:
        parse_node_policy(text.encode(), machine())
    return {error.path: error.code for error in refused.value.problem.errors}


def policy() -> NodePolicy:
    return parse_node_policy(GOOD, machine())


def test_every_violation_is_told_with_its_path() -> None:
    found = errors("""
kind: NodePolicy
spec:
  foo: 1
  cpu: {strategy: nope, groupSize: 0, bar: 2}
  reservedCpus: 0-1,99
  reservedMemory: {"0": lots, "7": 1Gi}
  pools: {a: {cpus: 0-3, x: 1}, b: {cpus: 2-5, min: 0}, c: {cpus: 7-6}}
  roles: {r: {exclusive: 3}, s: {exclusive: true, pool: a}, t: {sharesNumaWith: [nobody], numa: bind}}
  nics: [{name: e, numa: 9}, {name: e, mbps: -1}]
  controller: {pools: {z: {usage: 2, wait: 0, donors: [z]}}}
""")
    assert found == {
        "spec.foo": "UnknownField",
        "spec.cpu.strategy": "BadValue",
        "spec.cpu.bar": "UnknownField",
        "spec.cpu.groupSize": "OutOfRange",
        "spec.reservedCpus": "OutOfRange",
        "spec.reservedMemory.0": "BadQuantity",
        "spec.reservedMemory.7": "OutOfRange",
        "spec.pools.a.x": "UnknownField",
        "spec.pools.b.min": "OutOfRange",
        "spec.pools.b.cpus": "Overlap",
        "spec.pools.c.cpus": "BadValue",
        "spec.roles.r.exclusive": "WrongType",
        "spec.roles.s.pool": "BadValue",
        "spec.roles.t.sharesNumaWith[0]": "UnknownRole",
        "spec.nics[0].numa": "OutOfRange",
        "spec.nics[1].name": "Duplicate",
        "spec.nics[1].mbps": "OutOfRange",
        "spec.controller.pools.z": "UnknownPool",
        "spec.controller.pools.z.usage": "OutOfRange",
        "spec.controller.pools.z.wait": "OutOfRange",
        "spec.controller.pools.z.donors[0]": "UnknownPool",
    }


@pytest.mark.parametrize(
    "text", ["", "[1]", "kind: Other", "{kind: NodePolicy, spec: 3}", "a: &a [*a]", "\x00", "spec: {pools: 1}"]
)
def test_junk_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_node_policy(text.encode(), machine())


def test_roles_share_a_node_where_both_list_the_other() -> None:
    found = policy()
    assert found.shares_numa("one", "two")
    assert found.shares_numa("one", "one")
    assert not found.shares_numa("two", "two")
    assert not found.shares_numa("one", "storage-service")
    assert found.shares_numa("numa-sharing && cpu-execlusive", "numa-enhancement")


def test_roles_without_a_pool_of_their_own_get_the_default() -> None:
    found = policy()
    for name, pool in (("batch", "offline"), ("online-micro_service", "online"), ("ETL", "offline")):
        chosen = found.pool_of(found.role(name))
        assert chosen is not None
        assert chosen.name == pool
    default = found.pool_of(None)
    assert default is not None
    assert default.name == "offline"
    assert found.role("nobody") is None
