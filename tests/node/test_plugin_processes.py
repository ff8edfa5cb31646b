"""Built-in plugins as processes of their own: the agent finds them as any other, and they keep what they gave by themselves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import psutil
import pytest
import pytest_asyncio

from .machines import write_policy
from .test_examples import NICS, RESERVED, Stand
from .test_real_runtimes import eventually

PLUGINS = ("cpu", "memory", "NIC")


class PluginProcess:
    def __init__(self, stand: Stand, name: str) -> None:
        self.name, self._stand = name, stand
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        stand = self._stand
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moorage.cli", "node", "plugin", self.name, "--root", str(stand.agent.root)),
            *("--config", str(stand.policy), "--sysfs", str(stand.directory / "sys")),
            stdout=asyncio.subprocess.PIPE,
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


async def test_plugins_as_processes(stand: Stand) -> None:
    write_policy(stand.policy, nics=NICS, **RESERVED)
    stand.agent._arguments += ("--plugins", "")
    plugins = [PluginProcess(stand, name) for name in PLUGINS]
    try:
        await asyncio.gather(stand.start(), *(plugin.start() for plugin in plugins))
        await _registered(stand, PLUGINS)
        assert stand.runtime.cpus(await stand.run("first", "storage-service", "20", "40G")) == "2-21"
        assert stand.runtime.cpus(await stand.run("second", "numa-enhancement", "10", "20G")) == "42-51"
        # One that is killed costs those that need it, and gives nothing twice when it is back.
        await plugins[0].kill()
        with pytest.raises(grpc.aio.AioRpcError):
            await stand.run("third", "numa-enhancement", "10", "20G")
        await plugins[0].start()

        async def admitted() -> bool:
            try:
                await stand.run("third", "numa-enhancement", "10", "20G")
            except grpc.aio.AioRpcError:
                return False  # the kubelet tries again, too
            return True

        await eventually(admitted, 60)
        assert stand.runtime.cpus("uid-third") == "52-61"
    finally:
        for plugin in plugins:
            await plugin.kill()


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
