"""Figures with their floors: every benchmark returns one row of `bench.json` and prints it as a line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from moorage.bus import Bus, Settings


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

    def line(self) -> str:
        floor = f"  floor {self.floor:.3g}  ratio {self.ratio:.2f}" if self.floor else ""
        mark = "ok  " if self.ok else "MISS"
        return (
            f"{mark} {self.name}: p50 {self.p50:.4g}  p99 {self.p99:.4g} {self.unit}{floor}  (n={self.n}; {self.goal})"
        )


def percentiles(samples: Sequence[float]) -> tuple[float, float]:
    return float(np.percentile(samples, 50)), float(np.percentile(samples, 99))


async def timed(times: int, once: Callable[[int], Awaitable[Any]], *, warm: int = 5) -> list[float]:
    """Milliseconds of each call, after a few that do not count."""
    for i in range(warm):
        await once(-1 - i)
    samples = []
    for i in range(times):
        start = time.perf_counter()
        await once(i)
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


async def floors(settings: Settings, rows: int, times: int = 200) -> dict[str, float]:
    """What a decision cannot go below: 3 request-replies, 2 durable acknowledgements, one pass over the node table."""
    bus = await Bus.connect(settings, worker="admin")
    echo = await asyncio.create_subprocess_exec(
        _python(), "-m", "tests.bench.echo", settings.nats_url, settings.nats_seed, stdout=asyncio.subprocess.PIPE
    )
    assert echo.stdout is not None
    await echo.stdout.readline()
    await bus.exchange(
        "$JS.API.STREAM.CREATE.BENCH",
        b'{"name":"BENCH","subjects":["bench.durable"],"storage":"file","num_replicas":1}',
    )
    try:
        request, _ = percentiles(await timed(times, lambda _: bus.request("bench.echo", b"x" * 1000)))
        durable, _ = percentiles(await timed(times, lambda _: bus.request("bench.durable", b"x" * 1000)))
    finally:
        await bus.request("$JS.API.STREAM.DELETE.BENCH", b"")
        echo.terminate()
        await echo.wait()
        await bus.close()
    rng = np.random.default_rng(1)
    cpu, memory, gpu = (rng.integers(0, 1 << 16, rows) for _ in range(3))
    cluster = np.repeat(np.arange(rows // 20), 20)

    def one_pass() -> Any:
        return np.bincount(cluster[(cpu >= 4000) & (memory >= 1 << 10) & (gpu >= 1)], minlength=rows // 20) > 0

    passes = []
    for _ in range(50):
        start = time.perf_counter()
        one_pass()
        passes.append((time.perf_counter() - start) * 1e3)
    table, _ = percentiles(passes)
    return {"3 request-replies": 3 * request, "2 durable acknowledgements": 2 * durable, "one pass": table}


def _python() -> str:
    import sys

    return sys.executable
