"""Plugins come and go by their sockets. One that is late, dies or answers junk costs the pods that need it, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from moorage.node import grpc_unix
from moorage.node.api import podresources_pb2 as pods_api
from moorage.node.api import resourceplugin_pb2 as wire
from moorage.node.plugin_registry import PluginRegistry
from moorage_testkit import node_assets

from .fake_plugin import FakePlugin
from .machines import pod, write_pod, write_policy
from .test_examples import RESERVED, Stand
from .test_real_runtimes import eventually

TOKENS = "example.com/tokens"


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[PluginRegistry]:
    registry = PluginRegistry(tmp_path / "reg", lambda *_: None, lambda name: "not wanted" if name == "no" else "")
    await registry.start(tmp_path / "legacy" / "kubelet.sock")
    yield registry
    await registry.stop()


async def _until(check: Any, seconds: float = 40.0) -> None:
    started = time.monotonic()
    while not check():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        await asyncio.sleep(0.005)


async def test_a_plugin_is_found_in_any_directory(registry: PluginRegistry, tmp_path: Path) -> None:
    plugin, hidden = FakePlugin(), FakePlugin("example.com/hidden")
    (tmp_path / "reg" / "deep" / "er").mkdir(parents=True)
    await hidden.start(tmp_path / "reg" / ".hidden.sock")
    await plugin.start(tmp_path / "reg" / "deep" / "er" / "p.sock")
    await _until(lambda: plugin.registered)
    await _until(lambda: registry.get(TOKENS))
    assert plugin.registered == [True] and registry.get("example.com/hidden") is None
    await plugin.stop()
    await _until(lambda: registry.get(TOKENS) is None)
    assert registry.is_known(TOKENS)  # for five minutes
    again = FakePlugin()
    await again.start(tmp_path / "reg" / "deep" / "er" / "p.sock")
    await _until(lambda: registry.get(TOKENS))
    await again.stop()
    await hidden.stop()


async def test_the_newest_of_a_name_wins(registry: PluginRegistry, tmp_path: Path) -> None:
    old, new = FakePlugin(), FakePlugin()
    await old.start(tmp_path / "reg" / "old.sock")
    await _until(lambda: registry.get(TOKENS))
    await new.start(tmp_path / "reg" / "new.sock")
    await _until(lambda: (found := registry.get(TOKENS)) is not None and found.path.endswith("new.sock"))
    await old.stop()
    await asyncio.sleep(0.1)
    assert registry.get(TOKENS) is not None
    await new.stop()


async def test_a_plugin_that_is_not_wanted_is_told(registry: PluginRegistry, tmp_path: Path) -> None:
    unwanted, other = FakePlugin("no"), FakePlugin("other")
    other.version = "v2"
    await unwanted.start(tmp_path / "reg" / "a.sock")
    await other.start(tmp_path / "reg" / "b.sock")
    await _until(lambda: unwanted.registered and other.registered)
    assert (unwanted.registered, other.registered) == ([False], [False])
    messages = {state.name: state.message for state in registry.states()}
    assert messages["no"] == "not wanted" and "v2" in messages["other"]
    await unwanted.stop()
    await other.stop()


async def test_the_older_registration(registry: PluginRegistry, tmp_path: Path) -> None:
    plugin = FakePlugin()
    await plugin.start(tmp_path / "legacy" / "tokens.sock")
    async with grpc_unix.channel(str(tmp_path / "legacy" / "kubelet.sock")) as channel:
        register = channel.unary_unary("/resourceplugin.v1alpha1.Registration/Register")
        for endpoint in ("../tokens.sock", ""):
            bad = wire.RegisterRequest(version="v1alpha1", endpoint=endpoint, resource_name=TOKENS)
            with pytest.raises(grpc.aio.AioRpcError):
                await register(bad.SerializeToString())
        good = wire.RegisterRequest(version="v1alpha1", endpoint="tokens.sock", resource_name=TOKENS)
        await register(good.SerializeToString())
    assert registry.get(TOKENS) is not None
    await plugin.stop()


async def test_junk_in_the_directory_harms_nobody(registry: PluginRegistry, tmp_path: Path) -> None:
    (tmp_path / "reg" / "file.sock").write_text("no socket")
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "reg" / "silent.sock"))
    silent.listen()

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(os.urandom(4096))

    talker = await asyncio.start_unix_server(talk, tmp_path / "reg" / "talker.sock")
    plugin = FakePlugin()
    await plugin.start(tmp_path / "reg" / "p.sock")
    await _until(lambda: registry.get(TOKENS))
    await plugin.stop()
    await registry.stop()
    talker.close()
    await talker.wait_closed()
    silent.close()


# --- with an agent


@pytest_asyncio.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    write_policy(stand.policy, **RESERVED)
    yield stand
    await stand.close()


async def _run(stand: Stand, name: str, tokens: str = "2", role: str = "") -> str:
    manifest = pod(name, role, "4", "4Gi")
    requests = manifest["spec"]["containers"][0]["resources"]
    requests["requests"] = requests["limits"] = {**requests["requests"], TOKENS: tokens}
    write_pod(stand.pods, manifest)
    assert stand.kubelet is not None
    await stand.kubelet.run(name, f"uid-{name}", manifest["metadata"]["annotations"])
    return f"uid-{name}"


async def _started(stand: Stand, plugin: FakePlugin) -> None:
    await stand.start()
    await plugin.start(stand.agent.root / "plugins_registry" / "tokens.sock")
    await _until(lambda: plugin.registered == [True])


@pytest.mark.parametrize(
    ("method", "how", "code"),
    [
        ("GetTopologyHints", "empty", "TopologyAffinityError"),
        ("GetTopologyHints", "junk", "UnexpectedAdmissionError"),
        ("GetTopologyHints", "dies", "UnexpectedAdmissionError"),
        ("Allocate", "fails", "UnexpectedAdmissionError"),
        ("Allocate", "junk", "UnexpectedAdmissionError"),
    ],
)
async def test_a_bad_plugin_costs_its_pod_only(stand: Stand, method: str, how: str, code: str) -> None:
    plugin = FakePlugin(**{method: how})
    await _started(stand, plugin)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _run(stand, "needs", role="storage-service")
    assert (refused.value.details() or "").startswith(f"{code}: ")
    uid = await stand.run("other", "storage-service", "20", "40G")
    assert stand.runtime.cpus(uid) == "2-21"  # nothing of the refused pod stayed allocated
    assert [item["uid"] for item in await stand.agent.ask("allocations")] == [uid]
    await plugin.stop()


async def test_a_refusal_by_a_plugin_says_what_is_needed_and_free(stand: Stand) -> None:
    plugin = FakePlugin()
    plugin.zones = {1: {"t": 3}}
    await _started(stand, plugin)
    await _until(lambda: "GetTopologyAwareAllocatableResources" in plugin.calls)
    await _run(stand, "first", role="storage-service")
    words = f"TopologyAffinityError: the plugin {TOKENS} has no zones for 3 of it; numa-1: 1 of 3 are free"
    with pytest.raises(grpc.aio.AioRpcError, match=words):
        await _run(stand, "more", "3")
    [reason] = (await stand.agent.ask("why", "default/more"))["reasons"]
    assert (reason["needed"], reason["free"], reason["nearest"][0]["zone"]) == (3, 1, 1)
    await plugin.stop()


async def test_a_late_plugin_delays_nobody_else(stand: Stand) -> None:
    plugin = FakePlugin(GetTopologyHints="late")
    await _started(stand, plugin)
    slow = asyncio.ensure_future(_run(stand, "slow"))
    await _until(lambda: "GetTopologyHints" in plugin.calls)
    await stand.run("quick", "storage-service", "20", "40G")
    assert not slow.done()
    with pytest.raises(grpc.aio.AioRpcError, match="late"):
        await slow
    await plugin.stop()


async def test_two_plugins_that_disagree_are_named(stand: Stand) -> None:
    plugin = FakePlugin()
    plugin.info = wire.ResourceAllocationInfo(oci_property_name="CpusetCpus", allocation_result="7")
    await _started(stand, plugin)
    with pytest.raises(
        grpc.aio.AioRpcError, match=r"cpu and example\.com/tokens set the property CpusetCpus differently"
    ):
        await _run(stand, "both", role="storage-service")
    assert not plugin.allocated
    await plugin.stop()


async def test_a_plugin_that_comes_back_after_a_restart_of_the_agent(stand: Stand) -> None:
    plugin = FakePlugin()
    await _started(stand, plugin)
    await _run(stand, "first")
    await stand.agent.stop()
    await plugin.stop()
    await stand.agent.start()
    with pytest.raises(grpc.aio.AioRpcError, match="PluginMissing"):
        await _run(stand, "second")
    again = FakePlugin()
    await again.start(stand.agent.root / "plugins_registry" / "tokens.sock")
    await _until(lambda: again.registered == [True])
    await _run(stand, "second")
    assert list(again.allocated) == ["uid-second"]
    await again.stop()


async def test_a_plugin_in_go_works_unchanged(stand: Stand) -> None:
    program = node_assets.go_plugin()
    if program is None:
        pytest.skip("no plugin in Go; `make node-assets` builds it")
    await stand.start()
    path = stand.agent.root / "plugins_registry" / "go.sock"
    process = await asyncio.create_subprocess_exec(str(program), "-socket", str(path), "-resource", TOKENS)
    try:

        async def registered() -> bool:
            return any(p["name"] == TOKENS and p["registered"] for p in await stand.agent.ask("plugins"))

        await eventually(registered)
        uid = await _run(stand, "go", "3", "storage-service")
        config = stand.runtime.containers[stand.runtime.of_pod(uid)].config
        assert {env.key: env.value for env in config.envs} == {"TOKENS": "granted"}
        (item,) = await stand.agent.ask("allocations", uid)
        assert item["resources"][TOKENS]["allocatedQuantity"] == 3
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_the_kubelets_own_manager_keeps_a_plugin_out(stand: Stand) -> None:
    kubelet = stand.directory / "kubelet"
    kubelet.mkdir()
    (kubelet / "cpu_manager_state").write_text('{"policyName":"static","defaultCpuSet":"0-79"}')
    await stand.start()
    found = {item["name"]: item for item in await stand.agent.ask("plugins")}
    assert not found["cpu"]["registered"] and "cpuManagerPolicy" in found["cpu"]["message"]
    assert found["memory"]["registered"]


async def test_pod_resources(stand: Stand) -> None:
    await stand.start()
    await stand.run("pod1", "storage-service", "20", "40G")
    path = stand.agent.root / "pod-resources" / "kubelet.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with grpc_unix.channel(str(path)) as channel:

        async def ask(method: str, request: Any, answer: Any) -> Any:
            call = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
            return answer.FromString(await call(request.SerializeToString()))

        (found,) = (
            await ask("List", pods_api.ListPodResourcesRequest(), pods_api.ListPodResourcesResponse)
        ).pod_resources
        assert (found.name, found.namespace, found.pod_role) == ("pod1", "default", "storage-service")
        (container,) = found.containers
        assert list(container.cpu_ids) == list(range(2, 22))
        cpu = {r.resource_name: r for r in container.resources}["cpu"]
        assert [(q.node, q.resource_value) for q in cpu.topology_aware_quantity_list] == [(0, 20)]
        one = pods_api.GetPodResourcesRequest(pod_name="pod1", pod_namespace="default")
        assert (await ask("Get", one, pods_api.GetPodResourcesResponse)).pod_resources == found
        with pytest.raises(grpc.aio.AioRpcError, match="no pod default/nobody"):
            await ask("Get", pods_api.GetPodResourcesRequest(pod_name="nobody", pod_namespace="default"), found)
        every = await ask(
            "GetAllocatableResources", pods_api.AllocatableResourcesRequest(), pods_api.AllocatableResourcesResponse
        )
        assert len(every.cpu_ids) == 76 and {r.resource_name for r in every.resources} >= {"cpu", "memory"}
