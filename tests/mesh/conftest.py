"""Starts mergers and inventories for tests, and fails tests of workers that block their event loop."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from blockbuster import blockbuster_ctx

import moorage
from moorage.bus import Bus
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.inventory import worker as inventory
from moorage.merger.worker import start
from moorage_testkit.inventory_harness import InventoryHarness
from moorage_testkit.merger_harness import Clusters, MergerHarness, OpenMergers
from moorage_testkit.servers import NatsServer, RedisServer

PACKAGES = [importlib.import_module(f"moorage.{found.name}") for found in pkgutil.iter_modules(moorage.__path__)]
#: These read files once per process, or to log an error.
ALLOWED = {
    "<frozen importlib._bootstrap>": "_find_and_load",
    "moorage/mesh/discovery.py": "find_specs",
    "moorage/telemetry/health.py": "version_of_moorage",
    "redis/utils.py": "get_lib_version",
    "rich/traceback.py": "__rich_console__",
    "tests/mesh/test_together.py": "candidates",  # keeps the worker busy
}


@pytest.fixture(scope="module", autouse=True)
def garbage_of_others_is_gone() -> None:
    """Collects what other tests of this process left behind: some of it takes a lock when it goes."""
    gc.collect()


@pytest.fixture(autouse=True)
def blocking_calls_are_errors() -> Iterator[None]:
    with blockbuster_ctx(PACKAGES) as detector:
        for call in detector.functions.values():
            for file, function in ALLOWED.items():
                call.can_block_in(file, function)
        yield


@pytest.fixture
def open_mergers(nats: NatsServer, bus: Bus) -> OpenMergers:
    @asynccontextmanager
    async def opened(
        clusters: Callable[[], Clusters], mergers: int = 1, *, hpa: bool = True
    ) -> AsyncIterator[MergerHarness]:
        site = MergerHarness(nats, bus, clusters, start, lambda fleet: HardwareAnswers(fleet).answer)
        try:
            await site.open(mergers)
            if hpa:
                await site.hpa()
            yield site
            await site.check()
        finally:
            await site.close()

    return opened


@pytest_asyncio.fixture
async def inventories(nats: NatsServer, redis: RedisServer, bus: Bus) -> AsyncIterator[InventoryHarness]:
    site = InventoryHarness(bus, nats.settings(redis_url=redis.url), inventory.main)
    await site.listen()
    yield site
    await site.close()
