"""The fields of nodes, pods and topologies that reports are made of. All others are skipped while decoding."""

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

    @property
    def made_claims(self) -> dict[str, str]:
        """Returns the ResourceClaims that were made for the pod, by the names of its entries; "" where it needs none."""
        return {s.name: s.resource_claim_name or "" for s in self.status.resource_claim_statuses or ()}


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
_topology = msgspec.json.Decoder(Topology).decode
_object = msgspec.json.Decoder(Object).decode


def topology(data: bytes | msgspec.Raw) -> Topology:
    """Decodes a topology. Of one that is not as its definition says, nothing but the name is used: others must be read."""
    try:
        return _topology(data)
    except msgspec.ValidationError:
        return Topology(metadata=TopologyMetadata(name=_object(data).metadata.name))
