"""Serves a built-in plugin over its own socket, as any other plugin is served. Its state is on disk before it answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from moorage.qos.messages import AllocationRefused, ResourcePlugin

from . import grpc_unix
from . import plugin_messages as messages
from .api import pluginregistration_pb2 as registration
from .api import resourceplugin_pb2 as wire
from .plugin_endpoint import REFUSAL
from .state_file import StateFile

TYPE, VERSION = "ResourcePlugin", "v1alpha1"


class PluginServer:
    """One built-in plugin with its socket and its state file."""

    def __init__(self, plugin: ResourcePlugin, state: StateFile, on_change: Callable[[], None] = lambda: None) -> None:
        self.plugin, self._state, self._on_change = plugin, state, on_change
        self._server: grpc.aio.Server | None = None
        self._written = b""
        self.rejected = ""  # why the agent did not register it

    def load(self) -> str:
        """Takes over the state file. Returns why it could not, with the file set aside; "" if it did or there is none."""
        content = self._state.read()
        if content is None:
            return ""
        try:
            self.plugin.restore(content)
        except ValueError as error:
            return self._state.set_aside(str(error))
        self._written = content
        return ""

    def save(self) -> None:
        """Writes the state if it has changed. Raises OSError if it cannot."""
        content = self.plugin.encode()
        if content != self._written:
            # Not synced: after a loss of power no container is left, and the checkpoint restores what a crash may lose.
            self._state.write(content, sync=False)
            self._written = content

    async def start(self, path: Path) -> None:
        self._server = await grpc_unix.serve(path, [self._registration(), self._resource_plugin()])

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.5)

    def _registration(self) -> grpc.GenericRpcHandler:
        async def info(_request: bytes, _context: Any) -> bytes:
            found = registration.PluginInfo(type=TYPE, name=self.plugin.name, supported_versions=[VERSION])
            return found.SerializeToString()

        async def notify(request: bytes, _context: Any) -> bytes:
            status = registration.RegistrationStatus.FromString(request)
            self.rejected = "" if status.plugin_registered else status.error
            return b""

        return _handler("pluginregistration.Registration", {"GetInfo": info, "NotifyRegistrationStatus": notify})

    def _resource_plugin(self) -> grpc.GenericRpcHandler:
        return _handler(
            "resourceplugin.v1alpha1.ResourcePlugin",
            {
                "GetTopologyHints": _answer(self._hints),
                "GetPodTopologyHints": _answer(self._pod_hints),
                "Allocate": _answer(self._allocate),
                "AllocateForPod": _answer(self._allocate_pod),
                "RemovePod": _answer(self._remove_pod),
                "GetResourcesAllocation": _answer(self._resources_allocation),
                "GetTopologyAwareResources": _answer(self._topology_aware_resources),
                "GetTopologyAwareAllocatableResources": _answer(self._allocatable),
                "GetResourcePluginOptions": _answer(self._options),
                "PreStartContainer": _answer(lambda _: b""),
            },
        )

    def _hints(self, request: bytes) -> bytes:
        message = wire.ResourceRequest.FromString(request)
        hints = self.plugin.topology_hints(messages.read_container_request(message))
        answer = wire.ResourceHintsResponse(
            pod_uid=message.pod_uid,
            pod_namespace=message.pod_namespace,
            pod_name=message.pod_name,
            container_name=message.container_name,
            container_type=message.container_type,
            container_index=message.container_index,
            pod_role=message.pod_role,
            pod_type=message.pod_type,
            resource_name=message.resource_name,
            resource_hints=messages.hints_entries(hints),
        )
        return answer.SerializeToString()

    def _pod_hints(self, request: bytes) -> bytes:
        message = wire.PodResourceRequest.FromString(request)
        hints = self.plugin.topology_hints(messages.read_pod_request(message))
        answer = wire.PodResourceHintsResponse(
            pod_uid=message.pod_uid,
            pod_namespace=message.pod_namespace,
            pod_name=message.pod_name,
            pod_role=message.pod_role,
            pod_type=message.pod_type,
            resource_name=message.resource_name,
            resource_hints=messages.hints_entries(hints),
        )
        return answer.SerializeToString()

    def _allocate(self, request: bytes) -> bytes:
        message = wire.ResourceRequest.FromString(request)
        given = self.plugin.allocate(messages.read_container_request(message))
        self._changed()
        answer = wire.ResourceAllocationResponse(
            pod_uid=message.pod_uid,
            pod_namespace=message.pod_namespace,
            pod_name=message.pod_name,
            container_name=message.container_name,
            container_type=message.container_type,
            container_index=message.container_index,
            pod_role=message.pod_role,
            pod_type=message.pod_type,
            resource_name=message.resource_name,
            allocation_result=messages.allocation_message(given),
        )
        return answer.SerializeToString()

    def _allocate_pod(self, request: bytes) -> bytes:
        message = wire.PodResourceRequest.FromString(request)
        given = self.plugin.allocate(messages.read_pod_request(message))
        self._changed()
        answer = wire.PodResourceAllocationResponse(
            pod_uid=message.pod_uid,
            pod_namespace=message.pod_namespace,
            pod_name=message.pod_name,
            pod_role=message.pod_role,
            pod_type=message.pod_type,
            resource_name=message.resource_name,
            allocation_result=messages.allocation_message(given),
        )
        return answer.SerializeToString()

    def _remove_pod(self, request: bytes) -> bytes:
        self.plugin.remove_pod(wire.RemovePodRequest.FromString(request).pod_uid)
        self._changed()
        return b""

    def _resources_allocation(self, _request: bytes) -> bytes:
        return messages.allocations_message(self.plugin.resources_allocation()).SerializeToString()

    def _topology_aware_resources(self, request: bytes) -> bytes:
        message = wire.GetTopologyAwareResourcesRequest.FromString(request)
        answer = wire.GetTopologyAwareResourcesResponse(pod_uid=message.pod_uid)
        container = answer.container_topology_aware_resources
        container.container_name = message.container_name
        found = self.plugin.topology_aware_resources(message.pod_uid, message.container_name)
        for name, resource in found.items():
            container.allocated_resources[name].CopyFrom(messages.resource_message(resource))
        return answer.SerializeToString()

    def _allocatable(self, _request: bytes) -> bytes:
        answer = wire.GetTopologyAwareAllocatableResourcesResponse()
        for name, resource in self.plugin.allocatable().items():
            answer.allocatable_resources[name].CopyFrom(messages.allocatable_message(resource))
        return answer.SerializeToString()

    def _options(self, _request: bytes) -> bytes:
        return messages.options_message(self.plugin.options).SerializeToString()

    def _changed(self) -> None:
        self.save()
        self._on_change()


def _answer(method: Callable[[bytes], bytes]) -> Callable[[bytes, Any], Any]:
    async def handle(request: bytes, context: Any) -> bytes:
        try:
            return method(request)
        except AllocationRefused as refused:
            detail = ((REFUSAL, msgspec.json.encode(refused.refusal)),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused), detail)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:1024])
        except OSError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"cannot write the plugin's state: {error}")
        raise AssertionError("abort raises")

    return handle


def _handler(service: str, methods: dict[str, Callable[[bytes, Any], Any]]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        service, {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    )
