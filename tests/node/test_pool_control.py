"""The controller of pools moves cores to where they are used, and leaves them there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from moorage_testkit.polling import until

from .loaded_pools import LoadedPools
from .test_plugin_processes import PluginProcess


@pytest_asyncio.fixture(params=["agent", "process"])
async def loaded(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LoadedPools]:
    apart = request.param == "process"
    found = LoadedPools(tmp_path, monkeypatch, ("memory",) if apart else ("cpu", "memory"))
    plugin = PluginProcess("cpu", found.agent.settings.root, found.policy, found.agent.settings.sysfs)
    try:
        if apart:
            await plugin.start()
        async with found.running():
            yield found
    finally:
        await plugin.kill()


async def test_cores_go_where_they_are_used_and_stay_there(loaded: LoadedPools) -> None:
    assert loaded.size("online") == 20
    # Of 20 cores 87 %, and 60 % are wanted: 29 CPUs, which are 15 cores with two threads.
    loaded.files.load["web"] = 17.4
    await until(lambda: loaded.size("online") == 30, 30, "the pool has grown")
    await until(lambda: loaded.cpus("web").bit_count() == 30, 60, "its containers have more CPUs")
    assert loaded.cpus("batch").bit_count() == 50
    assert not loaded.overlaps, "what grows waits for what shrinks"
    calls = len(loaded.runtime.updates())
    await asyncio.sleep(3)
    assert len(loaded.runtime.updates()) == calls, "a constant load moves nothing"
    # What cannot be measured stays as it is.
    loaded.files.remove("web")
    loaded.files.load["web"] = 29.0
    await asyncio.sleep(2)
    assert loaded.size("online") == 30


async def test_containers_that_wait_get_more(loaded: LoadedPools) -> None:
    loaded.files.load["web"] = 10.0
    await asyncio.sleep(2)
    assert loaded.size("online") == 20
    loaded.files.wait["web"] = 0.2
    await until(lambda: loaded.size("online") >= 22, 30, "the pool grows by a tenth")
    loaded.files.wait["web"] = 0.0
    assert not loaded.overlaps
