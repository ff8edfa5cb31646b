"""The built-in plugin `NIC`: names the network interface of a container's NUMA node. Containers share it; what they ask for is
Mb/s, and may be nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from moorage.model.base import Model

from .machine import Machine
from .messages import (
    AllocatableResource,
    AllocationRefused,
    ContainerType,
    HintsAnswer,
    PluginOptions,
    PodAllocations,
    PodSpec,
    Refusal,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceRequest,
    TopologyAwareQuantity,
    TopologyAwareResource,
    TopologyHint,
    ZoneMiss,
)
from .node_policy import NicSpec, NodePolicy
from .pod_answers import requests_of
from .state_file import BadState, seal, unseal
from .topology_hints import Hint

NIC = "NIC"
ADDRESS_IPV6 = "AFFINITY_NIC_ADDR_IPV6"
ADDRESS_IPV4 = "AFFINITY_NIC_ADDR_IPV4"
NETNS = "kubernetes.io/host-netns-path"


class NicEntry(Model, kw_only=True):
    """The interface of a container, and the Mb/s that it asked for."""

    namespace: str = ""
    pod_name: str = ""
    role: str = ""
    nic: str = ""
    mbps: float = 0.0


class _State(Model, kw_only=True):
    entries: dict[str, dict[str, NicEntry]] = {}


class NicPlugin:
    """The interfaces of a machine: those of the policy or, without any there, those that were found."""

    name = NIC
    options = PluginOptions()

    def __init__(self, policy: NodePolicy, machine: Machine, found: Iterable[NicSpec] = ()) -> None:
        self.policy = policy
        self.machine = machine
        self._found = tuple(found)
        self.entries: dict[str, dict[str, NicEntry]] = {}

    @property
    def nics(self) -> dict[str, NicSpec]:
        given = self.policy.spec.nics
        return {nic.name: nic for nic in (self._found if given is None else given)}

    def set_policy(self, policy: NodePolicy) -> None:
        """Takes over another policy; containers keep the interfaces that they know."""
        self.policy = policy

    def free(self) -> dict[str, float]:
        """Returns the Mb/s that are not asked for yet, by interface."""
        left = {name: nic.mbps for name, nic in self.nics.items()}
        for containers in self.entries.values():
            for entry in containers.values():
                if entry.nic in left:
                    left[entry.nic] -= entry.mbps
        return left

    def _fitting(self, request: ResourceRequest) -> list[NicSpec]:
        """Returns the interfaces that have enough left, the emptiest first."""
        free, own = self.free(), self.entries.get(request.pod_uid, {}).get(request.container)
        if own is not None and own.nic in free:
            free[own.nic] += own.mbps
        asked = request.requests.get(NIC, 0.0)
        found = [nic for nic in self.nics.values() if asked <= 0 or free[nic.name] >= asked]
        return sorted(found, key=lambda nic: (-free[nic.name], nic.name))

    def topology_hints(self, request: ResourceRequest) -> HintsAnswer:
        entry = self.entries.get(request.pod_uid, {}).get(request.container)
        if entry is not None and entry.nic in self.nics and entry.mbps == request.requests.get(NIC, 0.0):
            return {NIC: [Hint(1 << self.nics[entry.nic].numa, True)]}
        zones = sorted({nic.numa for nic in self._fitting(request)})
        if not zones:
            raise AllocationRefused(self._short(request))
        return {NIC: [Hint(1 << zone, True) for zone in zones]}

    def allocate(self, request: ResourceRequest) -> ResourceAllocation:
        asked = request.requests.get(NIC, 0.0)
        entry = self.entries.get(request.pod_uid, {}).get(request.container)
        if entry is None or entry.nic not in self.nics or entry.mbps != asked:
            mask = request.hint.zones if request.hint is not None else None
            leader = self._leader(request)
            fitting = [nic for nic in self._fitting(request) if mask is None or mask >> nic.numa & 1]
            fitting.sort(key=lambda nic: nic.name != leader)
            if not fitting:
                raise AllocationRefused(self._short(request))
            entry = NicEntry(
                namespace=request.namespace,
                pod_name=request.pod_name,
                role=request.role,
                nic=fitting[0].name,
                mbps=asked,
            )
            self.entries.setdefault(request.pod_uid, {})[request.container] = entry
        return {NIC: self._info(entry)}

    def _leader(self, request: ResourceRequest) -> str:
        """Returns the interface that other containers of the pod have."""
        if request.container_type == ContainerType.MAIN:
            return ""
        return next((entry.nic for entry in self.entries.get(request.pod_uid, {}).values()), "")

    def _short(self, request: ResourceRequest) -> Refusal:
        asked = request.requests.get(NIC, 0.0)
        free = self.free()
        if not self.nics:
            message = "the machine has no network interface that the policy names"
        else:
            message = f"no network interface of the zones has {asked:g} Mb/s left"
        best: dict[int, float] = {}
        for nic in self.nics.values():
            best[nic.numa] = max(best.get(nic.numa, 0.0), free[nic.name])
        return Refusal(
            code="TopologyAffinityError",
            message=message,
            resource=NIC,
            container=request.container,
            needed=asked,
            free=max(best.values(), default=0.0),
            nearest=tuple(
                ZoneMiss(zone=zone, free=left, message=f"{left:g} of {asked:g} Mb/s")
                for zone, left in sorted(best.items(), key=lambda found: (-found[1], found[0]))
            ),
        )

    def remove_pod(self, uid: str) -> None:
        self.entries.pop(uid, None)

    def resources_allocation(self) -> PodAllocations:
        return {
            uid: {container: {NIC: self._info(entry)} for container, entry in containers.items()}
            for uid, containers in self.entries.items()
        }

    def _info(self, entry: NicEntry) -> ResourceAllocationInfo:
        nic = self.nics.get(entry.nic)
        if nic is None:
            return ResourceAllocationInfo()
        envs = {name: value for name, value in ((ADDRESS_IPV6, nic.ipv6), (ADDRESS_IPV4, nic.ipv4)) if value}
        return ResourceAllocationInfo(
            is_scalar_resource=entry.mbps > 0,
            allocated_quantity=entry.mbps,
            resource_hints=(TopologyHint(nodes=(nic.numa,), preferred=True),),
            envs=envs,
            annotations={NETNS: nic.netns} if nic.netns else {},
        )

    def topology_aware_resources(self, uid: str, container: str) -> Mapping[str, TopologyAwareResource]:
        entry = self.entries.get(uid, {}).get(container)
        nic = self.nics.get(entry.nic) if entry is not None else None
        if entry is None or nic is None:
            return {}
        quantity = TopologyAwareQuantity(resource_value=entry.mbps, node=nic.numa, name=nic.name, type="nic")
        return {
            NIC: TopologyAwareResource(
                is_scalar_resource=True,
                aggregated_quantity=entry.mbps,
                original_aggregated_quantity=entry.mbps,
                quantities=(quantity,),
                original_quantities=(quantity,),
            )
        }

    def allocatable(self) -> Mapping[str, AllocatableResource]:
        quantities = tuple(
            TopologyAwareQuantity(resource_value=nic.mbps, node=nic.numa, name=nic.name, type="nic")
            for nic in self.nics.values()
        )
        total = sum(nic.mbps for nic in self.nics.values())
        return {
            NIC: AllocatableResource(
                is_scalar_resource=True,
                aggregated_allocatable=total,
                allocatable=quantities,
                aggregated_capacity=total,
                capacity=quantities,
            )
        }

    def encode(self) -> bytes:
        zones: dict[str, dict[str, list[dict[str, object]]]] = {}
        for nic in self.nics.values():
            address = {key: value for key, value in (("ipv4", nic.ipv4), ("ipv6", nic.ipv6)) if value}
            described: dict[str, object] = {"interface_name": nic.name, "numa_node": nic.numa, "address": address}
            if nic.netns:
                described["netns"] = nic.netns
            zones.setdefault(str(nic.numa), {"nics": []})["nics"].append(described)
        return seal({"machineState": zones, "pod_entries": self.entries})

    def restore(self, content: bytes) -> None:
        found = unseal(content)
        try:
            self.entries = msgspec.convert({"entries": found.get("pod_entries", {})}, _State).entries
        except msgspec.ValidationError as error:
            raise BadState(f"the state of the interfaces is not of the expected form: {error}") from None

    def adopt(self, pods: Mapping[str, PodSpec], allocations: PodAllocations) -> list[str]:
        problems = []
        for uid, containers in allocations.items():
            pod = pods.get(uid)
            for container, resources in containers.items() if pod is not None else ():
                info = resources.get(NIC)
                if pod is None or info is None or container in self.entries.get(uid, {}):
                    continue
                nodes = {node for hint in info.resource_hints for node in hint.nodes}
                address = info.envs.get(ADDRESS_IPV6, "")
                nic = next((n for n in self.nics.values() if n.numa in nodes and n.ipv6 == address), None)
                if nic is None:
                    problems.append(f"{pod.namespace}/{pod.name} {container}: its network interface is not there")
                    continue
                mbps = requests_of(pod, container).get(NIC, 0.0)
                self.entries.setdefault(uid, {})[container] = NicEntry(
                    namespace=pod.namespace, pod_name=pod.name, role=pod.role, nic=nic.name, mbps=mbps
                )
        return problems
