"""Figures with their floors: every benchmark returns one row of `bench.json` and prints it as a line."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np

from moorage.bus import Bus, Settings
from moorage_testkit.mesh import Mesh


class Figure(msgspec.Struct, rename="camel", kw_only=True):
    name: str
    n: int
    p50: float
    p99: float
    floor: float = 0
    floor_parts: dict[str, float] = {}
    ratio: float = 0
    goal: str = ""
    ok: bool = True
    unit: str = "ms"
    cpu: dict[str, float] = {}  # milliseconds of CPU per operation by worker, of all processes of the mesh

    @classmethod
    def of(
        cls,
        name: str,
        samples: Sequence[float],
        goal: str,
        *,
        p50: float = math.inf,
        p99: float = math.inf,
        floor: Mapping[str, float] | None = None,
        unit: str = "ms",
    ) -> Figure:
        """`p50`, `p99`: what they may be at most; `floor` by its parts."""
        parts = dict(floor or {})
        found, worst = percentiles(samples)
        return cls(
            name=name,
            n=len(samples),
            p50=found,
            p99=worst,
            floor=sum(parts.values()),
            floor_parts=parts,
            ratio=found / sum(parts.values()) if parts else 0,
            goal=goal,
            ok=found <= p50 and worst <= p99,
            unit=unit,
        )

    def line(self) -> str:
        floor = f"  floor {self.floor:.3g}  ratio {self.ratio:.2f}" if self.floor else ""
        mark = "ok  " if self.ok else "MISS"
        line = (
            f"{mark} {self.name}: p50 {self.p50:.4g}  p99 {self.p99:.4g} {self.unit}{floor}  (n={self.n}; {self.goal})"
        )
        if not self.cpu:
            return line
        most = sorted(self.cpu.items(), key=lambda item: -item[1])
        used = "  ".join(f"{worker} {cpu:.2f}" for worker, cpu in most if cpu >= 0.005)
        return f"{line}\n     CPU {sum(self.cpu.values()):.2f} ms each: {used}"


class CpuTimes:
    """The CPU time that the workers of a mesh use from now on. Unlike rates, it says much even while the machine has other work."""

    _TICKS = os.sysconf("SC_CLK_TCK")

    def __init__(self, mesh: Mesh, **others: int) -> None:
        mesh.read_endpoint()
        self._pids = {**mesh.endpoint["pids"], **{name: [pid] for name, pid in others.items()}}
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        return {name: sum(map(self._of_process, pids)) for name, pids in self._pids.items()}

    def _of_process(self, pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / self._TICKS

    def each(self, operations: int) -> dict[str, float]:
        """Returns the milliseconds per operation by worker."""
        return {name: (now - self._before[name]) / operations * 1e3 for name, now in self._read().items()}


def percentiles(samples: Sequence[float]) -> tuple[float, float]:
    return float(np.percentile(samples, 50)), float(np.percentile(samples, 99))


@asynccontextmanager
async def beside(settings: Settings, module: str) -> AsyncIterator[tuple[Bus, str]]:
    """A floor's own process at the same broker, with as durable a stream: a connection, and the line it says first."""
    bus = await Bus.connect(settings, worker="admin")
    stream = b'{"name":"BENCH","subjects":["bench.durable"],"storage":"file","num_replicas":1}'
    await bus.exchange("$JS.API.STREAM.CREATE.BENCH", stream)
    command = (sys.executable, "-m", module, settings.nats_url, settings.nats_seed)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield bus, (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()
        await bus.request("$JS.API.STREAM.DELETE.BENCH", b"")
        await bus.close()


class Floor:
    """The least that a decision costs: 3 request-replies, 2 durable acknowledgements, one pass over the node table. Taken
    once after each decision, so that both find processes and caches as they are when one thing happens at a time."""

    def __init__(self, bus: Bus, rows: int) -> None:
        self._bus = bus
        rng = np.random.default_rng(1)
        self._columns = [rng.integers(0, 1 << 16, rows) for _ in range(3)]
        self._cluster = np.repeat(np.arange(rows // 20), 20)
        self._samples: list[tuple[float, float, float]] = []

    async def once(self) -> tuple[float, float, float]:
        cpu, memory, gpu = self._columns
        start = time.perf_counter()
        for _ in range(3):
            await self._bus.request("bench.echo", b"x" * 1000)
        replied = time.perf_counter()
        for _ in range(2):
            await self._bus.request("bench.durable", b"x" * 1000)
        durable = time.perf_counter()
        able = (cpu >= 4000) & (memory >= 1 << 10) & (gpu >= 1)
        _ = np.bincount(self._cluster[able], minlength=len(self._cluster) // 20) > 0
        passed = time.perf_counter()
        return (replied - start) * 1e3, (durable - replied) * 1e3, (passed - durable) * 1e3

    async def sample(self) -> None:
        self._samples.append(await self.once())

    def parts(self) -> dict[str, float]:
        names = ("3 request-replies", "2 durable acknowledgements", "one pass")
        return dict(zip(names, np.median(self._samples, axis=0).tolist(), strict=True))

    async def in_a_loop(self, times: int = 200) -> float:
        """The same without anything in between, which is what it costs at the very least."""
        return float(np.median([await self.once() for _ in range(times)], axis=0).sum())
