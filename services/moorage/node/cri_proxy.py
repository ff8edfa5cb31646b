"""Stands between the kubelet and the container runtime: passes every call, and edits the few that decide where a container
runs.

On the wire each call is a stream of messages, so a method that is not known here passes as one, with its messages as bytes, its
metadata, its deadline and its status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from . import grpc_unix

#: Sends the request of an intercepted call on to the runtime.
Forward = Callable[[bytes], Awaitable[bytes]]
#: Answers an intercepted call; it may change the request, the answer, or refuse with `Refused`.
Interceptor = Callable[[bytes, Forward], Awaitable[bytes]]

RUNTIME, IMAGES = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
#: Seconds in which a caller that has sent a request says that it was the only one; it comes with the request.
_SECOND_REQUEST = 0.25

#: Methods of one request and one answer that the kubelet calls most; a call of this form costs less than a stream.
_UNARY = frozenset(
    RUNTIME + name
    for name in (
        "Attach",
        "CheckpointContainer",
        "ContainerStats",
        "ContainerStatus",
        "CreateContainer",
        "Exec",
        "ExecSync",
        "ListContainerStats",
        "ListContainers",
        "ListMetricDescriptors",
        "ListPodSandbox",
        "ListPodSandboxMetrics",
        "ListPodSandboxStats",
        "PodSandboxStats",
        "PodSandboxStatus",
        "PortForward",
        "RemoveContainer",
        "RemovePodSandbox",
        "ReopenContainerLog",
        "RunPodSandbox",
        "RuntimeConfig",
        "StartContainer",
        "Status",
        "StopContainer",
        "StopPodSandbox",
        "UpdateContainerResources",
        "UpdatePodSandboxResources",
        "UpdateRuntimeConfig",
        "Version",
    )
) | {IMAGES + name for name in ("ImageFsInfo", "ImageStatus", "ListImages", "PullImage", "RemoveImage")}


class Refused(Exception):
    """Ends an intercepted call with a status; the message is what the kubelet shows in the pod's events."""

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> None:
        super().__init__(message)
        self.code = code


class CriProxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves both services of the container runtime interface on one socket."""

    def __init__(self, runtime: grpc.aio.Channel, interceptors: Mapping[str, Interceptor] | None = None) -> None:
        self._channel = runtime
        #: Interceptors by the method's name in RuntimeService. The mapping is read at each call.
        self.interceptors: dict[str, Interceptor] = dict(interceptors or {})
        self._server: grpc.aio.Server | None = None
        self._unary: dict[str, Any] = {name: runtime.unary_unary(name) for name in _UNARY}

    async def start(self, path: Path) -> None:
        self._server = await grpc_unix.serve(path, [self])

    async def stop(self, grace: float = 1.0) -> None:
        if self._server is not None:
            await self._server.stop(grace)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method
        if (call := self._unary.get(method)) is None:
            return grpc.stream_stream_rpc_method_handler(_relay_streams(self._channel, method))
        interceptor = self.interceptors.get(method.removeprefix(RUNTIME)) if method.startswith(RUNTIME) else None
        if interceptor is None:
            return grpc.unary_unary_rpc_method_handler(_relay(call))
        return grpc.unary_unary_rpc_method_handler(_intercept(call, interceptor))


def _relay(call: Any) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(request: bytes, context: Any) -> bytes:
        return await _forward(call, request, context)

    return handle


def _intercept(call: Any, interceptor: Interceptor) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(request: bytes, context: Any) -> bytes:
        try:
            return await interceptor(request, lambda changed: _forward(call, changed, context))
        except Refused as refused:
            await context.abort(refused.code, str(refused))
            raise AssertionError("abort raises") from None

    return handle


async def _forward(call: Any, request: bytes, context: Any) -> bytes:
    running = call(request, metadata=_metadata(context), timeout=context.time_remaining())
    try:
        answer: bytes = await running
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "", _passed(error.trailing_metadata()))
    except asyncio.CancelledError:
        running.cancel()  # the kubelet gave up: the runtime need not go on
        raise
    if trailing := _passed(await running.trailing_metadata()):
        context.set_trailing_metadata(trailing)
    return answer


def _relay_streams(channel: grpc.aio.Channel, method: str) -> Callable[[Any, Any], AsyncIterator[bytes]]:
    async def handle(requests: Any, context: Any) -> AsyncIterator[bytes]:
        told: dict[str, Any] = {"metadata": _metadata(context), "timeout": context.time_remaining()}
        only, several = await _first_requests(requests)
        if several is None:
            running = channel.unary_stream(method)(only, **told)
        else:
            running = channel.stream_stream(method)(several, **told)
        try:
            if initial := _passed(await running.initial_metadata()):
                await context.send_initial_metadata(initial)
            async for answer in running:
                yield answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", _passed(error.trailing_metadata()))
        finally:
            running.cancel()  # without effect on a call that is over
        context.set_trailing_metadata(_passed(await running.trailing_metadata()))

    return handle


async def _first_requests(requests: Any) -> tuple[bytes | None, AsyncIterator[bytes] | None]:
    """Returns the only request of a call, or an iterator over all of them.

    A call with one request passes as such: of a stream that the runtime refuses before the request is sent, as it does with
    methods it does not know, gRPC would forget the status."""

    async def take() -> bytes | None:
        async for request in requests:
            return bytes(request)
        return None

    async def all_of(first: bytes, second: asyncio.Task[bytes | None]) -> AsyncIterator[bytes]:
        yield first
        if (request := await second) is not None:
            yield request
            async for request in requests:
                yield request

    if (first := await take()) is None:
        return None, requests
    second = asyncio.ensure_future(take())
    try:
        done, _ = await asyncio.wait([second], timeout=_SECOND_REQUEST)
    except asyncio.CancelledError:
        second.cancel()
        raise
    if done and second.result() is None:
        return first, None
    return None, all_of(first, second)


def _metadata(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    return _passed(context.invocation_metadata())


def _passed(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the metadata without what each hop of the transport writes itself."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if (not key.startswith((":", "grpc-")) and key not in ("user-agent", "content-type", "te"))
        or key == "grpc-status-details-bin"
    )
