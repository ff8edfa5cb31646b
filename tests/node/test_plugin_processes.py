"""Built-in plugins as processes of their own: the agent finds them as any other, and they keep what they gave by themselves."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import psutil
import pytest
import pytest_asyncio

from moorage_testkit.failpoints import Failpoints
from moorage_testkit.polling import until

from .machines import pod, write_policy
from .test_examples import NICS, POOLS, RESERVED, Stand
from .test_real_runtimes import eventually

PLUGINS = ("cpu", "memory", "NIC")


class PluginProcess:
    """`moorage node plugin NAME`."""

    def __init__(self, name: str, root: Path, policy: Path, sysfs: Path) -> None:
        self._arguments = (name, "--root", str(root), "--config", str(policy), "--sysfs", str(sysfs))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moorage.cli", "node", "plugin", *self._arguments), stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), 60) == b"ready\n"

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        if self._process is not None:
            await self._process.wait()


@pytest_asyncio.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    await stand.close()


async def _registered(stand: Stand, names: tuple[str, ...]) -> None:
    async def there() -> bool:
        return {p["name"] for p in await stand.agent.ask("plugins") if p["registered"]} == set(names)

    await eventually(there, 60)


@pytest_asyncio.fixture
async def processes(stand: Stand) -> AsyncIterator[dict[str, PluginProcess]]:
    """All built-in plugins as processes, for an agent that runs none."""
    stand.agent._arguments += ("--plugins", "", "--qos-resource-manager-reconcile-period", "1s")
    sysfs = stand.directory / "sys"
    found = {name: PluginProcess(name, stand.agent.root, stand.policy, sysfs) for name in PLUGINS}
    yield found
    for plugin in found.values():
        await plugin.kill()


async def _start(stand: Stand, processes: dict[str, PluginProcess]) -> None:
    await asyncio.gather(stand.start(), *(plugin.start() for plugin in processes.values()))
    await _registered(stand, PLUGINS)


async def test_plugins_as_processes(stand: Stand, processes: dict[str, PluginProcess]) -> None:
    write_policy(stand.policy, nics=NICS, **RESERVED)
    await _start(stand, processes)
    assert stand.runtime.cpus(await stand.run("first", "storage-service", "20", "40G")) == "2-21"
    assert stand.runtime.cpus(await stand.run("second", "numa-enhancement", "10", "20G")) == "42-51"
    # One that is killed costs those that need it, and gives nothing twice when it is back.
    await processes["cpu"].kill()
    with pytest.raises(grpc.aio.AioRpcError):
        await stand.run("third", "numa-enhancement", "10", "20G")
    await processes["cpu"].start()

    async def admitted() -> bool:
        try:
            await stand.run("third", "numa-enhancement", "10", "20G")
        except grpc.aio.AioRpcError:
            return False  # the kubelet tries again, too
        return True

    await eventually(admitted, 60)
    assert stand.runtime.cpus("uid-third") == "52-61"


async def test_the_agent_shows_and_changes_what_plugins_in_processes_have(
    stand: Stand, processes: dict[str, PluginProcess]
) -> None:
    write_policy(stand.policy, nics=NICS, pools=POOLS)
    await _start(stand, processes)
    online, offline = await stand.run("web", "online-micro_service"), await stand.run("etl", "ETL")
    own = await stand.run("own", "storage-service", "10", "20G")
    assert [stand.runtime.cpus(uid) for uid in (online, offline, own)] == ["10-37,40-77", "38-39,78-79", "0-9"]
    zones = {zone["id"]: zone for zone in await stand.agent.ask("zones")}
    assert (zones["numa-0"]["exclusiveCpus"], zones["numa-0"]["exclusiveFree"]) == ("0-9", 30)
    assert zones["numa-0"]["memoryFree"] == zones["numa-1"]["memoryFree"] - 20 * 10**9
    # A change of the pools is one step: what is not possible changes nothing.
    code, _, words = await stand.agent.command("pools", "set", "online=0-13,40-53", "offline=13-39,54-79")
    assert code == 1 and "two pools" in words
    items = await stand.agent.ask("pools", "set", "online=0-13,40-53", "offline=14-39,54-79")
    sizes = {item["name"]: (item["cpus"], item["containers"]) for item in items}
    assert sizes == {
        "online": ("10-13,40-53", ["default/web/main"]),
        "offline": ("14-39,54-79", ["default/etl/main"]),
    }
    assert [stand.runtime.cpus(uid) for uid in (online, offline, own)] == ["10-13,40-53", "14-39,54-79", "0-9"]
    manifest = stand.directory / "next.json"
    manifest.write_text(json.dumps(pod("next", "reranker", "12")))
    [simulated] = await stand.agent.ask("simulate", "-f", str(manifest))
    assert simulated["resources"]["cpu"]["allocationResult"] == "40-51"  # of the zone that no other role has
    # Pools that were changed stay so; without their plugin they cannot be.
    await processes["cpu"].kill()
    await eventually(lambda: _fails(stand, "away"), 60)
    await processes["cpu"].start()
    await _registered(stand, PLUGINS)
    assert stand.runtime.cpus(await stand.run("later", "ETL")) == "14-39,54-79"


async def _fails(stand: Stand, words: str) -> bool:
    code, _, error = await stand.agent.command("pools", "set", "online=0-14,40-53", "offline=15-39,54-79")
    return code == 1 and words in error


async def test_a_plugin_in_a_process_forgets_a_pod_that_the_agent_never_recorded(
    stand: Stand, processes: dict[str, PluginProcess]
) -> None:
    """The agent is killed between Allocate and its checkpoint, and the pod is deleted before it is back."""
    failpoints = Failpoints(stand.directory / "failpoints")
    stand.agent._environment = failpoints.environment
    write_policy(stand.policy, nics=NICS, pools=POOLS)
    await _start(stand, processes)
    failpoints.arm("node.allocated")
    with pytest.raises(grpc.aio.AioRpcError):
        await stand.run("own", "storage-service", "10", "10G")
    state = stand.agent.root / "cpu_plugin_state"
    assert "uid-own" in state.read_text()
    (stand.pods / "own.yaml").unlink()
    await stand.agent.kill()
    await stand.agent.start()
    await until(lambda: "uid-own" not in state.read_text(), 60)
    assert stand.runtime.cpus(await stand.run("next", "storage-service", "10", "10G")) == "0-9"


#: What an agent has in memory besides the libraries that speak gRPC and NATS, in MiB.
BESIDE_LIBRARIES = 22.0


async def test_the_agent_takes_little_more_memory_than_its_libraries(stand: Stand) -> None:
    write_policy(stand.policy, nics=NICS, **RESERVED)
    await stand.start()
    await stand.run("first", "storage-service", "20", "40G")
    assert stand.agent.process is not None
    agent = psutil.Process(stand.agent.process.pid)
    bare = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import grpc.aio, nats, msgspec; print(flush=True); input()"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert bare.stdout is not None
    await asyncio.wait_for(bare.stdout.readline(), 60)
    beside = (agent.memory_info().rss - psutil.Process(bare.pid).memory_info().rss) / (1 << 20)
    libraries = [Path(found.path).name for found in agent.memory_maps() if found.path.endswith(".so")]
    await bare.communicate(b"\n")
    assert beside <= BESIDE_LIBRARIES
    assert not [name for name in libraries if "numpy" in name or "multiarray" in name]
