"""The built-in plugin `memory`: binds containers of roles to NUMA nodes that have their memory. Other containers are not
answered, and keep the nodes they have."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from moorage.model.base import Model

from .bound_zones import open_zones, roles_by_zone
from .cpusets import format_cpuset, parse_cpuset
from .machine import Machine
from .memory_nodes import Block, MemoryNodes, NoMemory
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
    nodes_of,
)
from .node_policy import NodePolicy, RoleSpec
from .pod_answers import adoption_order, requests_of
from .state_file import BadState, seal, unseal
from .topology_hints import Hint

MEMORY = "memory"
HUGEPAGES = "hugepages-"


class MemoryEntry(Model, kw_only=True):
    """The memory of a container. `nodes`: those it is bound to; `taken`: bytes by class."""

    namespace: str = ""
    pod_name: str = ""
    role: str = ""
    container_type: int = ContainerType.MAIN
    nodes: str = ""
    taken: dict[str, int] = {}
    requested: dict[str, int] = {}
    pool: bool = False  # its nodes are those of a pool, and no memory of them is its own

    @property
    def bound(self) -> int:
        return 0 if self.pool else parse_cpuset(self.nodes)

    def blocks(self) -> list[Block]:
        return [] if self.pool else [Block(self.bound, name, size) for name, size in sorted(self.taken.items())]


class _State(Model, kw_only=True):
    entries: dict[str, dict[str, MemoryEntry]] = {}


class MemoryPlugin:
    """The memory of a machine under a policy."""

    name = MEMORY
    options = PluginOptions()

    def __init__(self, policy: NodePolicy, machine: Machine) -> None:
        self.policy = policy
        self.machine = machine
        self.entries: dict[str, dict[str, MemoryEntry]] = {}
        self.nodes = self._empty()

    def _empty(self) -> MemoryNodes:
        reserved = self.policy.reserved_memory
        return MemoryNodes(
            {
                node.id: {
                    name: max(0, size - (reserved.get(node.id, 0) if name == MEMORY else 0))
                    for name, size in node.total.items()
                }
                for node in self.machine.memory
            }
        )

    def set_policy(self, policy: NodePolicy) -> None:
        """Takes over another policy; what containers have they keep."""
        self.policy = policy
        self._build(self.entries)

    def _build(self, entries: dict[str, dict[str, MemoryEntry]]) -> None:
        self.entries, self.nodes = entries, self._empty()
        for containers in entries.values():
            for entry in containers.values():
                for block in entry.blocks():
                    self.nodes.take(block.nodes, {block.name: block.size})

    def free_by_zone(self) -> dict[int, int]:
        """Returns the bytes that are free of each NUMA node."""
        return {node.id: node.free(MEMORY) for node in self.nodes.nodes.values()}

    # --- hints

    def topology_hints(self, request: ResourceRequest) -> HintsAnswer:
        role = self._role(request)
        entry = self.entries.get(request.pod_uid, {}).get(request.container)
        if entry is not None and entry.bound and entry.requested == _requested(request):
            return {MEMORY: [Hint(entry.bound, True)]}
        if role is None or not role.binds or self._leader(request):
            return {}
        found = self._bindable(request)
        if entry is not None and entry.bound:  # memory that is in use stays where it is
            found &= entry.bound
        if not found:
            raise AllocationRefused(self._no_zone(request))
        return {MEMORY: [Hint(1 << zone, True) for zone in nodes_of(found)]}

    def _bindable(self, request: ResourceRequest) -> int:
        there = roles_by_zone(self.entries, request.pod_uid)
        allowed = open_zones(self.policy, request.role, there, self.nodes.nodes)
        return allowed & self.nodes.alone(_requested(request))

    # --- allocation

    def allocate(self, request: ResourceRequest) -> ResourceAllocation:
        containers = self.entries.get(request.pod_uid, {})
        entry = containers.get(request.container)
        if entry is None or entry.requested != _requested(request):
            fresh = self._new_entry(request, entry)
            if fresh is None:
                return {}
            entry = fresh
            self.entries.setdefault(request.pod_uid, {})[request.container] = entry
        return {MEMORY: self._info(entry)}

    def _new_entry(self, request: ResourceRequest, before: MemoryEntry | None) -> MemoryEntry | None:
        role = self._role(request)
        entry = MemoryEntry(
            namespace=request.namespace,
            pod_name=request.pod_name,
            role=request.role,
            container_type=int(request.container_type),
            requested=_requested(request),
        )
        if role is None or not role.binds:
            pool = self.policy.pool_of(role)
            if pool is None or not pool.mems:
                return None
            entry.nodes, entry.pool = format_cpuset(pool.mems), True
            return entry
        leader = self._leader(request)
        wanted = dict(entry.requested)
        if leader and request.container_type == ContainerType.INIT:
            wanted = self._beyond(request.pod_uid, request.container, wanted)
        if before is not None:
            self.nodes.release(before.blocks())
        try:
            mask = self._choose(request, leader or (before.bound if before is not None else 0), wanted)
        except (NoMemory, AllocationRefused) as refusal:
            if before is not None:
                for block in before.blocks():
                    self.nodes.take(block.nodes, {block.name: block.size})
            if isinstance(refusal, AllocationRefused):
                raise
            raise AllocationRefused(self._no_zone(request, str(refusal))) from None
        self.nodes.take(mask, wanted)
        entry.nodes, entry.taken = format_cpuset(mask), wanted
        return entry

    def _choose(self, request: ResourceRequest, fixed: int, wanted: Mapping[str, int]) -> int:
        if fixed:
            return self.nodes.choose(Hint(fixed, True), wanted)
        zones = self._bindable(request)
        hint = request.hint.zones if request.hint is not None else None
        chosen = zones if hint is None else zones & hint
        if not chosen:
            raise AllocationRefused(self._no_zone(request))
        return chosen & -chosen

    def _beyond(self, uid: str, container: str, wanted: Mapping[str, int]) -> dict[str, int]:
        """An init container is done before the others begin: it needs only what it asks beyond them."""
        others: dict[str, int] = {}
        for name, entry in self.entries.get(uid, {}).items():
            if name != container:
                for resource, size in entry.taken.items():
                    others[resource] = others.get(resource, 0) + size
        return {name: max(0, size - others.get(name, 0)) for name, size in wanted.items()}

    def _leader(self, request: ResourceRequest) -> int:
        """Returns the nodes of the pod's main container for another one of the pod."""
        if request.container_type == ContainerType.MAIN:
            return 0
        for name, entry in self.entries.get(request.pod_uid, {}).items():
            if name != request.container and entry.bound and entry.container_type == ContainerType.MAIN:
                return entry.bound
        return 0

    def _role(self, request: ResourceRequest) -> RoleSpec | None:
        if not request.role:
            return None
        role = self.policy.role(request.role)
        if role is None:
            raise AllocationRefused(
                Refusal(code="RoleUnknown", message=f"the policy has no role {request.role!r}", resource=MEMORY)
            )
        return role

    def _no_zone(self, request: ResourceRequest, why: str = "") -> Refusal:
        needed = _requested(request).get(MEMORY, 0)
        there = roles_by_zone(self.entries, request.pod_uid)
        allowed = open_zones(self.policy, request.role, there, self.nodes.nodes)
        free = self.free_by_zone()
        nearest = sorted(free.items(), key=lambda found: (-found[1], found[0]))
        return Refusal(
            code="TopologyAffinityError",
            message=why or f"no NUMA node has {needed} bytes of memory free for role {request.role}",
            resource=MEMORY,
            container=request.container,
            needed=float(needed),
            free=float(max((size for zone, size in free.items() if allowed >> zone & 1), default=0)),
            nearest=tuple(
                ZoneMiss(
                    zone=zone,
                    free=float(size),
                    message=f"{size} of {needed} bytes"
                    if allowed >> zone & 1
                    else f"held by {' and '.join(sorted(there.get(zone, ())))}",
                )
                for zone, size in nearest
            ),
        )

    # --- what was given

    def remove_pod(self, uid: str) -> None:
        for entry in self.entries.pop(uid, {}).values():
            self.nodes.release(entry.blocks())

    def resources_allocation(self) -> PodAllocations:
        return {
            uid: {container: {MEMORY: self._info(entry)} for container, entry in containers.items()}
            for uid, containers in self.entries.items()
        }

    def _info(self, entry: MemoryEntry) -> ResourceAllocationInfo:
        nodes = nodes_of(parse_cpuset(entry.nodes))
        return ResourceAllocationInfo(
            oci_property_name="CpusetMems",
            is_scalar_resource=True,
            allocated_quantity=float(entry.requested.get(MEMORY, 0)),
            allocation_result=entry.nodes,
            resource_hints=() if entry.pool else (TopologyHint(nodes=nodes, preferred=True),),
            topology_assignments={nodes[0]: entry.taken.get(MEMORY, 0)} if len(nodes) == 1 and not entry.pool else {},
        )

    def topology_aware_resources(self, uid: str, container: str) -> Mapping[str, TopologyAwareResource]:
        entry = self.entries.get(uid, {}).get(container)
        if entry is None or not entry.bound:
            return {}
        return {
            name: TopologyAwareResource(
                is_scalar_resource=True,
                aggregated_quantity=float(size),
                original_aggregated_quantity=float(size),
                quantities=(quantity,),
                original_quantities=(quantity,),
            )
            for name, size in entry.requested.items()
            for quantity in [TopologyAwareQuantity(resource_value=float(size), node=nodes_of(entry.bound)[0])]
        }

    def allocatable(self) -> Mapping[str, AllocatableResource]:
        names = sorted({name for node in self.machine.memory for name in node.total})
        return {
            name: AllocatableResource(
                is_scalar_resource=True,
                aggregated_allocatable=float(sum(n.allocatable.get(name, 0) for n in self.nodes.nodes.values())),
                allocatable=tuple(
                    TopologyAwareQuantity(resource_value=float(n.allocatable.get(name, 0)), node=n.id)
                    for n in self.nodes.nodes.values()
                ),
                aggregated_capacity=float(sum(n.total.get(name, 0) for n in self.machine.memory)),
                capacity=tuple(
                    TopologyAwareQuantity(resource_value=float(n.total.get(name, 0)), node=n.id)
                    for n in self.machine.memory
                ),
            )
            for name in names
        }

    # --- state

    def encode(self) -> bytes:
        machine: dict[str, dict[str, object]] = {}
        totals = {node.id: node.total for node in self.machine.memory}
        sizes = self._sizes()
        for node in self.nodes.nodes.values():
            for name, allocatable in node.allocatable.items():
                total = totals[node.id].get(name, 0)
                machine.setdefault(name, {})[str(node.id)] = {
                    "Allocated": str(node.reserved.get(name, 0)),
                    "allocatable": str(allocatable),
                    "free": str(node.free(name)),
                    "pod_entries": sizes.get((node.id, name), {}),
                    "systemReserved": str(total - allocatable),
                    "total": str(total),
                }
        return seal({"machineState": machine, "pod_resource_entries": self.entries})

    def _sizes(self) -> dict[tuple[int, str], dict[str, dict[str, str]]]:
        """Returns what containers have, by node and class, then by pod and container."""
        found: dict[tuple[int, str], dict[str, dict[str, str]]] = {}
        for uid, containers in self.entries.items():
            for container, entry in containers.items():
                for node in nodes_of(entry.bound):
                    for name, size in entry.taken.items():
                        found.setdefault((node, name), {}).setdefault(uid, {})[container] = str(size)
        return found

    def restore(self, content: bytes) -> None:
        found = unseal(content)
        try:
            state = msgspec.convert({"entries": found.get("pod_resource_entries", {})}, _State)
            masks = [parse_cpuset(e.nodes) for containers in state.entries.values() for e in containers.values()]
        except (msgspec.ValidationError, ValueError) as error:
            raise BadState(f"the state of the memory is not of the expected form: {error}") from None
        if any(mask & ~sum(1 << node for node in self.nodes.nodes) for mask in masks):
            raise BadState("the state names NUMA nodes that this machine does not have")
        self._build(state.entries)

    def adopt(self, pods: Mapping[str, PodSpec], allocations: PodAllocations) -> list[str]:
        problems = []
        for uid, containers in allocations.items():
            pod = pods.get(uid)
            role = self.policy.role(pod.role) if pod is not None and pod.role else None
            if pod is None or role is None or not role.binds:
                continue
            for container in adoption_order(pod, containers):
                info = containers[container].get(MEMORY)
                if info is None or container in self.entries.get(uid, {}):
                    continue
                requests = requests_of(pod, container)
                problem = self._adopt(pod, container, info, {n: int(a) for n, a in requests.items() if is_memory(n)})
                if problem:
                    problems.append(f"{pod.namespace}/{pod.name} {container}: {problem}")
        return problems

    def _adopt(self, pod: PodSpec, container: str, info: ResourceAllocationInfo, requested: dict[str, int]) -> str:
        try:
            mask = parse_cpuset(info.allocation_result)
        except ValueError as error:
            return str(error)
        if not mask or mask & ~sum(1 << node for node in self.nodes.nodes):
            return f"the machine has no NUMA nodes {info.allocation_result!r}"
        entry = MemoryEntry(namespace=pod.namespace, pod_name=pod.name, role=pod.role, requested=requested)
        entry.container_type = next((int(c.type) for c in pod.containers if c.name == container), ContainerType.MAIN)
        entry.nodes, entry.taken = format_cpuset(mask), dict(requested)
        if entry.container_type == ContainerType.INIT:
            entry.taken = self._beyond(pod.uid, container, requested)
        short = [
            name
            for name, size in entry.taken.items()
            if sum(self.nodes.nodes[node].free(name) for node in nodes_of(mask)) < size
        ]
        self.nodes.take(mask, entry.taken)
        self.entries.setdefault(pod.uid, {})[container] = entry
        return f"NUMA node {entry.nodes} has less {' and '.join(short)} free than it holds" if short else ""


def is_memory(name: str) -> bool:
    """Returns whether the plugin gives this class."""
    return name == MEMORY or name.startswith(HUGEPAGES)


def _requested(request: ResourceRequest) -> dict[str, int]:
    return {name: int(amount) for name, amount in request.requests.items() if is_memory(name) and amount > 0}
