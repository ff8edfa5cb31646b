"""Reports until a controller sees them: many first ones, and a stream of small changes."""

from __future__ import annotations

import asyncio
import time

import msgspec

from moorage.bus import Bus, subjects
from moorage.bus.server import encode
from moorage.fleet import Fleet, FleetChange, FleetFollower
from moorage.model.reports import NodeReport, Report
from moorage_testkit.mesh import Mesh

from .harness import Figure, percentiles

NODES = 20


def _node(cluster: int, node: int, cpu: str = "1") -> NodeReport:
    labels = {f"feature.node.kubernetes.io/feature-{k}": f"v{(cluster + k) % 7}" for k in range(24)}
    labels["kubernetes.io/hostname"] = f"node-{cluster}-{node}"
    return NodeReport(
        name=f"node-{cluster}-{node}",
        uid=f"uid-{cluster}-{node}",
        labels=labels,
        allocatable={"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "4"},
        capacity={"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "4"},
        requested={"cpu": cpu, "memory": "8Gi"},
        pod_count=10,
    )


def _full(cluster: int) -> bytes:
    return encode(Report(session=f"s{cluster}", seq=1, kind="full", nodes=[_node(cluster, n) for n in range(NODES)]))


async def _watch(mesh: Mesh) -> tuple[Bus, Fleet, FleetFollower]:
    bus = await Bus.connect(mesh.settings, worker="admin")
    fleet = Fleet()
    follower = FleetFollower(mesh.settings.redis_url, fleet)
    await follower.start()
    return bus, fleet, follower


async def _report_all(bus: Bus, clusters: int) -> list[bytes]:
    bodies = [_full(c) for c in range(clusters)]
    gate = asyncio.Semaphore(64)

    async def one(cluster: int) -> None:
        async with gate:
            reply = await bus.request(subjects.reports(f"bench/c{cluster}", "agent"), bodies[cluster], timeout=30)
            answer = msgspec.json.decode(reply)
            if answer.get("refused") or answer.get("problem"):
                raise RuntimeError(f"refused: {answer}")

    await asyncio.gather(*(one(c) for c in range(clusters)))
    return bodies


async def first_reports(clusters: int = 1500) -> Figure:
    with Mesh() as mesh:
        bus, fleet, follower = await _watch(mesh)
        bodies = [_full(c) for c in range(clusters)]  # encoding is the agents' cost, not the mesh's
        start = time.perf_counter()
        await _report_all(bus, clusters)
        while len(fleet.ids) < clusters or int(fleet.known.sum()) < clusters:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - start
        decoder = msgspec.json.Decoder(Report)
        start = time.perf_counter()
        for body in bodies:
            decoder.decode(body)
        floor = clusters / (time.perf_counter() - start)
        await follower.stop()
        await bus.close()
    rate = clusters / seconds
    return Figure(
        name=f"first reports of {NODES} nodes with 25 labels, until a controller sees them",
        n=clusters,
        p50=rate,
        p99=rate,
        floor=floor,
        floor_parts={"decoding alone, per second": floor},
        ratio=floor / rate,
        goal=">= 300/s",
        ok=rate >= 300,
        unit="/s",
    )


async def changes(clusters: int = 500, rate: int = 200, seconds: int = 10) -> Figure:
    with Mesh() as mesh:
        bus, fleet, follower = await _watch(mesh)
        await _report_all(bus, clusters)
        while len(fleet.ids) < clusters:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        sent: dict[int, float] = {}
        samples: list[float] = []

        def changed(change: FleetChange) -> None:
            now = time.perf_counter()
            for cid in change.clusters:
                at = sent.pop(int(cid), None)
                if at is not None:
                    samples.append((now - at) * 1e3)

        fleet.on_change.append(changed)
        sequences = [1] * clusters
        start = time.perf_counter()
        tasks = set()
        for i in range(rate * seconds):
            cluster = i % clusters
            sequences[cluster] += 1
            node = _node(cluster, i % NODES, cpu=f"{2 + i // clusters}")
            body = encode(Report(session=f"s{cluster}", seq=sequences[cluster], nodes=[node]))
            sent[fleet.ids[f"bench/c{cluster}"]] = time.perf_counter()
            task = asyncio.create_task(bus.request(subjects.reports(f"bench/c{cluster}", "agent"), body, timeout=10))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(max(0, start + (i + 1) / rate - time.perf_counter()))
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        await follower.stop()
        await bus.close()
    p50, p99 = percentiles(samples)
    return Figure(
        name=f"{rate} node changes a second, each until a controller sees it",
        n=len(samples),
        p50=p50,
        p99=p99,
        goal="p99 <= 250 ms, none lost",
        ok=p99 <= 250 and len(samples) == rate * seconds,
    )
