"""Calls one plugin, each call with its deadline, and tells failures by what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError, Message

from moorage.qos.messages import (
    AllocatableResource,
    HintsAnswer,
    PluginOptions,
    PodAllocations,
    Refusal,
    ResourceAllocation,
    ResourceRequest,
    TopologyAwareResource,
)

from . import plugin_messages as messages
from .api import resourceplugin_pb2 as wire

#: The metadata of an error in which a built-in plugin tells why it refuses, in full.
REFUSAL = "moorage-refusal-bin"
DEADLINE, PRE_START_DEADLINE = 10.0, 30.0
SERVICE = "/resourceplugin.v1alpha1.ResourcePlugin/"
#: What built-in plugins serve besides: an agent that does not run them shows what they have, and moves their pools.
BUILT_IN_SERVICE = "moorage.node.v1.BuiltInPlugin"
T = TypeVar("T")
M = TypeVar("M", bound=Message)

#: Counts a call: resource, method, outcome.
CountCall = Callable[[str, str, str], None]
#: What becomes of a status, in the words of `moorage_node_plugin_calls_total`.
_OUTCOMES = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.UNAVAILABLE: "away",
    grpc.StatusCode.CANCELLED: "away",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "junk",
    grpc.StatusCode.INTERNAL: "junk",
}


class PluginFailed(Exception):
    """A call that gave no usable answer. `outcome`: late, away, junk, or refused with the plugin's own words."""

    def __init__(
        self, outcome: str, message: str, refusal: Refusal | None = None, *, unimplemented: bool = False
    ) -> None:
        super().__init__(message)
        self.outcome, self.refusal, self.unimplemented = outcome, refusal, unimplemented


class PluginEndpoint:
    """A plugin that is registered for one resource."""

    def __init__(
        self, resource: str, channel: grpc.aio.Channel, path: str, count: CountCall, options: PluginOptions
    ) -> None:
        self.resource, self.path, self.options = resource, path, options
        self._channel, self._count = channel, count
        self._calls: dict[str, Any] = {}
        self.last_failure = ""

    async def close(self) -> None:
        await self._channel.close()

    async def hints(self, request: ResourceRequest) -> HintsAnswer:
        if request.container:
            message = messages.container_request(request)
            return await self._ask(
                "GetTopologyHints", message, wire.ResourceHintsResponse, lambda a: messages.read_hints(a.resource_hints)
            )
        pod = messages.pod_request(request)
        return await self._ask(
            "GetPodTopologyHints", pod, wire.PodResourceHintsResponse, lambda a: messages.read_hints(a.resource_hints)
        )

    async def allocate(self, request: ResourceRequest) -> ResourceAllocation:
        if request.container:
            message = messages.container_request(request)
            return await self._ask(
                "Allocate",
                message,
                wire.ResourceAllocationResponse,
                lambda a: messages.read_allocation(a.allocation_result),
            )
        pod = messages.pod_request(request)
        return await self._ask(
            "AllocateForPod",
            pod,
            wire.PodResourceAllocationResponse,
            lambda a: messages.read_allocation(a.allocation_result),
        )

    async def remove_pod(self, uid: str) -> None:
        await self._ask("RemovePod", wire.RemovePodRequest(pod_uid=uid), wire.Empty, lambda _: None)

    async def resources_allocation(self) -> PodAllocations:
        return await self._ask(
            "GetResourcesAllocation", wire.Empty(), wire.GetResourcesAllocationResponse, messages.read_allocations
        )

    async def topology_aware_resources(self, uid: str, container: str) -> Mapping[str, TopologyAwareResource]:
        request = wire.GetTopologyAwareResourcesRequest(pod_uid=uid, container_name=container)
        return await self._ask(
            "GetTopologyAwareResources", request, wire.GetTopologyAwareResourcesResponse, _container_resources
        )

    async def allocatable(self) -> Mapping[str, AllocatableResource]:
        method = "GetTopologyAwareAllocatableResources"
        return await self._ask(
            method, wire.Empty(), wire.GetTopologyAwareAllocatableResourcesResponse, _allocatable_resources
        )

    async def read_options(self) -> PluginOptions:
        return await self._ask(
            "GetResourcePluginOptions", wire.Empty(), wire.ResourcePluginOptions, messages.read_options
        )

    async def pre_start(self, uid: str, namespace: str, pod: str, container: str) -> None:
        request = wire.PreStartContainerRequest(
            pod_uid=uid, pod_namespace=namespace, pod_name=pod, container_name=container
        )
        await self._ask("PreStartContainer", request, wire.Empty, lambda _: None, PRE_START_DEADLINE)

    async def state(self) -> bytes:
        """Returns the state file of a built-in plugin. A stranger's plugin does not serve this."""
        return await self._call("State", f"/{BUILT_IN_SERVICE}/State", b"", bytes, DEADLINE)

    async def set_pools(self, wanted: Mapping[str, str]) -> None:
        """Gives the pools of the CPU plugin other CPUs, in one step; raises PluginFailed with all as they were."""
        await self._call("SetPools", f"/{BUILT_IN_SERVICE}/SetPools", msgspec.json.encode(wanted), bytes, DEADLINE)

    async def _ask(
        self, method: str, request: Message, answer: type[M], read: Callable[[M], T], deadline: float = DEADLINE
    ) -> T:
        def decode(data: bytes) -> T:
            return read(answer.FromString(data))

        return await self._call(method, SERVICE + method, request.SerializeToString(), decode, deadline)

    async def _call(self, method: str, path: str, request: bytes, read: Callable[[bytes], T], deadline: float) -> T:
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(path)
        started = time.monotonic()
        try:
            found = read(await call(request, timeout=deadline))
        except grpc.aio.AioRpcError as error:
            outcome = _OUTCOMES.get(error.code(), "refused")
            words = error.details() or error.code().name
            if outcome == "late":
                words = f"no answer within {time.monotonic() - started:.0f} s"
            failed = self._failed(method, outcome, words)
            failed.refusal = _refusal_of(error)
            failed.unimplemented = error.code() == grpc.StatusCode.UNIMPLEMENTED
            raise failed from error
        except (DecodeError, ValueError) as error:
            raise self._failed(method, "junk", str(error)) from error
        self._count(self.resource, method, "ok")
        self.last_failure = ""
        return found

    def _failed(self, method: str, outcome: str, words: str) -> PluginFailed:
        self._count(self.resource, method, outcome)
        words = words[:1024]
        if outcome != "refused":
            words = self.last_failure = f"plugin {self.resource}: {method}: {outcome}: {words}"
        return PluginFailed(outcome, words)


def _refusal_of(error: grpc.aio.AioRpcError) -> Refusal | None:
    for key, value in error.trailing_metadata() or ():
        if key == REFUSAL and isinstance(value, bytes):
            try:
                return msgspec.json.decode(value, type=Refusal)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
    return None


def _container_resources(answer: wire.GetTopologyAwareResourcesResponse) -> Mapping[str, TopologyAwareResource]:
    resources = answer.container_topology_aware_resources.allocated_resources
    return {name: messages.read_resource(resource) for name, resource in resources.items()}


def _allocatable_resources(
    answer: wire.GetTopologyAwareAllocatableResourcesResponse,
) -> Mapping[str, AllocatableResource]:
    return {name: messages.read_allocatable(resource) for name, resource in answer.allocatable_resources.items()}
