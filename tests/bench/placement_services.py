"""Starts the placement worker and its peer, OpenStack Placement, with the same trees."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
import platformdirs

from moorage.bus import Bus
from moorage.mesh import stores
from moorage.model.allocations import InventoryRecord
from moorage.placement.core.records import Provider
from moorage.placement.provider_records import Stored
from moorage_testkit.mesh import Mesh

from .placement_trees import Tree

PEER = "openstack-placement==16.*"
_VERSION = {"openstack-api-version": "placement 1.39", "accept": "application/json"}


class Service(NamedTuple):
    """A service and how it is asked."""

    url: str
    headers: dict[str, str]
    pid: int = 0

    async def candidates(self, http: aiohttp.ClientSession, query: str) -> tuple[float, bytes]:
        """Returns the milliseconds until the last byte of the answer, and the answer."""
        start = time.perf_counter()
        async with http.get(f"{self.url}/allocation_candidates?{query}", headers=self.headers) as reply:
            body = await reply.read()
        took = (time.perf_counter() - start) * 1e3
        assert reply.status == 200, body
        return took, body

    async def allocate(
        self, http: aiohttp.ClientSession, consumer: str, amounts: dict[str, dict[str, int]]
    ) -> tuple[float, int]:
        """Returns the milliseconds until the answer, and its status."""
        body = msgspec.json.encode(
            {
                "allocations": {uuid: {"resources": given} for uuid, given in amounts.items()},
                "project_id": "bench",
                "user_id": "bench",
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            }
        )
        headers = {**self.headers, "content-type": "application/json"}
        start = time.perf_counter()
        async with http.put(f"{self.url}/allocations/{consumer}", data=body, headers=headers) as reply:
            await reply.read()
        return (time.perf_counter() - start) * 1e3, reply.status


def _interpreter() -> Path:
    """Returns the interpreter of the peer's virtual environment, which is made once."""
    directory = platformdirs.user_cache_path("moorage") / "placement-peer"
    python = directory / "bin" / "python"
    if not (directory / "made").exists():
        venv.create(directory, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER, "waitress"], check=True)
        (directory / "made").touch()
    return python


@asynccontextmanager
async def peer(trees: Sequence[Tree], directory: Path) -> AsyncIterator[Service]:
    """OpenStack Placement as it is published, with an in-memory database."""
    python = await asyncio.to_thread(_interpreter)
    (directory / "trees.json").write_bytes(msgspec.json.encode([list(tree) for tree in trees]))
    script = Path(__file__).with_name("placement_peer_server.py")
    process = await asyncio.create_subprocess_exec(
        *(python, "-P", str(script), str(directory / "trees.json")), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 300)).decode().strip()
        assert url, "the peer did not start"
        yield Service(url, {**_VERSION, "x-auth-token": "admin"})
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def placement(mesh: Mesh, trees: Sequence[Tree]) -> AsyncIterator[Service]:
    """The worker of a mesh that was started without one, with trees as it stores them itself."""
    await _store(mesh, trees)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moorage.cli", "run", "placement", "--state", str(mesh.state)),
        env={**os.environ, "MOORAGE_PLACEMENT_HTTP": address},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    service = Service(f"http://{address}", {**_VERSION, "x-auth-token": mesh.endpoint["token"]}, process.pid)
    try:
        async with asyncio.timeout(300), aiohttp.ClientSession() as http:
            while not await _serves(http, service):  # noqa: ASYNC110 - it cannot signal
                await asyncio.sleep(0.05)
        yield service
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _serves(http: aiohttp.ClientSession, service: Service) -> bool:
    try:
        async with http.get(f"{service.url}/resource_classes", headers=service.headers) as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


async def _store(mesh: Mesh, trees: Sequence[Tree]) -> None:
    bus = await Bus.connect(mesh.settings, worker="admin")
    bucket = bus.bucket(stores.PROVIDERS)

    async def put(tree: Tree) -> None:
        provider = Provider(
            uuid=tree.uuid,
            name=tree.name,
            parent=tree.parent,
            generation=1,
            inventories={name: InventoryRecord(total=total) for name, total in tree.inventories.items()},
            traits=tuple(tree.traits),
        )
        await bucket.put(f"provider.{tree.uuid}", msgspec.json.encode(Stored(provider=provider)))

    for start in range(0, len(trees), 500):
        await asyncio.gather(*(put(tree) for tree in trees[start : start + 500]))
    await bus.close()
