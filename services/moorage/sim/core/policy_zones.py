"""Simulates a node with a node agent: its pods are admitted by the same code as on real nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from moorage.podspec import is_guaranteed
from moorage.qos.admission import Admitted, Node, PluginInfo, PodRecord, admit, run_in_process
from moorage.qos.builtin import BUILT_IN, builtin_plugin
from moorage.qos.cpu_plugin import CpuPlugin
from moorage.qos.cpu_pools import CPU
from moorage.qos.machine import Machine
from moorage.qos.messages import ContainerSpec, ContainerType, PodSpec
from moorage.qos.node_policy import NodePolicy
from moorage.qos.pods import MAIN_CONTAINER, chosen_role
from moorage.qos.zone_reports import amount_texts, qos_report, roles_there, zone_amounts, zone_reports

from .pod_needs import PodNeed


class PolicyTopology:
    """The machine and the policy of a kind of node."""

    def __init__(self, policy: NodePolicy, machine: Machine) -> None:
        self.policy, self.machine = policy, machine

    def _key(self) -> tuple[Any, ...]:
        return self.policy.spec, self.machine.cpus.cpus, [(n.id, dict(n.total)) for n in self.machine.memory]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PolicyTopology) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self.machine.cpus.cpus)

    @cached_property
    def plugins(self) -> Mapping[str, PluginInfo]:
        return {name: PluginInfo(resource=name, built_in=True, everyone=name == "cpu") for name in BUILT_IN}


class PolicyZones:
    """The zones of one node. `report` is what is known outside, which may be older."""

    __slots__ = ("_encoded", "_node", "_plugins", "_records", "refusal", "report", "topology")

    def __init__(self, topology: PolicyTopology, name: str = "") -> None:
        self.topology = topology
        machine = topology.machine
        self._node = Node(name, topology.policy, topology.plugins, machine.zones, machine.distances or None)
        self._plugins = {plugin: builtin_plugin(plugin, topology.policy, machine) for plugin in BUILT_IN}
        self._records: dict[str, PodRecord] = {}
        self.refusal = ("", "")  # code and message of the pod that was refused last
        self.report = self.now()

    def admit(self, uid: str, need: PodNeed, name: str = "") -> bool:
        """Admits a pod as the node's agent does; False: it refuses it."""
        outcome = run_in_process(admit(_pod(uid, need, name), self._node, self._records), self._plugins)
        if isinstance(outcome, Admitted):
            self._records[uid] = outcome.record
            return True
        first = outcome.refusals[0]
        self.refusal = first.code, first.message
        return False

    def leave(self, uid: str) -> None:
        """Takes back what a pod had. Pods that were not admitted had nothing."""
        if self._records.pop(uid, None) is not None:
            for plugin in self._plugins.values():
                plugin.remove_pod(uid)

    def now(self) -> PolicyUse:
        """Returns what is in use at this moment, with the zones as they are open to roles now."""
        policy, in_use, counted = self.topology.policy, dict[str, dict[str, float]](), []
        pods = []
        for uid, record in self._records.items():
            amounts = zone_amounts(record, policy)
            counted.append(uid)
            pods.append((record.pod.role, amounts))
            for zone, found in amounts.items():
                here = in_use.setdefault(f"numa-{zone}", {})
                for name, amount in found.items():
                    here[name] = here.get(name, 0) + amount
        texts = {zone: amount_texts(amounts) for zone, amounts in in_use.items()}
        nics = sum({1 << nic.numa for nic in policy.spec.nics or ()})
        every = (1 << self.topology.machine.zones) - 1
        offered = {"cpu": every, "memory": every, "NIC": nics}
        cpu = self._plugins[CPU]
        assert isinstance(cpu, CpuPlugin)
        free = cpu.capacity(cpu.free())
        zones = zone_reports(self.topology.machine, policy, roles_there(pods), offered, cpu.free_by_zone())
        return PolicyUse(texts, tuple(counted), _encode(zones), free, _encode(qos_report(policy)))


_encode = msgspec.json.Encoder(order="deterministic").encode


class PolicyUse(msgspec.Struct, frozen=True):
    """The zones and what is in use of each, and the pods that this includes."""

    in_use: Mapping[str, Mapping[str, str]]
    counted: tuple[str, ...]
    zones: bytes
    exclusive_free: int
    qos: bytes

    def fields(self, listed: Sequence[str] = ()) -> bytes:
        """Encodes the fields of a node's row about them. `listed`: the pods that are reported one by one."""
        found = b',"zones":%b,"qos":%b,"cpuManager":{"policy":"static","exclusiveFree":%d}'
        found %= self.zones, self.qos, self.exclusive_free
        if self.in_use:
            found += b',"inUse":%b' % _encode(self.in_use)
        return found + (b',"counted":%b' % _encode(sorted(listed)) if listed else b"")


def _pod(uid: str, need: PodNeed, name: str) -> PodSpec:
    role, kind, problem = chosen_role(need.labels, need.annotations)
    named = need.annotations.get(MAIN_CONTAINER, "")
    plain = [c.name for c in need.containers if not c.init]
    main = named if named in plain else plain[0] if plain else ""
    containers = []
    for index, container in enumerate(need.containers):
        if container.init:
            of_kind = ContainerType.SIDECAR if container.sidecar else ContainerType.INIT
        else:
            of_kind = ContainerType.MAIN if container.name == main else ContainerType.SIDECAR
        requests, limits = (
            {n: a / 1000 if n == "cpu" else float(a) for n, a in amounts.items()}
            for amounts in (container.requests, container.limits)
        )
        containers.append(
            ContainerSpec(
                name=container.name,
                type=of_kind,
                index=index,
                requests=requests,
                limits=limits,
                restarts=container.sidecar,
            )
        )
    guaranteed = bool(need.containers) and all(map(is_guaranteed, need.containers))
    return PodSpec(
        uid=uid,
        namespace=need.namespace,
        name=name,
        role=role,
        type=kind,
        problem=problem,
        qos_class="Guaranteed" if guaranteed else "Burstable",
        labels=need.labels,
        annotations=need.annotations,
        containers=tuple(containers),
        claim=need.claim,
    )
