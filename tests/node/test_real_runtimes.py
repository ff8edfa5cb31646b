"""Tests real containers: the agent's decision is in the cgroup of a process, however the agent is attached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from moorage.node.api import cri_pb2 as cri
from moorage_testkit.polling import until

from .agent_process import AgentProcess
from .containerd import IMAGE, Containerd, cgroup_file
from .cri_client import CriClient
from .fake_plugin import FakePlugin
from .machines import pod, write_pod, write_policy

POOLS = {"online": {"cpus": "0", "default": True}, "offline": {"cpus": "1"}}


def make_agent(directory: Path, daemon: Containerd, *arguments: str) -> AgentProcess:
    write_policy(directory / "policy.yaml", pools=POOLS, native="off")
    (directory / "pods").mkdir()
    return AgentProcess(
        daemon.directory / "n",
        *("--node", "n1", "--runtime", f"unix://{daemon.socket}", "--config", str(directory / "policy.yaml")),
        *("--pods", str(directory / "pods"), "--kubelet-dir", str(directory), "--plugins", "cpu,memory"),
        *("--feature-gates", "QoSResourceManager=true", "--qos-resource-manager-reconcile-period", "1s"),
        *arguments,
    )


@pytest_asyncio.fixture
async def agent(containerd: Containerd, tmp_path: Path) -> AsyncIterator[AgentProcess]:
    agent = make_agent(tmp_path, containerd)
    await agent.start()
    yield agent
    await agent.stop()


async def _cpus(client: CriClient, container: str) -> str:
    return cgroup_file(await client.pid(container), "cpuset", "cpuset.cpus").read_text().strip()


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 40.0) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not await check():
        assert loop.time() < until, "it did not happen in time"
        await asyncio.sleep(0.1)


async def _run(client: CriClient, pods: Path, name: str, role: str = "", **resources: Any) -> str:
    manifest = pod(name, role, "100m", "64Mi")
    write_pod(pods, manifest)
    return await client.run(name, f"uid-{name}", manifest["metadata"]["annotations"], **resources)


async def test_before_a_kubelet(agent: AgentProcess, containerd: Containerd, tmp_path: Path) -> None:
    client = CriClient(agent.cri, containerd.cgroup_parent)
    online = await _run(client, tmp_path / "pods", "web", "online-micro_service", cpu_shares=512)
    offline = await _run(client, tmp_path / "pods", "etl", "ETL")
    assert (await _cpus(client, online), await _cpus(client, offline)) == ("0", "1")

    async def applied() -> bool:
        return all(item["applied"] for item in await agent.ask("allocations"))

    await eventually(applied)
    # The kubelet sees what it asked for, not what the container has.
    assert (await client.status(online)).status.resources.linux.cpuset_cpus == ""
    await agent.ask("pools", "set", "online=1", "offline=0")
    assert (await _cpus(client, online), await _cpus(client, offline)) == ("1", "0")
    # An update of the kubelet passes without what it does not own.
    await client.update(online, cpuset_cpus="0", cpu_shares=256)
    pid = await client.pid(online)
    assert cgroup_file(pid, "cpuset", "cpuset.cpus").read_text().strip() == "1"
    assert cgroup_file(pid, "cpu", "cpu.shares").read_text().strip() == "256"
    # What others write is put right within a period.
    cgroup_file(pid, "cpuset", "cpuset.cpus").write_text("0-1")

    async def put_right() -> bool:
        return cgroup_file(pid, "cpuset", "cpuset.cpus").read_text().strip() == "1"

    await eventually(put_right)
    await eventually(applied)
    await client.close()


async def test_a_file_of_the_cgroup_that_a_plugin_sets(
    agent: AgentProcess, containerd: Containerd, tmp_path: Path
) -> None:
    """Checks that the agent writes the file itself with cgroups of version 1, where no runtime takes `unified`."""
    plugin = FakePlugin()
    plugin.info.oci_property_name, plugin.info.allocation_result = "memory.swappiness", "7"
    await plugin.start(agent.root / "plugins_registry" / "p.sock")
    await until(lambda: bool(plugin.registered))
    client = CriClient(agent.cri, containerd.cgroup_parent)
    manifest = pod("swap", "", "100m", "64Mi")
    manifest["spec"]["containers"][0]["resources"]["requests"]["example.com/tokens"] = "1"
    write_pod(tmp_path / "pods", manifest)
    container = await client.run("swap", "uid-swap")
    file = cgroup_file(await client.pid(container), "memory", "memory.swappiness")
    assert file.read_text().strip() == "7"
    file.write_text("30")

    async def put_right() -> bool:
        return file.read_text().strip() == "7"

    await eventually(put_right)
    await client.close()


async def test_detached_a_container_has_what_the_kubelet_asked_for(
    agent: AgentProcess, containerd: Containerd, tmp_path: Path
) -> None:
    client = CriClient(agent.cri, containerd.cgroup_parent)
    container = await _run(client, tmp_path / "pods", "etl", "ETL")
    assert await _cpus(client, container) == "1"
    assert (await agent.ask("detach"))["containers"] == 1
    assert await _cpus(client, container) == "0-1"
    second = await _run(client, tmp_path / "pods", "other", "ETL")
    assert await _cpus(client, second) == "0-1"
    await client.close()


async def test_the_runtime_goes_away_and_comes_back(
    agent: AgentProcess, containerd: Containerd, tmp_path: Path
) -> None:
    client = CriClient(agent.cri, containerd.cgroup_parent)
    container = await _run(client, tmp_path / "pods", "etl", "ETL")
    pid = await client.pid(container)
    containerd.kill()
    with pytest.raises(grpc.aio.AioRpcError):
        await client.status(container)
    await containerd.start()

    async def moved() -> bool:
        code, _, _ = await agent.command("pools", "set", "online=1", "offline=0")
        return code == 0 and cgroup_file(pid, "cpuset", "cpuset.cpus").read_text().strip() == "0"

    await eventually(moved, 60)
    await client.close()


async def test_a_killed_agent_finds_everything_again(
    agent: AgentProcess, containerd: Containerd, tmp_path: Path
) -> None:
    client = CriClient(agent.cri, containerd.cgroup_parent)
    container = await _run(client, tmp_path / "pods", "etl", "ETL")
    pid = await client.pid(container)
    await agent.kill()
    await agent.start()
    await agent.ask("pools", "set", "online=1", "offline=0")
    assert cgroup_file(pid, "cpuset", "cpuset.cpus").read_text().strip() == "0"
    await agent.kill()
    (agent.root / "qos_resource_manager_state").write_bytes(b"{torn")
    (agent.root / "cpu_plugin_state").unlink()
    await agent.start()

    async def back() -> bool:
        return any(item["uid"] == "uid-etl" and item["applied"] for item in await agent.ask("allocations"))

    await eventually(back)
    assert any("set aside" in problem for problem in (await agent.ask("status"))["problems"])
    await client.close()


#: What a state file may be when an agent starts: lost, empty, torn, junk, of a later version.
STATES = (None, b"", b'{"entries": {"uid-etl"', b"\xff\0junk", b'{"a": 1, "version": 99, "checksum": "00"}')


async def test_whatever_became_of_its_state_a_start_touches_no_process(
    agent: AgentProcess, containerd: Containerd, tmp_path: Path
) -> None:
    client = CriClient(agent.cri, containerd.cgroup_parent)
    pid = await client.pid(await _run(client, tmp_path / "pods", "etl", "ETL"))
    cpuset = cgroup_file(pid, "cpuset", "cpuset.cpus")
    await agent.stop()
    files = [agent.root / name for name in ("qos_resource_manager_state", "cpu_plugin_state", "memory_plugin_state")]
    ours = [file.read_bytes() for file in files]

    async def applied() -> bool:
        return [(item["uid"], item["applied"]) for item in await agent.ask("allocations")] == [("uid-etl", True)]

    for content in STATES:
        for file in files:
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
        await agent.start()
        await eventually(applied, 60)
        assert cpuset.read_text().strip() == "1"
        assert 'updates_total{outcome="ok"}' not in await agent.metrics()
        await agent.stop()
    # Back to the version that wrote them.
    for file, content in zip(files, ours, strict=True):
        file.write_bytes(content)
    # Off: what runs stays as it is, and what starts is as the kubelet wants it. On again: all has what its role gives it.
    on = agent._arguments
    agent._arguments = tuple(word.replace("=true", "=false") for word in on)
    await agent.start()
    await client.close()
    client = CriClient(agent.cri, containerd.cgroup_parent)
    late = await client.pid(await _run(client, tmp_path / "pods", "late", "ETL"))
    assert cpuset.read_text().strip() == "1"
    assert cgroup_file(late, "cpuset", "cpuset.cpus").read_text().strip() in ("", "0-1")
    await agent.stop()
    agent._arguments = on
    await agent.start()

    async def pinned() -> bool:
        return cgroup_file(late, "cpuset", "cpuset.cpus").read_text().strip() == "1"

    await eventually(pinned, 60)
    assert cpuset.read_text().strip() == "1"
    await client.close()


async def test_by_nri(nri_containerd: Containerd, tmp_path: Path) -> None:
    daemon = nri_containerd
    agent = make_agent(tmp_path, daemon, "--attach", "nri", "--nri", str(daemon.nri_socket))
    await agent.start()
    client = CriClient(str(daemon.socket), daemon.cgroup_parent)
    try:

        async def attached() -> bool:
            return bool((await agent.ask("status"))["ready"])

        await eventually(attached)
        container = await _run(client, tmp_path / "pods", "etl", "ETL")
        assert await _cpus(client, container) == "1"
        await agent.ask("pools", "set", "online=1", "offline=0")
        assert await _cpus(client, container) == "0"
        with pytest.raises(grpc.aio.AioRpcError, match="RoleUnknown"):
            await _run(client, tmp_path / "pods", "odd", "nobody-knows")
        # What starts while the agent is away is pinned when it is back.
        await agent.kill()
        loose = await _run(client, tmp_path / "pods", "loose", "ETL")
        assert await _cpus(client, loose) == "0-1" or await _cpus(client, loose) == ""
        await agent.start()

        async def pinned() -> bool:
            return await _cpus(client, loose) == "0"

        await eventually(pinned)
    finally:
        await client.close()
        await agent.stop()


async def test_alone(containerd: Containerd, tmp_path: Path) -> None:
    agent = make_agent(tmp_path, containerd, "--attach", "alone", "--cgroup-parent", containerd.cgroup_parent)
    manifest = pod("etl", "ETL", "100m", "64Mi")
    manifest["spec"]["hostNetwork"] = True
    manifest["spec"]["containers"][0]["image"] = IMAGE
    await agent.start()
    write_pod(tmp_path / "pods", manifest)
    client = CriClient(str(containerd.socket), containerd.cgroup_parent)
    try:

        async def runs() -> bool:
            return any(item["applied"] for item in await agent.ask("allocations"))

        await eventually(runs, 60)
        (container,) = await _containers(client)
        assert await _cpus(client, container) == "1"
        # What ends is started again.
        await client.stop(container)

        async def again() -> bool:
            return bool(set(await _containers(client)) - {container})

        await eventually(again, 60)
        (tmp_path / "pods" / "etl.yaml").unlink()

        async def gone() -> bool:
            return not await _containers(client) and await agent.ask("allocations") == []

        await eventually(gone, 60)
    finally:
        await client.close()
        await agent.stop()


async def _containers(client: CriClient) -> list[str]:
    answer = await client.call("ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse)
    return [container.id for container in answer.containers]
