"""Checkpoints come back as they were; what is torn, junk or newer is known as such, and records are made again without them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.model.object_names import CLAIM, PARTS
from moorage.node.core import checkpoint
from moorage.node.core.checkpoint import (
    Checkpoint,
    by_plugins,
    can_be_given,
    decode_copy,
    encode_copy,
    rebuild,
    take_slots,
)
from moorage.node.core.properties import oci_properties, take_over
from moorage.qos.messages import ResourceAllocationInfo
from moorage.qos.state_file import BadState
from moorage_testkit.nodes import GB, SimulatedNode, machine, pod


def two_pods() -> SimulatedNode:
    node = SimulatedNode("{kind: NodePolicy, spec: {reservedCpus: 0-1}}")
    node.given(pod("a", "storage-service", 20, GB))
    node.given(pod("b", "online-micro_service", 2))
    return node


def test_a_checkpoint_is_stored_and_resumed() -> None:
    node = two_pods()
    kept = Checkpoint(records=node.records, asked={"uid-a": {"container0": {"CpuShares": "2048"}}}, resources=["cpu"])
    data = checkpoint.encode(kept)
    assert checkpoint.decode(data) == kept
    entries = msgspec.json.decode(data)["entries"]
    assert entries["uid-a"]["container0"]["cpu"]["allocationResult"] == "2-21"
    assert entries["uid-a"]["container0"]["cpu"]["ociPropertyName"] == "CpusetCpus"


def test_what_is_torn_or_junk_or_newer_is_no_checkpoint() -> None:
    data = checkpoint.encode(Checkpoint(records=two_pods().records))
    for cut in range(0, len(data), 97):
        with pytest.raises(BadState):
            checkpoint.decode(data[:cut])
    with pytest.raises(BadState):
        checkpoint.decode(data.replace(b"2-21", b"2-22", 1))
    for junk in (b"", b"null", b"[1]", b'{"version":1}', b"\xff\xfe", b"[" * 100_000):
        with pytest.raises(BadState):
            checkpoint.decode(junk)
    with pytest.raises(BadState) as newer:
        checkpoint.decode(b'{"version": 99, "checksum": 1, "entries": {}}')
    assert newer.value.newer


def test_plugins_restore_their_own_state_and_no_other_machines() -> None:
    node = two_pods()
    other = SimulatedNode(node.node.policy, node.machine)
    for name, plugin in node.plugins.items():
        other.plugins[name].restore(plugin.encode())
        assert other.plugins[name].resources_allocation() == plugin.resources_allocation()
        with pytest.raises(BadState):
            other.plugins[name].restore(plugin.encode()[:-3])
    other.check()
    small = SimulatedNode(on=machine(1, 4))
    with pytest.raises(BadState):
        small.cpu.restore(node.cpu.encode())
    assert not small.cpu.entries


def test_lost_state_is_rebuilt_from_copies_and_cgroups() -> None:
    node = two_pods()
    pods = {uid: record.pod for uid, record in node.records.items()}
    copies = {"uid-b": {"container0": decode_copy(encode_copy(node.records["uid-b"].containers["container0"]))}}
    cgroups = {"uid-a": {"container0": {"CpusetCpus": "2-21", "CpusetMems": "0"}}}
    records = rebuild(pods, {}, copies, cgroups)
    assert records["uid-b"].containers == node.records["uid-b"].containers
    fresh = SimulatedNode(node.node.policy, node.machine)
    allocations = {uid: record.containers for uid, record in records.items()}
    for plugin in fresh.plugins.values():
        assert plugin.adopt(pods, allocations) == []
    assert fresh.cpu.exclusive == node.cpu.exclusive
    fresh.check()
    assert oci_properties(fresh.cpu.resources_allocation()["uid-a"]["container0"])["CpusetCpus"] == "2-21"
    assert decode_copy("junk{") == {}


def test_what_a_cgroup_has_goes_before_an_older_copy_and_what_plugins_say_before_both() -> None:
    node = two_pods()
    pods = {"uid-a": node.records["uid-a"].pod}
    copies = {"uid-a": node.records["uid-a"].containers}
    resized = {"uid-a": {"container0": {"CpusetCpus": "2-23", "CpusetMems": "0"}}}
    (found,) = rebuild(pods, {}, copies, resized).values()
    assert oci_properties(found.containers["container0"])["CpusetCpus"] == "2-23"
    said = {name: plugin.resources_allocation() for name, plugin in node.plugins.items()}
    (found,) = rebuild(pods, said, copies, resized).values()
    assert oci_properties(found.containers["container0"])["CpusetCpus"] == "2-21"


def test_what_a_pod_had_as_a_whole_it_has_as_a_whole_again() -> None:
    policy = "{kind: NodePolicy, spec: {topologyScope: pod}}"
    amounts = {"resources": {"requests": {"cpu": "4", "memory": "1G"}}}
    node = SimulatedNode(policy)
    node.given(pod("a", "storage-service", containers=[{"name": n, **amounts} for n in ("main", "side")]), "main")
    node.given(pod("b", "reranker", 2, GB))
    pods = {uid: record.pod for uid, record in node.records.items()}
    copies = {uid: record.containers for uid, record in node.records.items()}
    assert rebuild(pods, {}, copies, {}, pod_scope=True) == node.records
    for scope in (policy, ""):  # the scope may be another one by now
        fresh = SimulatedNode(scope)
        records = rebuild(pods, {}, copies, {}, pod_scope=scope == policy)
        for plugin in fresh.plugins.values():
            assert plugin.adopt(pods, by_plugins(records)) == []
        assert fresh.cpu.exclusive == node.cpu.exclusive
        fresh.check()
    answers = {name: plugin.resources_allocation() for name, plugin in fresh.plugins.items()}
    found = rebuild(pods, answers, copies, {}, pod_scope=True)
    assert [record.whole for record in found.values()] == [True, False], "as plugins know them"


@pytest.mark.parametrize(
    ("role", "cpus", "mems", "expected"),
    [
        ("storage-service", "2-21", "0", True),
        ("storage-service", "2-20", "0", False),  # one CPU less than it asks for
        ("storage-service", "30-49", "0", False),  # of two NUMA nodes
        ("storage-service", "2-21", "0-1", False),  # its memory is not bound
        ("storage-service", "90-109", "0", False),  # this machine does not have them
        ("storage-service", "junk", "0", False),
        ("online-micro_service", "2-21", "0", False),  # it shares a pool
    ],
)
def test_a_cgroup_counts_where_its_cpus_can_have_been_given(role: str, cpus: str, mems: str, expected: bool) -> None:
    node = SimulatedNode()
    asked = pod("a", role, 20, GB)
    has = {"CpusetCpus": cpus, "CpusetMems": mems}
    assert can_be_given(asked.containers[0], node.node.policy.role(role), node.machine, has) is expected


def test_pods_of_a_claim_have_the_slots_of_their_zones_again() -> None:
    parts = '{"n": [{"count": 1, "parts": {"n/numa-0": {}}}, {"count": 2, "parts": {"n/numa-1": {}}}]}'
    claimed: dict[str, Any] = {"labels": {CLAIM: "c"}, "annotations": {PARTS: parts}}
    node = SimulatedNode("{kind: NodePolicy, spec: {roles: {db: {exclusive: true, numa: bind, sharesNumaWith: [db]}}}}")
    for name in ("a", "b", "c"):
        node.given(pod(name, "db", 2, GB, **claimed))
    slots = {uid: record.slot for uid, record in node.records.items()}
    assert slots == {"uid-a": 0, "uid-b": 1, "uid-c": 2}
    answers = {name: plugin.resources_allocation() for name, plugin in node.plugins.items()}
    pods = {uid: record.pod for uid, record in node.records.items()}
    del pods["uid-b"]
    found = rebuild(dict(reversed(pods.items())), answers, {}, {})
    take_slots(found, "n", [node.records["uid-b"]])
    assert {uid: (record.slot, record.zones) for uid, record in found.items()} == {"uid-a": (0, 1), "uid-c": (2, 2)}


def test_cpus_that_two_containers_claim_are_given_once() -> None:
    node = two_pods()
    pods = {uid: record.pod for uid, record in node.records.items()}
    pods["uid-c"] = pod("c", "storage-service", 20, GB)
    same = {"container0": node.records["uid-a"].containers["container0"]}
    fresh = SimulatedNode(node.node.policy, node.machine)
    problems = fresh.cpu.adopt(pods, {"uid-a": same, "uid-c": same})
    assert len(problems) == 1
    assert "default/c" in problems[0]
    fresh.check()


def test_answers_of_plugins_change_records_but_keep_hints() -> None:
    node = two_pods()
    record = node.records["uid-a"]
    said = {
        "uid-a": {
            "container0": {"cpu": ResourceAllocationInfo(oci_property_name="CpusetCpus", allocation_result="2-9")}
        }
    }
    changed, problems = take_over(node.records, "cpu", said)
    assert not problems
    now = changed["uid-a"].containers["container0"]["cpu"]
    assert (now.allocation_result, now.resource_hints) == ("2-9", record.containers["container0"]["cpu"].resource_hints)
    assert record.containers["container0"]["cpu"].allocation_result == "2-21"  # only the caller stores
    bad = {
        "uid-a": {"container0": {"cpu": ResourceAllocationInfo(oci_property_name="CpusetCpus")}},
        "uid-b": {"container0": {"x": ResourceAllocationInfo(oci_property_name="Nonsense", allocation_result="1")}},
        "uid-unknown": {"container0": {"cpu": ResourceAllocationInfo()}},
    }
    changed, problems = take_over(node.records, "cpu", bad)
    assert not changed
    assert len(problems) == 2
