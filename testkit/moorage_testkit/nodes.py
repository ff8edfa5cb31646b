"""Machines and pods for tests of the node's core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.qos.admission import Admitted, Node, PluginInfo, PodRecord, Refused, admit, run_in_process
from moorage.qos.builtin import BUILT_IN, BuiltInPlugin, builtin_plugin
from moorage.qos.cpu_plugin import CpuPlugin
from moorage.qos.machine import Cpu, CpuTopology, Machine, MemoryNode
from moorage.qos.messages import PodSpec
from moorage.qos.node_policy import NodePolicy, parse_node_policy
from moorage.qos.pods import pod_spec

GB = 1_000_000_000
#: The memory of the two nodes of the usage example's machine.
SEED_MEMORY = (237_706_936_320, 237_806_551_040)


def machine(
    zones: int = 2, cores: int = 40, threads: int = 1, memory: tuple[int, ...] = SEED_MEMORY, sockets: int = 0
) -> Machine:
    """Returns a machine whose NUMA nodes have consecutive CPUs; siblings stand side by side."""
    cpus = [
        Cpu(id=cpu, core=cpu // threads, socket=zone * (sockets or zones) // zones, numa=zone, uncore=zone)
        for zone in range(zones)
        for cpu in range(zone * cores * threads, (zone + 1) * cores * threads)
    ]
    nodes = tuple(MemoryNode(zone, {"memory": memory[zone % len(memory)]}) for zone in range(zones))
    distances = tuple(tuple(10 if a == b else 21 for b in range(zones)) for a in range(zones))
    return Machine(CpuTopology(cpus), nodes, distances)


def pod(
    name: str,
    role: str = "",
    cpu: float | str = 0,
    memory: int | str = 0,
    *,
    guaranteed: bool = False,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **more: Any,
) -> PodSpec:
    """Returns a pod with one container, `container0`, unless `more` has the fields of its spec."""
    amounts = {name: str(amount) for name, amount in (("cpu", cpu), ("memory", memory)) if amount}
    amounts.update(more.pop("requests", {}))
    resources = {"requests": amounts, "limits": amounts if guaranteed else {}}
    meta = {
        "name": name,
        "uid": f"uid-{name}",
        "namespace": namespace,
        "annotations": {**({"kubernetes.io/pod-role": role} if role else {}), **(annotations or {})},
        "labels": dict(labels or {}),
    }
    spec = {"containers": [{"name": "container0", "resources": resources}], **more}
    return pod_spec({"metadata": meta, "spec": spec})


class SimulatedNode:
    """A node whose built-in plugins run in this process."""

    def __init__(self, policy: NodePolicy | str = "", on: Machine | None = None, name: str = "n") -> None:
        self.machine = on or machine()
        if isinstance(policy, str):
            policy = parse_node_policy(policy.encode() or b"{kind: NodePolicy}", self.machine)
        self.plugins: dict[str, BuiltInPlugin] = {n: builtin_plugin(n, policy, self.machine) for n in BUILT_IN}
        infos = {n: PluginInfo(resource=n, built_in=True, everyone=n == "cpu") for n in BUILT_IN}
        self.node = Node(name, policy, infos, self.machine.zones, self.machine.distances)
        self.records: dict[str, PodRecord] = {}

    @property
    def cpu(self) -> CpuPlugin:
        found = self.plugins["cpu"]
        assert isinstance(found, CpuPlugin)
        return found

    def admit(self, asked: PodSpec) -> Admitted | Refused:
        outcome = run_in_process(admit(asked, self.node, self.records), self.plugins)
        if isinstance(outcome, Admitted):
            self.records[asked.uid] = outcome.record
        return outcome

    def remove(self, uid: str) -> None:
        self.records.pop(uid, None)
        for plugin in self.plugins.values():
            plugin.remove_pod(uid)

    def given(self, asked: PodSpec, container: str = "container0") -> dict[str, str]:
        """Admits a pod and returns its container's properties."""
        outcome = self.admit(asked)
        assert isinstance(outcome, Admitted), outcome
        resources = outcome.record.containers[container]
        return {info.oci_property_name: info.allocation_result for info in resources.values() if info.oci_property_name}

    def check(self) -> None:
        """Asserts that nobody shares exclusive CPUs and no pool has any of them."""
        seen = 0
        for containers in self.cpu.entries.values():
            for entry in containers.values():
                if entry.own:
                    own = self.cpu.cpus_of(entry)
                    assert not own & seen
                    assert not own & self.node.policy.reserved_cpus
                    seen |= own
        assert seen == self.cpu.exclusive
        for pool in self.cpu.pools().values():
            assert not pool.cpus & seen
            assert pool.cpus.bit_count() >= pool.least
