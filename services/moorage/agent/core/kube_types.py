"""The fields of nodes, pods, ResourceSlices and topologies that reports are made of. All others are skipped while decoding."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.kube.objects import Object, ObjectMetadata

Amounts = dict[str, str | int | float] | None


class _Kube(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    pass


class Taint(_Kube, kw_only=True, frozen=True):
    key: str
    effect: str = ""
    value: str = ""


class Condition(_Kube, kw_only=True, frozen=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class NodeSpec(_Kube, kw_only=True, frozen=True):
    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeStatus(_Kube, kw_only=True, frozen=True):
    capacity: Amounts = None
    allocatable: Amounts = None
    conditions: list[Condition] | None = None


class Node(Object, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ContainerClaim(_Kube, kw_only=True, frozen=True):
    name: str = ""
    request: str | None = None


class Resources(_Kube, kw_only=True, frozen=True):
    requests: Amounts = None
    limits: Amounts = None
    claims: list[ContainerClaim] | None = None


class ContainerPort(_Kube, kw_only=True, frozen=True):
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class Container(_Kube, kw_only=True, frozen=True):
    name: str = ""
    ports: list[ContainerPort] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None


class SchedulingGate(_Kube, kw_only=True, frozen=True):
    name: str = ""


class PodClaim(_Kube, kw_only=True, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatus(_Kube, kw_only=True, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(_Kube, kw_only=True, frozen=True):
    node_name: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")  # read only of pods that wait for a node
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: Amounts = None
    resources: Resources | None = None
    resource_claims: list[PodClaim] | None = None


class StateReason(_Kube, kw_only=True, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(_Kube, kw_only=True, frozen=True):
    waiting: StateReason | None = None
    running: dict[str, Any] | None = None
    terminated: StateReason | None = None


class ContainerStatus(_Kube, kw_only=True, frozen=True):
    name: str = ""
    ready: bool = False
    state: ContainerState | None = None
    resources: Resources | None = None
    allocated_resources: Amounts = None


class PodStatus(_Kube, kw_only=True, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    qos_class: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaimStatus] | None = None


class Pod(Object, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Pool(_Kube, kw_only=True, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SelectorRequirement(_Kube, kw_only=True, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(_Kube, kw_only=True, frozen=True):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(_Kube, kw_only=True, frozen=True):
    node_selector_terms: list[NodeTerm] | None = None


class CounterSet(_Kube, kw_only=True, frozen=True):
    name: str = ""
    counters: dict[str, Any] | None = None


class CounterUse(_Kube, kw_only=True, frozen=True):
    counter_set: str = ""
    counters: dict[str, Any] | None = None


class DeviceBody(_Kube, kw_only=True, frozen=True):
    attributes: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None
    taints: list[dict[str, Any]] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    consumes_counters: list[CounterUse] | None = None
    allow_multiple_allocations: bool | None = None
    binding_conditions: list[str] | None = None


class Device(DeviceBody, kw_only=True, frozen=True):
    """In v1beta1 all but the name is in `basic`."""

    name: str = ""
    basic: DeviceBody | None = None

    @property
    def body(self) -> DeviceBody:
        return self if self.basic is None else self.basic


class SliceSpec(_Kube, kw_only=True, frozen=True):
    driver: str = ""
    pool: Pool = Pool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[Device] | None = None
    shared_counters: list[CounterSet] | None = None


class Slice(Object, kw_only=True):
    """`resource.k8s.io` ResourceSlice, v1 or v1beta1."""

    spec: SliceSpec = SliceSpec()


class CelSelector(_Kube, kw_only=True, frozen=True):
    expression: str = ""


class DeviceSelector(_Kube, kw_only=True, frozen=True):
    cel: CelSelector | None = None


class DeviceClassSpec(_Kube, kw_only=True, frozen=True):
    selectors: list[DeviceSelector] | None = None
    config: list[Any] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Object, kw_only=True):
    """`resource.k8s.io` DeviceClass."""

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(_Kube, kw_only=True, frozen=True):
    """What is not given is not asked for."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(_Kube, kw_only=True, frozen=True):
    device_selector: DeviceTaintSelector | None = None
    taint: dict[str, Any] | None = None


class DeviceTaintRule(Object, kw_only=True):
    """`resource.k8s.io` DeviceTaintRule."""

    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


class AllocatedDevice(_Kube, kw_only=True, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    request: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int | float] | None = None


class AllocatedDevices(_Kube, kw_only=True, frozen=True):
    results: list[AllocatedDevice] | None = None


class Allocation(_Kube, kw_only=True, frozen=True):
    devices: AllocatedDevices | None = None


class ClaimConsumer(_Kube, kw_only=True, frozen=True):
    resource: str = ""
    uid: str = ""


class DeviceClaimStatus(_Kube, kw_only=True, frozen=True):
    allocation: Allocation | None = None
    reserved_for: list[ClaimConsumer] | None = None


class DeviceClaim(Object, kw_only=True):
    """`resource.k8s.io` ResourceClaim, v1 or v1beta1."""

    status: DeviceClaimStatus | None = None

    @property
    def results(self) -> list[AllocatedDevice]:
        allocation = self.status.allocation if self.status is not None else None
        return (allocation.devices.results or []) if allocation is not None and allocation.devices is not None else []

    @property
    def pod(self) -> str:
        """Returns the uid of the pod that has the devices; "" if none has them, and if several pods have them together."""
        consumers = (self.status.reserved_for or []) if self.status is not None else []
        return consumers[0].uid if len(consumers) == 1 and consumers[0].resource == "pods" else ""


class ManagedFields(_Kube, kw_only=True, frozen=True):
    time: str = ""


class TopologyMetadata(ObjectMetadata, kw_only=True):
    managed_fields: list[ManagedFields] | None = None


class TopologyResource(_Kube, kw_only=True, frozen=True):
    name: str = ""
    capacity: str | int | float | None = None
    allocatable: str | int | float | None = None
    available: str | int | float | None = None


class TopologyCost(_Kube, kw_only=True, frozen=True):
    name: str = ""
    value: int | float = -1


class TopologyZone(_Kube, kw_only=True, frozen=True):
    name: str = ""
    type: str = ""
    parent: str = ""
    resources: list[TopologyResource] | None = None
    costs: list[TopologyCost] | None = None


class TopologyAttribute(_Kube, kw_only=True, frozen=True):
    name: str = ""
    value: str = ""


class Topology(msgspec.Struct, kw_only=True, rename="camel"):
    """`topology.node.k8s.io` NodeResourceTopology, named like its node."""

    metadata: TopologyMetadata
    zones: list[TopologyZone] | None = None
    attributes: list[TopologyAttribute] | None = None
    topology_policies: list[str] | None = None


node = msgspec.json.Decoder(Node).decode
pod = msgspec.json.Decoder(Pod).decode
slice_ = msgspec.json.Decoder(Slice).decode
device_claim = msgspec.json.Decoder(DeviceClaim).decode
device_class = msgspec.json.Decoder(DeviceClass).decode
device_taint_rule = msgspec.json.Decoder(DeviceTaintRule).decode
_topology = msgspec.json.Decoder(Topology).decode
_object = msgspec.json.Decoder(Object).decode


def topology(data: bytes | msgspec.Raw) -> Topology:
    """Decodes a topology. Of one that is not as its definition says, nothing but the name is used: others must be read."""
    try:
        return _topology(data)
    except msgspec.ValidationError:
        return Topology(metadata=TopologyMetadata(name=_object(data).metadata.name))
