"""Translates what plugins say on the wire (`resourceplugin.v1alpha1`) into the types that the agent decides with, and back.
What makes no sense raises ValueError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from moorage.qos.messages import (
    AllocatableResource,
    ContainerType,
    HintsAnswer,
    PluginOptions,
    PodAllocations,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceRequest,
    TopologyAwareQuantity,
    TopologyAwareResource,
    TopologyHint,
    from_hint,
    is_oci_property,
    to_hint,
)
from moorage.qos.topology_hints import Hint, Hints

from .api import resourceplugin_pb2 as wire

#: The most zones of a node, hints of a resource, and resources of an answer.
MAX_ZONES, MAX_HINTS, MAX_RESOURCES = 1024, 1 << 16, 1024


def options_message(options: PluginOptions) -> wire.ResourcePluginOptions:
    return wire.ResourcePluginOptions(
        pre_start_required=options.pre_start_required,
        with_topology_alignment=options.with_topology_alignment,
        need_reconcile=options.need_reconcile,
    )


def read_options(message: wire.ResourcePluginOptions) -> PluginOptions:
    return PluginOptions(
        pre_start_required=message.pre_start_required,
        with_topology_alignment=message.with_topology_alignment,
        need_reconcile=message.need_reconcile,
    )


def container_request(request: ResourceRequest) -> wire.ResourceRequest:
    return wire.ResourceRequest(
        pod_uid=request.pod_uid,
        pod_namespace=request.namespace,
        pod_name=request.pod_name,
        container_name=request.container,
        container_type=wire.ContainerType.Name(request.container_type),
        container_index=request.container_index,
        pod_role=request.role,
        pod_type=request.type,
        resource_name=request.resource,
        hint=_hint_message(request.hint),
        resource_requests=request.requests,
        resource_limits=request.limits,
        labels=request.labels,
        annotations=request.annotations,
        native_qos_class=request.qos_class,
    )


def pod_request(request: ResourceRequest) -> wire.PodResourceRequest:
    return wire.PodResourceRequest(
        pod_uid=request.pod_uid,
        pod_namespace=request.namespace,
        pod_name=request.pod_name,
        pod_role=request.role,
        pod_type=request.type,
        resource_name=request.resource,
        hint=_hint_message(request.hint),
        resource_requests=request.requests,
        labels=request.labels,
        annotations=request.annotations,
        native_qos_class=request.qos_class,
    )


def _hint_message(hint: Hint | None) -> wire.TopologyHint | None:
    if hint is None:
        return None
    found = from_hint(hint)
    return wire.TopologyHint(nodes=found.nodes, preferred=found.preferred)


def read_container_request(message: wire.ResourceRequest) -> ResourceRequest:
    return ResourceRequest(
        pod_uid=message.pod_uid,
        resource=message.resource_name,
        namespace=message.pod_namespace,
        pod_name=message.pod_name,
        container=message.container_name,
        container_type=ContainerType(message.container_type),
        container_index=message.container_index,
        role=message.pod_role,
        type=message.pod_type,
        hint=_read_hint(message.hint) if message.HasField("hint") else None,
        requests=_read_amounts(message.resource_requests),
        limits=_read_amounts(message.resource_limits),
        labels=dict(message.labels),
        annotations=dict(message.annotations),
        qos_class=message.native_qos_class,
    )


def read_pod_request(message: wire.PodResourceRequest) -> ResourceRequest:
    return ResourceRequest(
        pod_uid=message.pod_uid,
        resource=message.resource_name,
        namespace=message.pod_namespace,
        pod_name=message.pod_name,
        role=message.pod_role,
        type=message.pod_type,
        hint=_read_hint(message.hint) if message.HasField("hint") else None,
        requests=_read_amounts(message.resource_requests),
        labels=dict(message.labels),
        annotations=dict(message.annotations),
        qos_class=message.native_qos_class,
    )


def _read_hint(message: wire.TopologyHint) -> Hint:
    return to_hint(_stored_hint(message))


def _stored_hint(message: wire.TopologyHint) -> TopologyHint:
    if any(node >= MAX_ZONES for node in message.nodes):
        raise ValueError(f"a hint names NUMA node {max(message.nodes)}; the highest possible is {MAX_ZONES - 1}")
    return TopologyHint(nodes=tuple(sorted(set(message.nodes))), preferred=message.preferred)


def _read_amounts(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: _read_amount(name, amount) for name, amount in amounts.items()}


def _read_amount(name: str, amount: float) -> float:
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(f"the amount of {name} is {amount}")
    return amount


def hints_entries(answer: HintsAnswer) -> list[wire.HintsEntry]:
    """Returns the hints as entries of a map. A resource without preference gets no entry: a plugin in Go reads an entry without
    value as one with an empty list."""
    found = []
    for resource, hints in answer.items():
        if hints is None:
            continue
        entry = wire.HintsEntry(key=resource)
        entry.value.SetInParent()
        for hint in map(from_hint, hints):
            entry.value.hints.add(nodes=hint.nodes, preferred=hint.preferred)
        found.append(entry)
    return found


def read_hints(entries: Iterable[wire.HintsEntry]) -> dict[str, Hints]:
    found: dict[str, Hints] = {}
    for entry in entries:
        if len(found) >= MAX_RESOURCES or len(entry.value.hints) > MAX_HINTS:
            raise ValueError(f"more than {MAX_RESOURCES} resources or {MAX_HINTS} hints")
        hints = [_read_hint(hint) for hint in entry.value.hints]
        found[entry.key] = hints if entry.HasField("value") else None
    return found


def allocation_message(allocation: ResourceAllocation) -> wire.ResourceAllocation:
    message = wire.ResourceAllocation()
    for resource, info in allocation.items():
        message.resource_allocation[resource].CopyFrom(_info_message(info))
    return message


def _info_message(info: ResourceAllocationInfo) -> wire.ResourceAllocationInfo:
    message = wire.ResourceAllocationInfo(
        oci_property_name=info.oci_property_name,
        is_node_resource=info.is_node_resource,
        is_scalar_resource=info.is_scalar_resource,
        allocated_quantity=info.allocated_quantity,
        allocation_result=info.allocation_result,
        envs=info.envs,
        annotations=info.annotations,
        topology_assignments=info.topology_assignments,
    )
    for hint in info.resource_hints:
        message.resource_hints.hints.add(nodes=hint.nodes, preferred=hint.preferred)
    return message


def read_allocation(message: wire.ResourceAllocation) -> ResourceAllocation:
    if len(message.resource_allocation) > MAX_RESOURCES:
        raise ValueError(f"more than {MAX_RESOURCES} resources")
    return {resource: _read_info(resource, info) for resource, info in message.resource_allocation.items()}


def _read_info(resource: str, message: wire.ResourceAllocationInfo) -> ResourceAllocationInfo:
    if not is_oci_property(message.oci_property_name):
        raise ValueError(f"{resource} names the property {message.oci_property_name!r}, which no container has")
    if "\0" in message.allocation_result or any("=" in name or not name for name in message.envs):
        raise ValueError(f"{resource} has a value that no container can be given")
    return ResourceAllocationInfo(
        oci_property_name=message.oci_property_name,
        is_node_resource=message.is_node_resource,
        is_scalar_resource=message.is_scalar_resource,
        allocated_quantity=_read_amount(resource, message.allocated_quantity),
        allocation_result=message.allocation_result,
        envs=dict(message.envs),
        annotations=dict(message.annotations),
        resource_hints=tuple(_stored_hint(hint) for hint in message.resource_hints.hints),
        topology_assignments=dict(message.topology_assignments),
    )


def allocations_message(allocations: PodAllocations) -> wire.GetResourcesAllocationResponse:
    message = wire.GetResourcesAllocationResponse()
    for uid, containers in allocations.items():
        pod = message.pod_resources[uid]
        for container, allocation in containers.items():
            pod.container_resources[container].CopyFrom(allocation_message(allocation))
    return message


def read_allocations(message: wire.GetResourcesAllocationResponse) -> PodAllocations:
    return {
        uid: {container: read_allocation(given) for container, given in pod.container_resources.items()}
        for uid, pod in message.pod_resources.items()
    }


def _quantity_message(quantity: TopologyAwareQuantity) -> wire.TopologyAwareQuantity:
    return wire.TopologyAwareQuantity(
        resource_value=quantity.resource_value,
        node=quantity.node,
        name=quantity.name,
        type=quantity.type,
        topology_level=wire.TopologyLevel.Name(quantity.topology_level),
        annotations=quantity.annotations,
    )


def _read_quantities(messages: Iterable[wire.TopologyAwareQuantity]) -> tuple[TopologyAwareQuantity, ...]:
    return tuple(
        TopologyAwareQuantity(
            resource_value=_read_amount(m.name, m.resource_value),
            node=m.node,
            name=m.name,
            type=m.type,
            topology_level=m.topology_level,
            annotations=dict(m.annotations),
        )
        for m in messages
    )


def resource_message(resource: TopologyAwareResource) -> wire.TopologyAwareResource:
    return wire.TopologyAwareResource(
        is_node_resource=resource.is_node_resource,
        is_scalar_resource=resource.is_scalar_resource,
        aggregated_quantity=resource.aggregated_quantity,
        original_aggregated_quantity=resource.original_aggregated_quantity,
        topology_aware_quantity_list=map(_quantity_message, resource.quantities),
        original_topology_aware_quantity_list=map(_quantity_message, resource.original_quantities),
    )


def read_resource(message: wire.TopologyAwareResource) -> TopologyAwareResource:
    return TopologyAwareResource(
        is_node_resource=message.is_node_resource,
        is_scalar_resource=message.is_scalar_resource,
        aggregated_quantity=message.aggregated_quantity,
        original_aggregated_quantity=message.original_aggregated_quantity,
        quantities=_read_quantities(message.topology_aware_quantity_list),
        original_quantities=_read_quantities(message.original_topology_aware_quantity_list),
    )


def allocatable_message(resource: AllocatableResource) -> wire.AllocatableTopologyAwareResource:
    return wire.AllocatableTopologyAwareResource(
        is_node_resource=resource.is_node_resource,
        is_scalar_resource=resource.is_scalar_resource,
        aggregated_allocatable_quantity=resource.aggregated_allocatable,
        topology_aware_allocatable_quantity_list=map(_quantity_message, resource.allocatable),
        aggregated_capacity_quantity=resource.aggregated_capacity,
        topology_aware_capacity_quantity_list=map(_quantity_message, resource.capacity),
    )


def read_allocatable(message: wire.AllocatableTopologyAwareResource) -> AllocatableResource:
    return AllocatableResource(
        is_node_resource=message.is_node_resource,
        is_scalar_resource=message.is_scalar_resource,
        aggregated_allocatable=_read_amount("allocatable", message.aggregated_allocatable_quantity),
        allocatable=_read_quantities(message.topology_aware_allocatable_quantity_list),
        aggregated_capacity=_read_amount("capacity", message.aggregated_capacity_quantity),
        capacity=_read_quantities(message.topology_aware_capacity_quantity_list),
    )
