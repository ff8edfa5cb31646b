"""The Placement interface beside OpenStack Placement: the same trees, queries and client, in turns, to the last byte."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from moorage.bus import Bus, subjects
from moorage.model.part_reports import ProviderReport, ZoneReport
from moorage.model.reports import NodeReport, parts_of
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application

from .decisions import fleet
from .harness import Figure, percentiles
from .placement_services import Service, peer, placement
from .placement_trees import QUERIES, groups, hosts, wide
from .workload import Decisions

HOSTS = 5_000
ROUNDS = 3
#: Requests to the worker for each of the peer's, which takes a hundred times as long.
_EACH = 5
#: Decisions a second while others allocate.
DECISIONS = 100
_encode = msgspec.json.Encoder().encode
#: Options of a mesh whose placement worker starts later, with trees.
WITHOUT = ("--workers", "placement=0")


def _beside(name: str, ours: list[float], theirs: list[float], least: float) -> Figure:
    """Returns the figure of what is to be so many times faster than the peer."""
    p50, p99 = percentiles(ours)
    found, _ = percentiles(theirs)
    return Figure(
        name=name,
        n=len(ours),
        p50=p50,
        p99=p99,
        floor_parts={"openstack-placement": found, "times faster": found / p50},
        goal=f"p50 >= {least:g} x faster than the peer, whose is {found:.4g} ms: {found / p50:.3g} x",
        ok=found >= least * p50,
    )


async def candidates() -> list[Figure]:
    """The queries with ten candidates and with all, at 5,000 hosts of 5 providers."""
    trees = hosts(HOSTS)
    figures = []
    with Mesh(*WITHOUT) as mesh:
        async with (
            placement(mesh, trees) as worker,
            peer(trees, mesh.state) as other,
            aiohttp.ClientSession() as http,
        ):
            for name, (query, least) in QUERIES.items():
                for limit, times in ((10, least), (0, 10)):
                    asked = f"{query}&limit={limit}" if limit else query
                    what = f"candidates of {HOSTS:,} hosts, {name}, {f'limit={limit}' if limit else 'without limit'}"
                    figures.append(_beside(what, *await _in_turns(http, worker, other, asked), times))
    return figures


async def _in_turns(
    http: aiohttp.ClientSession, worker: Service, other: Service, query: str
) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    theirs: list[float] = []
    _, body = await worker.candidates(http, query)
    _, same = await other.candidates(http, query)
    assert _count(body) == _count(same), (query, _count(body), _count(same))
    for _ in range(ROUNDS):
        theirs.append((await other.candidates(http, query))[0])
        ours += [(await worker.candidates(http, query))[0] for _ in range(_EACH)]
    return ours, theirs


def _count(body: bytes) -> int:
    return len(msgspec.json.decode(body)["allocation_requests"])


async def traps() -> list[Figure]:
    """Requests over interchangeable children, which the peer answers late or never."""
    trees = [
        *wide("gpu-1", 1, 8, "PGPU"),
        *wide("gpu-100", 100, 8, "VGPU"),
        *wide("net-64", 1, 64, "SRIOV_NET_VF"),
        *wide("net-63", 1, 63, "NET_BW_EGR_KILOBIT_PER_SEC"),
    ]
    asked: tuple[tuple[str, str, int, float, int], ...] = (
        ("8 groups over 8 children, 1 host", f"{groups(8, 'PGPU')}&limit=10", 10, 5, 50),
        ("8 groups over 8 children, 100 hosts", f"{groups(8, 'VGPU')}&limit=10", 10, 10, 50),
        ("16 groups over 64 providers", f"{groups(16, 'SRIOV_NET_VF')}&limit=10", 10, 200, 10),
        ("64 groups over 63 providers, no solution", groups(64, "NET_BW_EGR_KILOBIT_PER_SEC"), 0, 200, 10),
    )
    figures = []
    with Mesh(*WITHOUT) as mesh:
        async with placement(mesh, trees) as worker, aiohttp.ClientSession() as http:
            for name, query, count, most, times in asked:
                answers = [await worker.candidates(http, query) for _ in range(times)]
                assert {_count(body) for _, body in answers} == {count}, name
                samples = [took for took, _ in answers]
                figures.append(Figure.of(name, samples, f"p50 <= {most:g} ms", p50=most))
    return figures


async def _puts(
    http: aiohttp.ClientSession, service: Service, zones: itertools.cycle[str], clients: int
) -> list[float]:
    """Milliseconds each of new consumers, from so many clients that go on as soon as they are answered."""
    samples: list[float] = []

    async def client() -> None:
        for _ in range(200 // clients):
            took, status = await service.allocate(http, str(uuid.uuid4()), {next(zones): {"VCPU": 1, "MEMORY_MB": 512}})
            assert status == 204, status
            samples.append(took)

    await asyncio.gather(*(client() for _ in range(clients)))
    return samples


async def _rates(
    http: aiohttp.ClientSession, worker: Service, other: Service, zones: list[str], clients: int
) -> Figure:
    """Returns allocations a second of both, in turns."""
    services = (worker, other)
    supply = [itertools.cycle(zones) for _ in services]
    seconds = [0.0, 0.0]
    samples: list[float] = []
    for service, free in zip(services, supply, strict=True):
        await _puts(http, service, free, clients)
    for _ in range(ROUNDS):
        for number, service in enumerate(services):
            start = time.perf_counter()
            found = await _puts(http, service, supply[number], clients)
            seconds[number] += time.perf_counter() - start
            if service is worker:
                samples += found
    ours, theirs = (len(samples) / each for each in seconds)
    p50, p99 = percentiles(samples)
    return Figure(
        name=f"PUT of allocations, durable, {clients} client{'s' if clients > 1 else ''}",
        n=len(samples),
        p50=p50,
        p99=p99,
        floor=theirs,
        ratio=ours / theirs,
        floor_parts={"a second": ours, "openstack-placement, a second": theirs},
        goal=f">= 5 x the peer: {ours:.0f} beside {theirs:.0f} a second",
        ok=ours >= 5 * theirs,
    )


@asynccontextmanager
async def _decided(mesh: Mesh, rate: int) -> AsyncIterator[list[float]]:
    """A merger decides so many groups a second; what each took."""
    took: list[float] = []
    async with fleet(mesh, 100):
        bus = await Bus.connect(mesh.settings, worker="admin")
        decisions = Decisions(bus)
        await decisions.start()

        async def one(number: int) -> None:
            document = msgspec.json.encode(application(f"d-{number}", cpu="100m"))
            phase, milliseconds = await decisions.decide(f"d-{number}", document)
            assert phase == "placed", phase
            took.append(milliseconds)

        async def every() -> None:
            start = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for number in itertools.count():
                    tasks.create_task(one(number))
                    await asyncio.sleep(max(0.0, start + (number + 1) / rate - time.perf_counter()))

        task = asyncio.create_task(every())
        try:
            yield took
            if task.done():
                await task
        finally:
            task.cancel()
            await asyncio.wait([task])
            await bus.close()


async def writes() -> list[Figure]:
    trees = hosts(200)
    zones = [tree.uuid for tree in trees if "VCPU" in tree.inventories]
    with Mesh(*WITHOUT) as mesh, tempfile.TemporaryDirectory() as directory:
        async with (
            placement(mesh, trees) as worker,
            peer(trees, Path(directory)) as other,
            aiohttp.ClientSession() as http,
        ):
            figures = [await _rates(http, worker, other, zones, clients) for clients in (1, 8)]
            async with _decided(mesh, DECISIONS) as took:
                start = time.perf_counter()
                beside = await _rates(http, worker, other, zones, 1)
                rate = len(took) / (time.perf_counter() - start)
    beside.name += f" while a merger decides {rate:.0f}/s"
    beside.goal = beside.goal.replace("5 x", "2 x")
    beside.ok = beside.ratio >= 2
    return [*figures, beside]


def _reported_node(cluster: int, number: int) -> NodeReport:
    """A node with two zones and a card in each, as the agent of its cluster reports it."""
    labels = {"COMPUTE_VOLUME_MULTI_ATTACH": "true"} if number % 10 == 0 else {}
    used = {"cpu": "1", "memory": "1Gi"} if number % 3 == 0 else {}
    return NodeReport(
        name=f"node-{cluster}-{number}",
        labels=labels,
        allocatable={"cpu": "32", "memory": "64Gi", "pods": "110"},
        requested=used,
        zones=[ZoneReport(id=zone, inventories={"cpu": "16", "memory": "32Gi"}) for zone in (0, 1)],
        providers=[ProviderReport(id=f"numa-{z}/fpga", parent=f"numa-{z}", inventories={"FPGA": "1"}) for z in (0, 1)],
        in_use={"numa-0": used} if used else {},
    )


class _Agents:
    """Agents of clusters that report their nodes once, and then that nothing changed."""

    def __init__(self, bus: Bus, clusters: int, nodes: int) -> None:
        self._bus, self._clusters, self._nodes = bus, clusters, nodes
        self._seq = 0

    async def report(self) -> None:
        for cluster in range(self._clusters):
            rows = [_encode(_reported_node(cluster, number)) for number in range(self._nodes)]
            parts = parts_of({"nodes": rows})
            for number, part in enumerate(parts):
                await self._say(cluster, b'"kind":"full","part":[%d,%d]%b' % (number, len(parts), part))

    async def keep_alive(self) -> None:
        while True:
            self._seq += 1
            for cluster in range(self._clusters):
                await self._say(cluster, b'"kind":"delta"')
                await asyncio.sleep(1.5 / self._clusters)

    async def _say(self, cluster: int, body: bytes) -> None:
        envelope = b'{"id":"%b","session":"s","seq":%d,%b}' % (uuid.uuid4().hex.encode(), self._seq, body)
        reply = await self._bus.request(subjects.reports(f"bench/c{cluster}", "agent"), envelope, timeout=60)
        answer = msgspec.json.decode(reply)
        assert not (answer.get("refused") or answer.get("problem")), answer


def _peak_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


async def reported(clusters: int = 100, nodes: int = 1_000) -> list[Figure]:
    """The queries over nodes and parts that agents report through the broker and Redis, the start, and the memory."""
    figures = []
    with Mesh(*WITHOUT) as mesh:
        bus = await Bus.connect(mesh.settings, worker="admin")
        agents = _Agents(bus, clusters, nodes)
        await agents.report()
        beats = asyncio.create_task(agents.keep_alive())
        simple = f"{QUERIES['simple'][0]}&limit=10"
        start = time.perf_counter()
        async with placement(mesh, []) as worker, aiohttp.ClientSession() as http:
            while _count((await worker.candidates(http, simple))[1]) < 10:  # noqa: ASYNC110 - it cannot signal
                await asyncio.sleep(0.05)
            seconds = time.perf_counter() - start
            every = (await worker.candidates(http, QUERIES["root_required"][0] + "&limit=100000"))[1]
            assert _count(every) >= clusters * nodes // 10, "all nodes are there"
            for name, (query, _) in QUERIES.items():
                samples = [(await worker.candidates(http, f"{query}&limit=10"))[0] for _ in range(30)]
                what = f"candidates of {clusters * nodes:,} reported hosts, {name}, limit=10"
                figures.append(Figure.of(what, samples, "p50 <= 60 ms", p50=60))
            memory = _peak_megabytes(worker.pid)
        beats.cancel()
        await asyncio.wait([beats])
        await bus.close()
    figures.append(Figure.of("start until the first answer over reported hosts", [seconds * 1e3], "<= 30 s", p50=30e3))
    figures.append(
        Figure(
            name="memory of the placement worker over reported hosts, most",
            n=1,
            p50=memory,
            p99=memory,
            goal="<= 800 MB",
            ok=memory <= 800,
            unit="MB",
        )
    )
    return figures
