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
    """Gives out one resource: without limit, or the devices of `zones`, amounts by zone and name. `behave` by method: late, junk,
    dies, or empty."""

    def __init__(self, resource: str = "example.com/tokens", **behave: str) -> None:
        self.resource, self.behave = resource, behave
        self.allocated: dict[str, dict[str, float]] = {}
        self.zones: dict[int, dict[str, float]] = {}
        self.chosen: dict[tuple[str, str], int] = {}
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
            if how == "empty" or self.zones:
                entry.value.SetInParent()
            asked = wire.ResourceRequest.FromString(request).resource_requests.get(self.resource, 0.0)
            for zone in self.zones:
                if self._left(zone) >= asked:
                    entry.value.hints.add(nodes=[zone], preferred=True)
            return wire.ResourceHintsResponse(resource_hints=[entry])
        if name == "Allocate":
            message = wire.ResourceRequest.FromString(request)
            amount = message.resource_requests.get(self.resource, 0.0)
            self.allocated.setdefault(message.pod_uid, {})[message.container_name] = amount
            if self.zones:
                own = [zone for zone in self.zones if zone in message.hint.nodes or not message.hint.nodes]
                self.chosen[message.pod_uid, message.container_name] = next(z for z in own if self._left(z) >= 0)
            answer = wire.ResourceAllocationResponse()
            answer.allocation_result.resource_allocation[self.resource].CopyFrom(self._info(amount))
            return answer
        if name == "RemovePod":
            uid = wire.RemovePodRequest.FromString(request).pod_uid
            self.allocated.pop(uid, None)
            self.chosen = {key: zone for key, zone in self.chosen.items() if key[0] != uid}
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
            for zone, devices in self.zones.items():
                for device, amount in devices.items():
                    shown.topology_aware_allocatable_quantity_list.add(
                        resource_value=amount, node=zone, name=device, type="vf", annotations={"speed": "25Gbps"}
                    )
            if self.zones:
                total = sum(amount for devices in self.zones.values() for amount in devices.values())
                shown.aggregated_allocatable_quantity = shown.aggregated_capacity_quantity = total
            return found
        if name == "GetTopologyAwareResources" and self.zones:
            of = wire.GetTopologyAwareResourcesRequest.FromString(request)
            told = wire.GetTopologyAwareResourcesResponse(pod_uid=of.pod_uid)
            chosen = self.chosen.get((of.pod_uid, of.container_name))
            if chosen is not None:
                held = told.container_topology_aware_resources.allocated_resources[self.resource]
                held.topology_aware_quantity_list.add(
                    resource_value=self.allocated[of.pod_uid][of.container_name],
                    node=chosen,
                    name=next(iter(self.zones[chosen])),
                )
            return told
        return wire.Empty()

    def _left(self, zone: int) -> float:
        taken = sum(self.allocated[uid][container] for (uid, container), z in self.chosen.items() if z == zone)
        return sum(self.zones[zone].values()) - taken

    def _info(self, amount: float) -> wire.ResourceAllocationInfo:
        info = wire.ResourceAllocationInfo()
        info.CopyFrom(self.info)
        info.allocated_quantity = amount
        return info
