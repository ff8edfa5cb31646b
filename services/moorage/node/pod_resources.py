"""Serves the pod resources interface of kubelets: what each container has, where, and what there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from moorage.qos.admission import PodRecord
from moorage.qos.cpusets import parse_cpuset
from moorage.qos.machine import Machine
from moorage.qos.messages import AllocatableResource, TopologyAwareQuantity, TopologyAwareResource, nodes_of

from . import grpc_unix
from .api import podresources_pb2 as wire
from .plugin_endpoint import PluginFailed
from .plugin_registry import PluginRegistry

SERVICE = "v1.PodResourcesLister"


class PodResources:
    """`records` are those of pods that have not ended; `reserved` are CPUs that no pod gets."""

    def __init__(
        self,
        records: Callable[[], Mapping[str, PodRecord]],
        registry: PluginRegistry,
        machine: Machine,
        reserved: Callable[[], int],
    ) -> None:
        self._records, self._registry, self._machine, self._reserved = records, registry, machine, reserved
        self._server: grpc.aio.Server | None = None

    async def start(self, path: Path) -> None:
        methods = {"List": self._list, "GetAllocatableResources": self._allocatable, "Get": self._get}
        handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
        self._server = await grpc_unix.serve(path, [grpc_unix.unary_methods(SERVICE, handlers)])

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.2)

    async def _list(self, _request: bytes, _context: Any) -> bytes:
        pods = await asyncio.gather(*map(self._pod, list(self._records().values())))
        return wire.ListPodResourcesResponse(pod_resources=pods).SerializeToString()

    async def _get(self, request: bytes, context: Any) -> bytes:
        try:
            message = wire.GetPodResourcesRequest.FromString(request)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        for record in self._records().values():
            if (record.pod.namespace, record.pod.name) == (message.pod_namespace, message.pod_name):
                return wire.GetPodResourcesResponse(pod_resources=await self._pod(record)).SerializeToString()
        name = f"{message.pod_namespace}/{message.pod_name}"
        await context.abort(grpc.StatusCode.NOT_FOUND, f"no pod {name} is admitted on this node")
        raise AssertionError("abort raises")

    async def _pod(self, record: PodRecord) -> wire.PodResources:
        pod = record.pod
        message = wire.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            pod_role=pod.role,
            pod_type=pod.type,
            labels=pod.labels,
            annotations=pod.annotations,
        )
        for name in record.containers:
            message.containers.append(await self._container(record, name))
        return message

    async def _container(self, record: PodRecord, name: str) -> wire.ContainerResources:
        message = wire.ContainerResources(name=name)
        given = record.containers[name]
        cpu, memory = given.get("cpu"), given.get("memory")
        if cpu is not None and cpu.topology_assignments:
            message.cpu_ids.extend(nodes_of(parse_cpuset(cpu.allocation_result)))
        if memory is not None:
            for node, size in memory.topology_assignments.items():
                block = message.memory.add(memory_type="memory", size=size)
                block.topology.nodes.add(ID=node)
        for resource, found in (await self._ask(record.pod.uid, name, given)).items():
            message.resources.append(_resource(resource, found))
        return message

    async def _ask(self, uid: str, container: str, given: Mapping[str, Any]) -> Mapping[str, TopologyAwareResource]:
        """Asks all plugins that gave the container something. One that fails is left out."""
        merged: dict[str, TopologyAwareResource] = {}
        endpoints = [endpoint for name in given if (endpoint := self._registry.get(name)) is not None]
        answers = await asyncio.gather(
            *(e.topology_aware_resources(uid, container) for e in endpoints), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, PluginFailed):
                continue
            if isinstance(answer, BaseException):
                raise answer
            merged |= answer
        return merged

    async def _allocatable(self, _request: bytes, _context: Any) -> bytes:
        message = wire.AllocatableResourcesResponse()
        message.cpu_ids.extend(nodes_of(self._machine.cpus.all & ~self._reserved()))
        for node in self._machine.memory:
            for kind, size in node.total.items():
                block = message.memory.add(memory_type=kind, size=size)
                block.topology.nodes.add(ID=node.id)
        for resource, found in (await allocatable(self._registry)).items():
            message.resources.append(_allocatable(resource, found))
        return message.SerializeToString()


async def allocatable(registry: PluginRegistry) -> dict[str, AllocatableResource]:
    """Returns what all plugins have to give. One that fails is left out."""
    merged: dict[str, AllocatableResource] = {}
    for answer in await asyncio.gather(*(e.allocatable() for e in registry.endpoints()), return_exceptions=True):
        if isinstance(answer, PluginFailed):
            continue
        if isinstance(answer, BaseException):
            raise answer
        merged |= answer
    return merged


def _quantity(quantity: TopologyAwareQuantity) -> wire.TopologyAwareQuantity:
    return wire.TopologyAwareQuantity(
        resource_value=quantity.resource_value,
        node=quantity.node,
        name=quantity.name,
        type=quantity.type,
        topology_level=quantity.topology_level,
        annotations=quantity.annotations,
    )


def _resource(name: str, resource: TopologyAwareResource) -> wire.TopologyAwareResource:
    return wire.TopologyAwareResource(
        resource_name=name,
        is_node_resource=resource.is_node_resource,
        is_scalar_resource=resource.is_scalar_resource,
        aggregated_quantity=resource.aggregated_quantity,
        original_aggregated_quantity=resource.original_aggregated_quantity,
        topology_aware_quantity_list=map(_quantity, resource.quantities),
        original_topology_aware_quantity_list=map(_quantity, resource.original_quantities),
    )


def _allocatable(name: str, resource: AllocatableResource) -> wire.AllocatableTopologyAwareResource:
    return wire.AllocatableTopologyAwareResource(
        resource_name=name,
        is_node_resource=resource.is_node_resource,
        is_scalar_resource=resource.is_scalar_resource,
        aggregated_allocatable_quantity=resource.aggregated_allocatable,
        topology_aware_allocatable_quantity_list=map(_quantity, resource.allocatable),
        aggregated_capacity_quantity=resource.aggregated_capacity,
        topology_aware_capacity_quantity_list=map(_quantity, resource.capacity),
    )
