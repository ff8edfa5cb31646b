"""Measures how soon the example is placed, and what an idle mesh costs."""

from __future__ import annotations

import asyncio
import time

import psutil

from moorage_testkit.mesh import Mesh

from .harness import Figure


async def startup() -> list[Figure]:
    seconds = []
    for _ in range(3):
        mesh = Mesh("--example")
        try:
            seconds.append(mesh.start())
            end = time.monotonic() + 20
            started = time.monotonic()
            while mesh.http("/v1/groups")["items"][0]["phase"] not in ("Placed", "Deploying", "Running"):
                if time.monotonic() > end:
                    raise RuntimeError("the example was not placed")
                await asyncio.sleep(0.02)
            seconds[-1] += time.monotonic() - started
        finally:
            mesh.remove()
    with Mesh("--example") as mesh:
        await asyncio.sleep(15)
        assert mesh.process is not None
        up = psutil.Process(mesh.process.pid)
        processes = [up, *up.children(recursive=True)]
        pss = sum(p.memory_full_info().pss for p in processes) / 1e6
        before = sum(sum(p.cpu_times()[:2]) for p in processes)
        start = time.monotonic()
        await asyncio.sleep(20)
        cpu = 100 * (sum(sum(p.cpu_times()[:2]) for p in processes) - before) / (time.monotonic() - start)
    worst = max(seconds) * 1e3
    return [
        Figure(
            name="start until the example is placed",
            n=3,
            p50=sorted(seconds)[1] * 1e3,
            p99=worst,
            goal="<= 10 s",
            ok=worst <= 10_000,
        ),
        Figure.of(f"idle, {len(processes)} processes: memory (PSS)", [pss], "<= 600 MB", p50=600, unit="MB"),
        Figure.of("idle: CPU", [cpu], "<= 3 % of a core", p50=3, unit="%"),
    ]
