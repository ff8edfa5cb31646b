"""Runs inventories on a broker and a Redis, reports like agents, and follows the fleet."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from moorage.bus import Bus, NoAnswer, Settings, subjects
from moorage.fleet import Fleet, FleetFollower
from moorage.model.events import Event
from moorage.model.names import cluster_tokens
from moorage.model.reports import NodeReport, Report, ReportReply
from moorage_testkit.fleets import node

START = "import asyncio; from moorage.bus import Settings; from moorage.inventory.worker import main; asyncio.run(main(Settings.from_env()))"


class InventoryHarness:
    """A mesh of inventories and followers only; tests send the reports of agents."""

    def __init__(self, bus: Bus, settings: Settings, main: Callable[[Settings], Coroutine[Any, Any, None]]) -> None:
        self.bus, self.settings, self._main = bus, settings, main
        self.tasks: list[asyncio.Task[None]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.followers: list[FleetFollower] = []
        self.events: list[Event] = []
        self.seqs: dict[str, int] = {}
        self.session = itertools.count()

    async def listen(self) -> None:
        """Records the events of the fleet."""
        await self.bus.subscribe(
            "moorage.events.fleet.>", lambda _, data: self.events.append(msgspec.json.decode(data, type=Event))
        )

    async def inventory(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._main(self.settings))
        self.tasks.append(task)
        return task

    def process(self, **more: str) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            **more,
            "MOORAGE_NATS_URL": self.settings.nats_url,
            "MOORAGE_REDIS_URL": self.settings.redis_url,
        }
        process = subprocess.Popen([sys.executable, "-c", START], env=env)
        self.processes.append(process)
        return process

    async def follow(self) -> Fleet:
        fleet = Fleet()
        follower = FleetFollower(self.settings.redis_url, fleet)
        self.followers.append(follower)
        await asyncio.wait_for(follower.start(), 60)
        return fleet

    async def stored_events(self, cluster: str) -> list[tuple[int, Event]]:
        """Returns the events about the states of a cluster, with their sequence numbers."""
        found: list[tuple[int, Event]] = []
        log = self.bus.log("MOORAGE_EVENTS")
        tail = await log.follow(1, lambda seq, data: found.append((seq, msgspec.json.decode(data, type=Event))))
        await tail.stop()
        prefix, suffix = f"moorage.events.fleet.*.{cluster_tokens(cluster)}".split("*")
        of = [(n, e) for n, e in found if e.subject.startswith(prefix) and e.subject.endswith(suffix)]
        return [(n, e) for n, e in of if ".changed." not in e.subject]

    async def until_events(self, cluster: str, *wanted: tuple[str, Any]) -> list[tuple[int, Event]]:
        """Waits until exactly these events are stored, once each."""
        end = time.monotonic() + 60
        while True:
            try:
                stored = await self.stored_events(cluster)
            except NoAnswer:  # the broker was about to die when it was asked
                assert time.monotonic() < end
                continue
            found = [(e.subject.split(".")[3], msgspec.json.decode(e.data)) for _, e in stored]
            found = [(change, {} if change == "stale" else data) for change, data in found]
            if found == list(wanted) or time.monotonic() > end:
                assert found == list(wanted)
                assert len({e.id for _, e in stored}) == len(stored)
                return stored
            await asyncio.sleep(0.05)

    async def report(self, cluster: str, session: str, kind: str = "delta", **more: Any) -> ReportReply:
        """Reports like an agent: again until there is an answer, and in full if asked to."""
        self.seqs[session] = seq = self.seqs.get(session, -1) + 1
        report = Report(session=session, seq=seq, kind=kind, as_of=time.time(), **more)  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while True:
            try:
                answer = await self.bus.request(subjects.reports(cluster, "agent"), report, timeout=2)
                if b'"problem"' not in answer:
                    return msgspec.json.decode(answer, type=ReportReply)
            except NoAnswer:
                pass
            assert time.monotonic() < end, "nobody takes reports"
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for process in self.processes:  # first, so that no process outlives an error below
            process.kill()
            process.wait()
        for follower in self.followers:
            await follower.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def nodes(count: int = 3, cpu: str = "4") -> list[NodeReport]:
    return [node(f"n-{i}", cpu=cpu, memory="8Gi") for i in range(count)]


def free(fleet: Fleet, cluster: str, name: str, resource: str = "cpu") -> int | None:
    cid = fleet.ids.get(cluster)
    row = None if cid is None else fleet.row_of(cid, name)
    column = fleet.free(resource)
    return None if row is None or column is None else int(column[row])


def content(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cid in fleet.ids.items():
        rows = {}
        for row_name, row in fleet.places(cid).items():
            amounts = {n: (int(r.allocatable[row]), int(r.free[row])) for n, r in fleet.stored.items()}
            labels = fleet.label_sets[fleet.labelset[row]]
            rows[row_name] = (bool(fleet.usable[row]), labels, {n: a for n, a in amounts.items() if any(a)})
        found[name] = (cid, fleet.state(cid), fleet.cluster_labels(cid), rows)
    return found
