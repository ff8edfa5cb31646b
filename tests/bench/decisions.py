"""Measures how long a decision takes, and how many there are in a second."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from moorage.bus import Bus
from moorage.fleet import Fleet, FleetFollower
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application as deployment

from .harness import CpuTimes, Figure, Floor, beside, percentiles
from .workload import Decisions, application, example

NODES = 20


@contextlib.asynccontextmanager
async def fleet(
    mesh: Mesh, clusters: int, nodes: int = NODES, file: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The fleet of a file with so many clusters, or else a generated one, in a process of its own beside the mesh."""
    generated = ("--clusters", str(clusters), "--nodes", str(nodes), "--seed", "1")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moorage.cli", "fleet", "sim"),
        *(generated if file is None else (str(file),)),
        env={"MOORAGE_STATE": str(mesh.state), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    seen = Fleet()
    follower = FleetFollower(mesh.settings.redis_url, seen)
    try:
        await follower.start()
        end = time.monotonic() + 60 + clusters / 50
        while True:
            total = int(seen.known.sum())
            if total >= clusters:
                break
            if time.monotonic() > end or process.returncode is not None:
                raise RuntimeError(f"{total} of {clusters} clusters joined")
            await asyncio.sleep(0.5)
        await follower.stop()
        await asyncio.sleep(2)  # the others see it too
        yield process
    finally:
        await follower.stop()
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def one_at_a_time(clusters: int, times: int, goal: bool) -> Figure:
    with Mesh() as mesh:
        async with fleet(mesh, clusters):
            base = example()
            bus = await Bus.connect(mesh.settings, worker="admin")
            decisions = Decisions(bus)
            await decisions.start()
            for i in range(20):
                await decisions.decide(f"warm-{i}", application(f"warm-{i}", base=base))
                await decisions.running(f"warm-{i}")
            samples = []
            async with beside(mesh.settings, "tests.bench.echo") as (same, _):
                floors = Floor(same, clusters * NODES)
                for i in range(times):
                    phase, took = await decisions.decide(f"a-{i}", application(f"a-{i}", base=base))
                    if phase != "placed":
                        raise RuntimeError(f"a-{i} is {phase}")
                    samples.append(took)
                    # One at a time: the next is published when this one runs.
                    await decisions.running(f"a-{i}")
                    await floors.sample()
                tight = await floors.in_a_loop()
            await bus.close()
    p50, p99 = percentiles(samples)
    parts = floors.parts()
    floor = sum(parts.values())
    parts["all of it in a tight loop"] = tight
    return Figure(
        name=f"decision at {clusters:,} clusters x {NODES} nodes",
        n=times,
        p50=p50,
        p99=p99,
        floor=floor,
        floor_parts=parts,
        ratio=p50 / floor,
        goal="p50 <= 3 x floor, p99 <= 4 x p50" if goal else "printed",
        ok=not goal or (p50 <= 3 * floor and p99 <= 4 * p50),
    )


async def in_flight(
    mergers: int, clusters: int = 1000, total: int = 2000, width: int = 64
) -> tuple[float, float, float, dict[str, float]]:
    """(decisions per second, p50, p99, CPU per decision) with half of the intents with shapes not seen before."""
    with Mesh("--workers", f"merger={mergers}") as mesh:
        async with fleet(mesh, clusters) as simulated:
            base = example()
            bus = await Bus.connect(mesh.settings, worker="admin")
            decisions = Decisions(bus)
            await decisions.start()
            documents = [application(f"t-{i}", base=base, new_shape=i if i % 2 else 0) for i in range(total + width)]
            samples: list[float] = []
            gate = asyncio.Semaphore(width)

            async def one(i: int) -> None:
                async with gate:
                    phase, took = await decisions.decide(f"t-{i}", documents[i])
                    if phase != "placed":
                        raise RuntimeError(f"t-{i} is {phase}")
                    samples.append(took)

            await asyncio.gather(*(one(total + i) for i in range(width)))
            samples.clear()
            cpu = CpuTimes(mesh, fleet=simulated.pid)
            start = time.perf_counter()
            await asyncio.gather(*(one(i) for i in range(total)))
            seconds = time.perf_counter() - start
            used = cpu.each(total)
            await bus.close()
    return total / seconds, *percentiles(samples), used


async def throughput() -> list[Figure]:
    rate, p50, p99, cpu = await in_flight(1)
    one = Figure(
        name="decisions per second, 64 in flight, one merger",
        n=2000,
        p50=p50,
        p99=p99,
        floor=500,
        ratio=rate / 500,
        floor_parts={"decisions/s": rate},
        goal=">= 500 decisions/s",
        ok=rate >= 500,
        cpu=cpu,
    )
    two_rate, two_p50, two_p99, two_cpu = await in_flight(2)
    two = Figure(
        name="decisions per second, 64 in flight, two mergers",
        n=2000,
        p50=two_p50,
        p99=two_p99,
        floor=rate,
        ratio=two_rate / rate,
        floor_parts={"decisions/s": two_rate, "one merger": rate, "one merger p99": p99},
        goal=">= 0.7 x one, p99 <= 2 x",
        ok=two_rate >= 0.7 * rate and two_p99 <= 2 * p99,
        cpu=two_cpu,
    )
    return [one, two]


async def updates(clusters: int = 1000, total: int = 1000, width: int = 64) -> Figure:
    """Image changes of Deployments with two pods, beside new decisions of the same documents."""
    with Mesh() as mesh:
        async with fleet(mesh, clusters) as simulated:
            bus = await Bus.connect(mesh.settings, worker="admin")
            decisions = Decisions(bus)
            await decisions.start()
            gate = asyncio.Semaphore(width)

            async def one(name: str, image: str, samples: list[float]) -> None:
                document = msgspec.json.encode(deployment(name, cpu="100m", pods=2, image=image))
                async with gate:
                    phase, took = await decisions.decide(name, document)
                    if phase != "placed":
                        raise RuntimeError(f"{name} is {phase}")
                    samples.append(took)

            async def all_of(image: str) -> tuple[float, list[float]]:
                samples: list[float] = []
                start = time.perf_counter()
                await asyncio.gather(*(one(f"u-{i}", image, samples) for i in range(total)))
                rate = total / (time.perf_counter() - start)
                await settled(mesh, total)
                return rate, samples

            await asyncio.gather(*(one(f"w-{i}", "i:1", []) for i in range(width)))
            await asyncio.gather(*(one(f"w-{i}", "i:2", []) for i in range(width)))
            cpu_of_new = CpuTimes(mesh, fleet=simulated.pid)
            new, _ = await all_of("i:1")
            cpu_new = sum(cpu_of_new.each(total).values())
            cpu = CpuTimes(mesh, fleet=simulated.pid)
            rates = [await all_of(f"i:{number}") for number in (2, 3)]
            used = cpu.each(2 * total)
            await bus.close()
    rate = sum(rate for rate, _ in rates) / len(rates)
    p50, p99 = percentiles([took for _, samples in rates for took in samples])
    return Figure(
        name="updates in place per second, 64 in flight",
        n=2 * total,
        p50=p50,
        p99=p99,
        floor=new,
        ratio=rate / new,
        floor_parts={"updates/s": rate, "new decisions/s": new, "CPU of a new decision": cpu_new},
        goal=">= 0.7 x new decisions/s",
        ok=rate >= 0.7 * new,
        cpu=used,
    )


async def settled(mesh: Mesh, groups: int, seconds: float = 300) -> None:
    """Waits until every group runs, so that what follows is measured alone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        items = (await asyncio.to_thread(mesh.http, "/v1/groups?limit=5000"))["items"]
        if sum(item["phase"] == "Running" for item in items) >= groups:
            return
        await asyncio.sleep(0.5)
    raise RuntimeError("groups do not run")
