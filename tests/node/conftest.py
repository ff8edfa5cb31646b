"""Gives tests of the node agent a real container runtime where one can run."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from moorage_testkit import node_assets

from .containerd import Containerd
from .fake_plugin import FakePlugin


async def _run(series: str, nri: bool) -> AsyncIterator[Containerd]:
    if why := node_assets.missing():
        pytest.skip(why)
    programs = node_assets.containerd(series)
    assert programs is not None
    daemon = Containerd(programs, Path(tempfile.mkdtemp(prefix="mrg-")), nri=nri)
    await daemon.start()
    try:
        await daemon.import_image()
        yield daemon
    finally:
        await daemon.stop()


@pytest_asyncio.fixture
async def containerd() -> AsyncIterator[Containerd]:
    """A containerd without NRI."""
    async for daemon in _run("1.6", nri=False):
        yield daemon


@pytest_asyncio.fixture
async def containerd_1_7() -> AsyncIterator[Containerd]:
    """A later containerd, which tells what resources a container has; a kubelet resizes in place only then."""
    async for daemon in _run("1.7", nri=False):
        yield daemon


@pytest_asyncio.fixture
async def nri_containerd() -> AsyncIterator[Containerd]:
    """A containerd with NRI."""
    async for daemon in _run("1.7", nri=True):
        yield daemon


@pytest_asyncio.fixture(autouse=True)
async def stopped_plugins() -> AsyncIterator[None]:
    """Stops the plugins of a test, also where it fails: gRPC would wait for them when the process ends."""
    yield
    while FakePlugin.running:
        await FakePlugin.running.pop().stop()
