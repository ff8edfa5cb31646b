"""The three examples of the QoS resource manager, on their machine of 80 CPUs: pools, bound roles, a shared network interface."""

from __future__ import annotations

import json

import pytest

from moorage.qos.admission import Admitted, Refused
from moorage.qos.cpusets import format_cpuset, parse_cpuset
from moorage.qos.machine import Cpu, CpuTopology, Machine, MemoryNode
from moorage.qos.messages import AllocationRefused
from moorage_testkit.nodes import GB, SEED_MEMORY, SimulatedNode, machine, pod

POOLS = """
kind: NodePolicy
spec:
  pools:
    online: {cpus: "0-37,40-77", min: 4, default: true}
    offline: {cpus: "38-39,78-79", min: 2}
"""
RESERVED = """
kind: NodePolicy
spec:
  reservedCpus: 0-1,40-41
  reservedMemory: {"0": 500Mi, "1": 500Mi}
"""
NICS = (
    RESERVED
    + """
  nics:
    - {name: eth0, numa: 0, mbps: 25000, ipv6: "fdbd:dc05:3:154::20"}
    - {name: eth1, numa: 1, mbps: 25000, ipv6: "fdbd:dc05:3:155::20", netns: /var/run/netns/ns1}
"""
)


def test_pods_share_the_pool_of_their_role_and_follow_it() -> None:
    node = SimulatedNode(POOLS)
    assert node.given(pod("pod1", "online-micro_service", 4)) == {"CpusetCpus": "0-37,40-77"}
    assert node.given(pod("pod2", "ETL", 2)) == {"CpusetCpus": "38-39,78-79"}
    assert node.given(pod("pod3", "online-micro_service", 4)) == {"CpusetCpus": "0-37,40-77"}
    info = node.records["uid-pod1"].containers["container0"]["cpu"]
    assert (info.allocated_quantity, info.is_scalar_resource, info.is_node_resource, info.resource_hints) == (
        76,
        True,
        False,
        (),
    )
    assert node.records["uid-pod2"].containers["container0"]["cpu"].allocated_quantity == 4
    node.cpu.set_pools({"online": parse_cpuset("0-13,40-53"), "offline": parse_cpuset("14-39,54-79")})
    found = {
        uid: (given["container0"]["cpu"].allocation_result, given["container0"]["cpu"].allocated_quantity)
        for uid, given in node.cpu.resources_allocation().items()
    }
    assert found == {
        "uid-pod1": ("0-13,40-53", 28),
        "uid-pod2": ("14-39,54-79", 52),
        "uid-pod3": ("0-13,40-53", 28),
    }


def test_roles_that_do_not_share_are_bound_to_different_nodes() -> None:
    node = SimulatedNode(RESERVED)
    state = json.loads(node.cpu.encode())
    assert state["machineState"] == {
        "0": {"reserved_cpuset": "0-1", "allocated_cpuset": "", "default_cpuset": "2-39"},
        "1": {"reserved_cpuset": "40-41", "allocated_cpuset": "", "default_cpuset": "42-79"},
    }
    memory = json.loads(node.plugins["memory"].encode())["machineState"]["memory"]
    assert memory["0"] == {
        "Allocated": "0",
        "allocatable": "237182648320",
        "free": "237182648320",
        "pod_entries": {},
        "systemReserved": "524288000",
        "total": "237706936320",
    }
    first = pod("pod1", "storage-service", 20, 40 * GB)
    assert node.given(first) == {"CpusetCpus": "2-21", "CpusetMems": "0"}
    info = node.records["uid-pod1"].containers["container0"]
    assert info["cpu"].allocated_quantity == 20
    assert info["cpu"].resource_hints[0].nodes == (0,)
    assert info["memory"].allocated_quantity == 40 * GB
    # Node 0 has 18 CPUs left, and reranker does not share it.
    assert node.given(pod("pod2", "reranker", 10, 20 * GB)) == {"CpusetCpus": "42-51", "CpusetMems": "1"}
    node.check()


def test_pods_of_one_role_share_a_network_interface() -> None:
    node = SimulatedNode(NICS)
    assert isinstance(node.admit(pod("full", "storage-service", 38, 200 * GB)), Admitted)
    for name, cpus in (("pod1", "42-51"), ("pod2", "52-61")):
        asked = pod(name, "numa-sharing && cpu-execlusive", 10, 20 * GB, hostNetwork=True)
        assert node.given(asked) == {"CpusetCpus": cpus, "CpusetMems": "1"}
        nic = node.records[asked.uid].containers["container0"]["NIC"]
        assert nic.envs == {"AFFINITY_NIC_ADDR_IPV6": "fdbd:dc05:3:155::20"}
        assert nic.annotations == {"kubernetes.io/host-netns-path": "/var/run/netns/ns1"}
        assert (nic.oci_property_name, nic.is_scalar_resource, nic.resource_hints[0].nodes) == ("", False, (1,))
    node.check()


def test_whole_cores_are_taken_where_siblings_stand_apart() -> None:
    cpus = [
        Cpu(i, core=zone * 40 + i % 20, socket=zone, numa=zone)
        for zone in (0, 1)
        for i in range(40 * zone, 40 * zone + 40)
    ]
    apart = Machine(CpuTopology(cpus), tuple(MemoryNode(i, {"memory": SEED_MEMORY[i]}) for i in (0, 1)))
    assert SimulatedNode(RESERVED, apart).given(pod("p", "storage-service", 20, GB))["CpusetCpus"] == "2-11,22-31"
    assert SimulatedNode(RESERVED, machine(2, 20, 2)).given(pod("p", "storage-service", 20, GB))["CpusetCpus"] == "2-21"


def test_exclusive_cpus_leave_every_pool_and_come_back() -> None:
    node = SimulatedNode(POOLS)
    node.given(pod("online", "online-micro_service", 4))
    assert node.given(pod("own", "storage-service", 20, GB))["CpusetCpus"] == "0-19"
    assert node.cpu.resources_allocation()["uid-online"]["container0"]["cpu"].allocation_result == "20-37,40-77"
    node.check()
    node.remove("uid-own")
    assert node.cpu.resources_allocation()["uid-online"]["container0"]["cpu"].allocation_result == "0-37,40-77"


def test_a_pool_keeps_its_minimum() -> None:
    node = SimulatedNode(POOLS)
    assert node.given(pod("a", "storage-service", 40, GB))["CpusetCpus"] == "0-39"
    refused = node.admit(pod("b", "reranker", 39, GB))
    assert isinstance(refused, Refused)
    assert [(r.code, r.needed, r.free) for r in refused.refusals] == [("PoolMinimum", 39, 34)]
    assert {miss.zone: miss.free for miss in refused.refusals[0].nearest} == {1: 34, 0: 0}
    assert "uid-b" not in node.cpu.entries
    with pytest.raises(AllocationRefused, match="PoolMinimum"):
        node.cpu.set_pools({"offline": parse_cpuset("38-39,78")})
    assert format_cpuset(node.cpu.pools()["offline"].cpus) == "78-79"
    node.check()
