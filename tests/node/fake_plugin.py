"""A resource plugin that misbehaves as it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import grpc
import grpc.aio

from moorage.node import grpc_unix
from moorage.node.api import pluginregistration_pb2 as registration
from moorage.node.api import resourceplugin_pb2 as wire


class FakePlugin:
    """Gives out one resource without limit. `behave` by method: late, junk, dies, or empty."""

    def __init__(self, resource: str = "example.com/tokens", **behave: str) -> None:
        self.resource, self.behave = resource, behave
        self.allocated: dict[str, dict[str, float]] = {}
        self.info = wire.ResourceAllocationInfo(is_scalar_resource=True, is_node_resource=True)
        self.registered: list[bool] = []
        self.options = wire.ResourcePluginOptions(with_topology_alignment=True, need_reconcile=True)
        self.version = "v1alpha1"
        self.calls: list[str] = []
        self._server: grpc.aio.Server | None = None
        self.running.append(self)

    #: All that were made, for the fixture that stops them.
    running: ClassVar[list[FakePlugin]] = []

    async def start(self, path: Path) -> None:
        plugin = {
            name: grpc.unary_unary_rpc_method_handler(self._method(name))
            for name in (
                *("GetTopologyHints", "Allocate", "RemovePod", "GetResourcesAllocation", "GetResourcePluginOptions"),
                *("GetTopologyAwareResources", "GetTopologyAwareAllocatableResources", "PreStartContainer"),
            )
        }
        own = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(self._get_info),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(self._notify),
        }
        self._server = await grpc_unix.serve(
            path,
            [
                grpc_unix.unary_methods("resourceplugin.v1alpha1.ResourcePlugin", plugin),
                grpc_unix.unary_methods("pluginregistration.Registration", own),
            ],
        )

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _get_info(self, _request: bytes, _context: Any) -> bytes:
        info = registration.PluginInfo(type="ResourcePlugin", name=self.resource, supported_versions=[self.version])
        return info.SerializeToString()

    async def _notify(self, request: bytes, _context: Any) -> bytes:
        self.registered.append(registration.RegistrationStatus.FromString(request).plugin_registered)
        return b""

    def _method(self, name: str) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            self.calls.append(name)
            how = self.behave.get(name, "")
            if how == "late":
                await asyncio.sleep(60)
            if how == "junk":
                return b"\xff\xff\xff junk"
            if how == "dies":
                asyncio.ensure_future(self.stop())  # noqa: RUF006 - it ends itself
                await asyncio.sleep(5)
            if how == "fails":
                await context.abort(grpc.StatusCode.INTERNAL, "the plugin does not feel like it")
            return self._answer(name, request, how).SerializeToString()  # type: ignore[no-any-return]

        return handle

    def _answer(self, name: str, request: bytes, how: str) -> Any:
        if name == "GetTopologyHints":
            entry = wire.HintsEntry(key=self.resource)
            if how == "empty":
                entry.value.SetInParent()
            return wire.ResourceHintsResponse(resource_hints=[entry])
        if name == "Allocate":
            message = wire.ResourceRequest.FromString(request)
            amount = message.resource_requests.get(self.resource, 0.0)
            self.allocated.setdefault(message.pod_uid, {})[message.container_name] = amount
            answer = wire.ResourceAllocationResponse()
            answer.allocation_result.resource_allocation[self.resource].CopyFrom(self._info(amount))
            return answer
        if name == "RemovePod":
            self.allocated.pop(wire.RemovePodRequest.FromString(request).pod_uid, None)
        if name == "GetResourcesAllocation":
            every = wire.GetResourcesAllocationResponse()
            for uid, containers in self.allocated.items():
                for container, amount in containers.items():
                    given = every.pod_resources[uid].container_resources[container]
                    given.resource_allocation[self.resource].CopyFrom(self._info(amount))
            return every
        if name == "GetResourcePluginOptions":
            return self.options
        if name == "GetTopologyAwareAllocatableResources":
            found = wire.GetTopologyAwareAllocatableResourcesResponse()
            shown = found.allocatable_resources[self.resource]
            shown.aggregated_allocatable_quantity = shown.aggregated_capacity_quantity = 8
            shown.is_node_resource = shown.is_scalar_resource = True
            return found
        return wire.Empty()

    def _info(self, amount: float) -> wire.ResourceAllocationInfo:
        info = wire.ResourceAllocationInfo()
        info.CopyFrom(self.info)
        info.allocated_quantity = amount
        return info
