"""Serves a built-in plugin over its own socket, as any other plugin is served. As a process of its own, its state is on disk before
it answers; in the agent, the agent's checkpoint is, and what the plugin's own file lacks is taken from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec
import structlog

from moorage.qos.builtin import BuiltInPlugin
from moorage.qos.cpu_plugin import CpuPlugin
from moorage.qos.cpusets import parse_cpuset
from moorage.qos.messages import AllocationRefused, ResourceRequest

from . import grpc_unix
from . import plugin_messages as messages
from .api import pluginregistration_pb2 as registration
from .api import resourceplugin_pb2 as wire
from .plugin_endpoint import BUILT_IN_SERVICE, REFUSAL
from .state_file import StateFile

log = structlog.get_logger("node")

TYPE, VERSION = "ResourcePlugin", "v1alpha1"


class _Call(NamedTuple):
    """A call about one resource: its messages, how the request is read, and which of its fields the answer repeats."""

    request: type[Any]
    answer: type[Any]
    read: Callable[[Any], ResourceRequest]
    echoed: tuple[str, ...]

    def respond(self, message: Any, **result: Any) -> bytes:
        repeated = {name: getattr(message, name) for name in self.echoed}
        answer: bytes = self.answer(**repeated, **result).SerializeToString()
        return answer


_OF_POD = ("pod_uid", "pod_namespace", "pod_name", "pod_role", "pod_type", "resource_name")
_OF_CONTAINER = (*_OF_POD, "container_name", "container_type", "container_index")
_HINTS = _Call(wire.ResourceRequest, wire.ResourceHintsResponse, messages.read_container_request, _OF_CONTAINER)
_POD_HINTS = _Call(wire.PodResourceRequest, wire.PodResourceHintsResponse, messages.read_pod_request, _OF_POD)
_ALLOCATE = _HINTS._replace(answer=wire.ResourceAllocationResponse)
_ALLOCATE_POD = _POD_HINTS._replace(answer=wire.PodResourceAllocationResponse)


class PluginServer:
    """One built-in plugin with its socket and its state file. `delay`: seconds after which changes are written at the latest, where
    somebody else has written them before they count; 0: before the answer."""

    def __init__(self, plugin: BuiltInPlugin, state: StateFile, delay: float = 0.0) -> None:
        self.plugin, self._state, self._delay = plugin, state, delay
        self._due: asyncio.TimerHandle | None = None
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
        handlers = [self._registration(), self._resource_plugin(), self._built_in()]
        self._server = await grpc_unix.serve(path, handlers)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.5)
        if self._due is not None:
            self._save_later()

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
                "GetTopologyHints": _answer(partial(self._hints, _HINTS)),
                "GetPodTopologyHints": _answer(partial(self._hints, _POD_HINTS)),
                "Allocate": _answer(partial(self._allocate, _ALLOCATE)),
                "AllocateForPod": _answer(partial(self._allocate, _ALLOCATE_POD)),
                "RemovePod": _answer(self._remove_pod),
                "GetResourcesAllocation": _answer(self._resources_allocation),
                "GetTopologyAwareResources": _answer(self._topology_aware_resources),
                "GetTopologyAwareAllocatableResources": _answer(self._allocatable),
                "GetResourcePluginOptions": _answer(self._options),
                "PreStartContainer": _answer(lambda _: b""),
            },
        )

    def _built_in(self) -> grpc.GenericRpcHandler:
        methods = {"State": _answer(lambda _: self.plugin.encode())}
        if isinstance(self.plugin, CpuPlugin):
            methods["SetPools"] = _answer(partial(self._set_pools, self.plugin))
        return _handler(BUILT_IN_SERVICE, methods)

    def _set_pools(self, plugin: CpuPlugin, data: bytes) -> bytes:
        wanted = msgspec.json.decode(data, type=dict[str, str])
        before = {name: pool.cpus for name, pool in plugin.whole_pools().items()}
        plugin.set_pools({name: parse_cpuset(cpus) for name, cpus in wanted.items()})
        try:
            self._changed()
        except OSError:
            plugin.set_pools(before)
            raise
        return b""

    def _hints(self, call: _Call, data: bytes) -> bytes:
        message = call.request.FromString(data)
        hints = messages.hints_entries(self.plugin.topology_hints(call.read(message)))
        return call.respond(message, resource_hints=hints)

    def _allocate(self, call: _Call, data: bytes) -> bytes:
        message = call.request.FromString(data)
        given = self.plugin.allocate(call.read(message))
        self._changed()
        return call.respond(message, allocation_result=messages.allocation_message(given))

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
        if not self._delay:
            self.save()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(self._delay, self._save_later)

    def _save_later(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        try:
            self.save()
        except OSError as error:
            log.error("the state of a plugin cannot be written", plugin=self.plugin.name, error=str(error))


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
