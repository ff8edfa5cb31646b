"""Slow and dead controllers: a decision takes as long as the slowest deadline asked, never the sum."""

from __future__ import annotations

import asyncio
import contextlib

from moorage.bus import Bus, Incoming
from moorage_testkit.mesh import Mesh

from .decisions import fleet
from .harness import Figure, percentiles
from .workload import Decisions, application, example


async def deadlines() -> list[Figure]:
    figures = []
    mesh = Mesh()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(mesh)
        await stack.enter_async_context(fleet(mesh, 200))
        base = example()
        bus = await Bus.connect(mesh.settings, worker="admin")
        decisions = Decisions(bus)
        await decisions.start()

        async def slow(_: Incoming) -> bytes:
            await asyncio.sleep(0.3)
            return b'{"apps": {}}'

        for i in range(5):
            name = f"slow-{i}"
            if i < 4:
                await bus.serve(f"moorage.controllers.{name}.candidates", slow)
            body = {"deadlineMs": 500, "policy": "optional"}
            await asyncio.to_thread(mesh.http, f"/v1/controllers/{name}", body, method="PUT")
        dead = await bus.nc.subscribe("moorage.controllers.slow-4.candidates")
        await bus.settle()

        async def run(label: str) -> list[float]:
            samples = []
            for i in range(20):
                phase, took = await decisions.decide(f"{label}-{i}", application(f"{label}-{i}", base=base))
                if phase != "placed":
                    raise RuntimeError(f"{label}-{i} is {phase}")
                samples.append(took)
            return samples

        p50, p99 = percentiles(await run("dead"))
        figures.append(
            Figure(
                name="four controllers that take 300 ms and a dead one with 500 ms",
                n=20,
                p50=p50,
                p99=p99,
                floor=500,
                ratio=p99 / 500,
                goal="<= its deadline + 50 ms",
                ok=p99 <= 550,
            )
        )
        await dead.unsubscribe()
        await bus.serve("moorage.controllers.slow-4.candidates", slow)
        p50, p99 = percentiles(await run("slow"))
        figures.append(
            Figure(
                name="five controllers that take 300 ms each",
                n=20,
                p50=p50,
                p99=p99,
                floor=300,
                ratio=p50 / 300,
                goal="<= 350 ms",
                ok=p99 <= 350,
            )
        )
        await bus.close()
    return figures
