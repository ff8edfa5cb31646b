"""Describes what the node agent and its plugins tell each other. The messages on the wire (`resourceplugin.v1alpha1`) are
translated into these, so that deciding needs no gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

from moorage.model.base import Model, Value

from .topology_hints import Hint, Hints

#: The fields of a container's `LinuxContainerResources` that a plugin may set, by their Go names.
OCI_PROPERTIES = (
    "CpuPeriod",
    "CpuQuota",
    "CpuShares",
    "MemoryLimitInBytes",
    "OomScoreAdj",
    "CpusetCpus",
    "CpusetMems",
    "MemorySwapLimitInBytes",
)
#: Names of files of a cgroup are set by `unified`, for example `io.weight`. They have a dot and no slash.
UNIFIED_PREFIXES = ("cpu.", "cpuset.", "hugetlb.", "io.", "memory.", "pids.", "rdma.", "misc.")


def is_oci_property(name: str) -> bool:
    """Returns whether a plugin may set this property; an empty name sets none."""
    return not name or name in OCI_PROPERTIES or (name.startswith(UNIFIED_PREFIXES) and "/" not in name)


class ContainerType(IntEnum):
    """The role of a container in its pod. SIDECAR: every container beside the main one, and init containers that keep running."""

    INIT = 0
    MAIN = 1
    SIDECAR = 2
    EPHEMERAL = 3


class ContainerSpec(Value, kw_only=True, frozen=True):
    """A container as its pod asks for it. CPU is in cores, memory in bytes. `restarts`: an init container that keeps running."""

    name: str
    type: ContainerType = ContainerType.MAIN
    index: int = 0
    requests: dict[str, float] = {}
    limits: dict[str, float] = {}
    restarts: bool = False


class PodSpec(Model, kw_only=True):
    """A pod as the agent admits it. `requests_known` is False where only the runtime told of it: CRI has no requests."""

    uid: str
    namespace: str = ""
    name: str = ""
    role: str = ""
    type: str = ""
    qos_class: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    containers: tuple[ContainerSpec, ...] = ()
    requests: dict[str, float] = {}  # of the pod as a whole
    claim: str = ""
    host_network: bool = False
    problem: str = ""  # why its annotations cannot be obeyed
    requests_known: bool = True


class ResourceRequest(NamedTuple):
    """A question about one resource of a container or, with an empty `container`, of a whole pod. `hint`: the zones that were
    chosen; None in a question for hints."""

    pod_uid: str
    resource: str
    namespace: str = ""
    pod_name: str = ""
    container: str = ""
    container_type: ContainerType = ContainerType.MAIN
    container_index: int = 0
    role: str = ""
    type: str = ""
    hint: Hint | None = None
    requests: Mapping[str, float] = {}
    limits: Mapping[str, float] = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    qos_class: str = ""


#: The hints of a plugin by resource. No key, or None: no preference. An empty list: impossible.
HintsAnswer = Mapping[str, Hints]


class TopologyHint(Value, kw_only=True, frozen=True):
    """A hint as it is stored and shown. No nodes: any."""

    nodes: tuple[int, ...] = ()
    preferred: bool = False


def to_hint(hint: TopologyHint) -> Hint:
    """Returns the hint as a mask."""
    return Hint(sum(1 << node for node in set(hint.nodes)) if hint.nodes else None, hint.preferred)


def from_hint(hint: Hint) -> TopologyHint:
    """Returns the hint with its nodes."""
    return TopologyHint(nodes=nodes_of(hint.zones or 0), preferred=hint.preferred)


def nodes_of(mask: int) -> tuple[int, ...]:
    """Returns the numbers of the bits of a mask, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


class ResourceAllocationInfo(Model, kw_only=True):
    """The amount of one resource that a plugin gave to a container."""

    oci_property_name: str = ""
    is_node_resource: bool = False
    is_scalar_resource: bool = False
    allocated_quantity: float = 0.0
    allocation_result: str = ""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    resource_hints: tuple[TopologyHint, ...] = ()
    topology_assignments: dict[int, int] = {}


#: By resource.
ResourceAllocation = dict[str, ResourceAllocationInfo]
#: By pod uid, container and resource.
PodAllocations = dict[str, dict[str, ResourceAllocation]]


class TopologyAwareQuantity(Value, kw_only=True, frozen=True):
    """An amount of a resource on one NUMA node (level 0) or socket (level 1)."""

    resource_value: float = 0.0
    node: int = 0
    name: str = ""
    type: str = ""
    topology_level: int = 0
    annotations: dict[str, str] = {}


class TopologyAwareResource(Value, kw_only=True, frozen=True):
    """The amount of a resource that a container has, and where. `original`: as it was before adjustments."""

    is_node_resource: bool = False
    is_scalar_resource: bool = False
    aggregated_quantity: float = 0.0
    original_aggregated_quantity: float = 0.0
    quantities: tuple[TopologyAwareQuantity, ...] = ()
    original_quantities: tuple[TopologyAwareQuantity, ...] = ()


class AllocatableResource(Value, kw_only=True, frozen=True):
    """The amount of a resource that pods can be given, and what there is."""

    is_node_resource: bool = False
    is_scalar_resource: bool = False
    aggregated_allocatable: float = 0.0
    allocatable: tuple[TopologyAwareQuantity, ...] = ()
    aggregated_capacity: float = 0.0
    capacity: tuple[TopologyAwareQuantity, ...] = ()


class PluginOptions(Value, kw_only=True, frozen=True):
    """The options of a plugin: without alignment for no hints, without reconciling not periodically."""

    pre_start_required: bool = False
    with_topology_alignment: bool = True
    need_reconcile: bool = True


#: So many zones are in the text of a refusal.
_MOST_ZONES = 8


class ZoneMiss(Value, kw_only=True, frozen=True):
    """The amount that one zone lacks for a request. CPU is in cores, memory in bytes."""

    zone: int
    free: float = 0.0
    message: str = ""


class Refusal(Value, kw_only=True, frozen=True):
    """The reason why a container does not get what it asks for. `nearest`: what each zone has, the one that lacks least first."""

    code: str
    message: str
    resource: str = ""
    container: str = ""
    needed: float | None = None
    free: float | None = None
    nearest: tuple[ZoneMiss, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def with_zones(self) -> str:
        """Returns the text with what the nearest zones have, as far as it does not say so."""
        misses = [f"numa-{m.zone}: {m.message}" for m in self.nearest if m.message and m.message not in self.message]
        return "; ".join([str(self), *misses[:_MOST_ZONES]])


#: Why the agent refuses pods. Codes are never renamed.
CODES: dict[str, str] = {
    "TopologyAffinityError": "No set of zones satisfies all resources of the container under the topology policy.",
    "UnexpectedAdmissionError": "A plugin failed, answered junk, or could not give what its hints promised.",
    "RoleUnknown": "The node's policy has no such role, or the pod's annotations contradict each other.",
    "RoleForbidden": "The node's policy keeps the role for other namespaces.",
    "PluginMissing": "No plugin that is needed for the pod is registered.",
    "PoolMinimum": "Exclusive CPUs would shrink a pool below its minimum.",
    "SpecMissing": "The pod asks for something special, and its manifest is not known.",
    "ClaimUnmet": "The zones that the pod's claim names cannot give what it asks for.",
}


class AllocationRefused(Exception):
    """Raised by a plugin that cannot allocate. In gRPC its text is the error's details."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class ResourcePlugin(Protocol):
    """A built-in plugin: a state machine without I/O. Calls that change its state return when the state is changed; whoever
    serves it writes `encode()` to its file before it answers. Equal calls in equal order give equal answers."""

    @property
    def name(self) -> str:
        """The resource that the plugin registers."""

    @property
    def options(self) -> PluginOptions: ...

    def topology_hints(self, request: ResourceRequest) -> HintsAnswer: ...

    def allocate(self, request: ResourceRequest) -> ResourceAllocation:
        """Allocates, or raises AllocationRefused with its state unchanged. Repeated, it answers as before."""

    def remove_pod(self, uid: str) -> None:
        """Takes back what a pod has. An unknown pod has nothing."""

    def resources_allocation(self) -> PodAllocations:
        """Returns what every container should have now."""

    def topology_aware_resources(self, uid: str, container: str) -> Mapping[str, TopologyAwareResource]: ...

    def allocatable(self) -> Mapping[str, AllocatableResource]: ...

    def encode(self) -> bytes:
        """Returns the content of its state file."""

    def restore(self, content: bytes) -> None:
        """Takes over the content of a state file; raises ValueError, with its state unchanged, where that is junk, torn,
        newer, or of another machine."""

    def adopt(self, pods: Mapping[str, PodSpec], allocations: PodAllocations) -> list[str]:
        """Takes over what containers of these pods have by the agent's checkpoint or by their cgroups, where its own state
        lacks them. Returns what does not fit, one sentence each."""
