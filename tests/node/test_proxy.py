"""Between kubelet and runtime every call passes as it is: with its bytes, metadata, deadline and status, later methods too."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from moorage.node import grpc_unix
from moorage.node.api import cri_pb2 as cri
from moorage.node.cri_proxy import CriProxy, Refused

from .containerd import Containerd, cgroup_file
from .cri_client import CriClient
from .recording_runtime import RecordingRuntime

RUNTIME = "/runtime.v1.RuntimeService/"


class Runtime(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A runtime of a later version: it answers everything, and notes what it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, dict[str, Any], float]] = []
        self.cancelled = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        name = details.method.rpartition("/")[2]

        async def unary(request: bytes, context: Any) -> bytes:
            self.seen.append((name, request, dict(context.invocation_metadata()), context.time_remaining()))
            if name == "Fails":
                await context.abort(
                    grpc.StatusCode.NOT_FOUND, "no such thing", (("grpc-status-details-bin", b"\1\2"), ("why", "gone"))
                )
            if name in ("Hangs", "StopContainer"):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            context.set_trailing_metadata((("seen", "yes"),))
            return b"answer to " + request

        async def streaming(requests: Any, _context: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request + b" once"
                yield request + b" twice"

        if name == "Streams":
            return grpc.stream_stream_rpc_method_handler(streaming)
        return grpc.unary_unary_rpc_method_handler(unary)


class Stand:
    def __init__(self, runtime: Runtime, proxy: CriProxy, client: grpc.aio.Channel, path: Path) -> None:
        self.runtime, self.proxy, self.client, self.path = runtime, proxy, client, path


@pytest_asyncio.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    runtime = Runtime()
    server = await grpc_unix.serve(tmp_path / "r.sock", [runtime])
    upstream = grpc_unix.channel(str(tmp_path / "r.sock"))
    proxy = CriProxy(upstream)
    await proxy.start(tmp_path / "cri.sock")
    client = grpc_unix.channel(str(tmp_path / "cri.sock"))
    yield Stand(runtime, proxy, client, tmp_path / "cri.sock")
    await client.close()
    await proxy.stop(0)
    await upstream.close()
    await server.stop(0)


@pytest.mark.parametrize(
    "method",
    [f"{RUNTIME}Status", f"{RUNTIME}OfLaterVersions", "/runtime.v1.ImageService/ListImages", "/runtime.v2.X/Y"],
)
async def test_bytes_metadata_and_deadline_pass(stand: Stand, method: str) -> None:
    call = stand.client.unary_unary(method)(b"\xff\0no message", metadata=(("caller", "kubelet"),), timeout=20)
    assert await call == b"answer to \xff\0no message"
    assert dict(await call.trailing_metadata())["seen"] == "yes"
    ((name, request, metadata, remaining),) = stand.runtime.seen
    assert (name, request, metadata["caller"]) == (method.rpartition("/")[2], b"\xff\0no message", "kubelet")
    assert 10 < remaining < 25


async def test_a_failure_passes_with_code_words_and_details(stand: Stand) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stand.client.unary_unary(f"{RUNTIME}Fails")(b"")
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
    assert dict(failed.value.trailing_metadata()) == {"grpc-status-details-bin": b"\1\2", "why": "gone"}


async def test_a_stream_in_both_directions_passes(stand: Stand) -> None:
    call = stand.client.stream_stream(f"{RUNTIME}Streams")(iter([b"a", b"b"]))
    assert [answer async for answer in call] == [b"a once", b"a twice", b"b once", b"b twice"]


async def test_a_stream_whose_requests_wait_for_answers_passes(stand: Stand) -> None:
    call = stand.client.stream_stream(f"{RUNTIME}Streams")()
    for request in (b"a", b"b"):
        await call.write(request)
        assert [await call.read(), await call.read()] == [request + b" once", request + b" twice"]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("method", ["RuntimeConfig", "OfLaterVersions"])
async def test_a_method_that_the_runtime_does_not_know_is_always_refused_as_such(tmp_path: Path, method: str) -> None:
    """A kubelet that hears anything else does not start."""
    runtime = RecordingRuntime()
    await runtime.start(tmp_path / "r.sock")
    upstream = grpc_unix.channel(str(tmp_path / "r.sock"))
    proxy = CriProxy(upstream)
    await proxy.start(tmp_path / "cri.sock")
    client = grpc_unix.channel(str(tmp_path / "cri.sock"))
    try:
        for _ in range(100):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.unary_unary(RUNTIME + method)(b"")
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    finally:
        await client.close()
        await proxy.stop(0)
        await upstream.close()
        await runtime.stop()


@pytest.mark.parametrize("method", ["StopContainer", "Hangs"])
async def test_a_call_that_the_kubelet_gives_up_is_given_up_at_the_runtime(stand: Stand, method: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await stand.client.unary_unary(RUNTIME + method)(b"", timeout=5)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(stand.runtime.cancelled.wait(), 40)


async def test_only_the_user_may_connect(stand: Stand) -> None:
    assert stat.S_IMODE(stand.path.stat().st_mode) == 0o600


async def test_a_refusal_reaches_the_kubelet_and_not_the_runtime(stand: Stand) -> None:
    async def refuse(_request: bytes, _forward: Any) -> bytes:
        raise Refused("TopologyAffinityError: needs 4 CPUs of one zone; the most free is 2")

    stand.proxy.interceptors["RunPodSandbox"] = refuse
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stand.client.unary_unary(f"{RUNTIME}RunPodSandbox")(b"")
    assert refused.value.details() == "TopologyAffinityError: needs 4 CPUs of one zone; the most free is 2"
    assert not stand.runtime.seen


async def test_fields_that_are_not_known_survive_an_edit() -> None:
    """Field 99 stands for what a later kubelet says."""
    request = cri.CreateContainerRequest(pod_sandbox_id="s")
    request.config.linux.resources.cpu_shares = 512
    raw = request.SerializeToString() + b"\x9a\x06\x05later"
    inner = cri.CreateContainerRequest.FromString(raw)
    inner.config.linux.resources.cpuset_cpus = "2-3"
    assert b"\x9a\x06\x05later" in inner.SerializeToString()


async def test_a_message_that_is_too_large_is_not_decoded(stand: Stand) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stand.client.unary_unary(f"{RUNTIME}Status")(b"x" * (grpc_unix.MAX_MESSAGE + 1))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not stand.runtime.seen


async def test_a_container_of_a_real_runtime_gets_what_an_interceptor_writes(
    containerd: Containerd, tmp_path: Path
) -> None:
    async def pin(request: bytes, forward: Any) -> bytes:
        message = cri.CreateContainerRequest.FromString(request)
        message.config.linux.resources.cpuset_cpus = "1"
        answer: bytes = await forward(message.SerializeToString())
        return answer

    upstream = grpc_unix.channel(str(containerd.socket))
    proxy = CriProxy(upstream, {"CreateContainer": pin})
    await proxy.start(tmp_path / "cri.sock")
    client = CriClient(str(tmp_path / "cri.sock"), containerd.cgroup_parent)
    try:
        container = await client.run("pod", cpuset_cpus="0")
        assert cgroup_file(await client.pid(container), "cpuset", "cpuset.cpus").read_text().strip() == "1"
        containerd.kill()
        with pytest.raises(grpc.aio.AioRpcError) as away:
            await client.status(container)
        assert away.value.code() == grpc.StatusCode.UNAVAILABLE
        await containerd.start()
        await asyncio.wait_for(_answers(client, container), 40)
    finally:
        await client.close()
        await proxy.stop(0)
        await upstream.close()


async def _answers(client: CriClient, container: str) -> None:
    while True:
        try:
            await client.status(container)
            return
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.05)
