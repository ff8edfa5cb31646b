"""Lets applications of ever new names come and go, and measures the memory of a mesh's processes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from .mesh import Mesh
from .mesh_client import MeshClient, application

#: Applications of one client at once.
AT_ONCE = 10
#: Seconds between two looks at the memory.
INTERVAL = 2.0


def memory(mesh: Mesh) -> dict[str, int]:
    """Returns the kilobytes that the processes of each kind do not share with others."""
    mesh.read_endpoint()
    found: dict[str, int] = {}
    for worker, pids in mesh.endpoint["pids"].items():
        for pid in pids:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            pss = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
            found[worker] = found.get(worker, 0) + int(pss.split()[1])
    return found


class Turnover:
    """Applies and deletes applications, at most so many a second: what is remembered for two minutes depends on that."""

    def __init__(self, driver: MeshClient, clients: int, per_second: float) -> None:
        self._driver, self._clients = driver, clients
        self._pause = clients * AT_ONCE / per_second
        self.total = 0

    async def until(self, total: int) -> None:
        """Ends once this many applications came and went."""
        await asyncio.gather(*(self._client(number, total) for number in range(self._clients)))

    async def least_memory(self, mesh: Mesh, total: int) -> dict[str, int]:
        """Goes on until this many came and went, and returns the least memory meanwhile of each kind of process: what is garbage
        comes and goes, too."""
        least = await asyncio.to_thread(memory, mesh)
        going = asyncio.ensure_future(self.until(total))
        try:
            while not going.done():
                await asyncio.wait([going], timeout=INTERVAL)
                with contextlib.suppress(FileNotFoundError):  # a process was started again just now
                    for worker, size in (await asyncio.to_thread(memory, mesh)).items():
                        least[worker] = min(size, least.get(worker, size))
        finally:
            going.cancel()
        await going
        return least

    async def _client(self, client: int, total: int) -> None:
        loop = asyncio.get_running_loop()
        while self.total < total:
            first, began = self.total, loop.time()
            self.total += AT_ONCE
            names = [f"g{client}-{first + i}" for i in range(AT_ONCE)]
            for name in names:
                await self._driver.apply(application(name))
            await self._driver.delete(names, seconds=300)
            await asyncio.sleep(max(0.0, self._pause - (loop.time() - began)))
