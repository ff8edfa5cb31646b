"""Displaced pods until the log has their cluster's settlement."""

from __future__ import annotations

import asyncio
import time

import msgspec

from moorage.bus import Bus, subjects
from moorage.bus.server import encode
from moorage.ledger import Changes, LedgerFollower, open_ledger
from moorage.model.claims import Commit, Settlement
from moorage.model.reports import NodeReport, PodReport, Report
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application

from .harness import Figure
from .workload import Decisions

NODES = ("n-0", "n-1")


class _Cluster:
    """A cluster of two nodes as its agent reports it. It has two pods of one claim, which are on one node or the other."""

    def __init__(self, number: int) -> None:
        self.name, self.session, self.seq = f"bench/c{number}", f"s{number}", 0
        self.claim, self.turn = "", 0

    def report(self) -> bytes:
        self.seq += 1
        if self.seq == 1:
            room = {"cpu": "8", "memory": "64Gi", "pods": "110"}
            nodes = [NodeReport(name=name, uid=name, allocatable=room, capacity=room) for name in NODES]
            return encode(Report(session=self.session, seq=1, kind="full", nodes=nodes))
        if not self.claim:
            return encode(Report(session=self.session, seq=self.seq))
        self.turn += 1
        node = NODES[self.turn % 2]
        pods = [
            PodReport(
                uid=f"{self.claim}-{i}", namespace="a", name=f"p{i}", node=node, phase="Running", claim=self.claim
            )
            for i in range(2)
        ]
        return encode(Report(session=self.session, seq=self.seq, pods=pods))


async def _send(bus: Bus, cluster: _Cluster) -> None:
    answer = msgspec.json.decode(
        await bus.request(subjects.reports(cluster.name, "agent"), cluster.report(), timeout=30)
    )
    if answer.get("refused") or answer.get("problem") or answer.get("resync"):
        raise RuntimeError(f"refused: {answer}")


async def _place_all(bus: Bus, ledger: LedgerFollower, clusters: dict[str, _Cluster]) -> None:
    """Gives each cluster a group with two pods that take a node each."""
    decisions = Decisions(bus)
    await decisions.start()

    async def place(number: int) -> None:
        document = application(f"g{number}", cpu="5", pods=2)
        phase, _ = await decisions.decide(f"g{number}", msgspec.json.encode(document))
        if phase != "placed":
            raise RuntimeError(f"g{number} is {phase}")

    for first in range(0, len(clusters), 50):
        await asyncio.gather(*(_send(bus, cluster) for cluster in clusters.values()))  # else they are stale soon
        await asyncio.gather(*(place(number) for number in range(first, min(first + 50, len(clusters)))))
    while len(ledger.ledger.standing) < len(clusters):  # noqa: ASYNC110 - the condition cannot signal
        await asyncio.sleep(0.01)
    for ident, active in ledger.ledger.claims.items():
        clusters[active.claim.cluster].claim = ident


async def settlements(clusters: int = 200, rate: int = 200, seconds: int = 10) -> Figure:
    sent: dict[str, float] = {}
    samples: list[float] = []

    def folded(commit: Commit, _changes: Changes) -> None:
        now = time.perf_counter()
        moved = (settlement.cluster for settlement in commit.entries_of(Settlement))
        samples.extend((now - sent.pop(cluster)) * 1e3 for cluster in moved if cluster in sent)

    with Mesh() as mesh:
        bus = await Bus.connect(mesh.settings, worker="admin")
        every = {cluster.name: cluster for cluster in map(_Cluster, range(clusters))}
        for cluster in every.values():
            await _send(bus, cluster)
        ledger = await open_ledger(bus)
        await _place_all(bus, ledger, every)
        ledger.on_fold.append(folded)
        order = list(every.values())
        start = time.perf_counter()
        tasks = set()
        for i in range(rate * seconds):
            cluster = order[i % clusters]
            sent[cluster.name] = time.perf_counter()
            task = asyncio.create_task(_send(bus, cluster))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(max(0, start + (i + 1) / rate - time.perf_counter()))
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        await bus.close()
    figure = Figure.of(
        f"{rate} displaced pods a second, each until its settlement is in the log",
        samples,
        "p99 <= 100 ms, none lost",
        p99=100,
    )
    figure.ok = figure.ok and len(samples) == rate * seconds
    return figure
