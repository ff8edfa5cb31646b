"""Runs mergers and controllers in one process over a real broker, to test races and failures of decisions. Each has a
connection, a fleet and a ledger of its own, and reports reach them all. The workers under test are given, not imported, as
this package is below them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from moorage.bus import Bus, Incoming, subjects
from moorage.fleet import Fleet, FleetWriter
from moorage.ledger import Ledger, LedgerFollower, keep_capacity, open_ledger
from moorage.model.attempts import Attempt
from moorage.model.candidates import Answer, AppAnswer, Ask, CandidateGroup
from moorage.model.controllers import Controller
from moorage.model.events import Event
from moorage.model.groups import Decide, GroupRecord, Revision
from moorage.model.names import group_tokens, token
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp

from .fleets import node, writer_of
from .invariants import read_log, room_in, violations
from .polling import until
from .servers import NatsServer


class DecidingPart(Protocol):
    follower: LedgerFollower
    controllers: dict[str, Controller]

    @property
    def ledger(self) -> Ledger: ...


class Started(Protocol):
    @property
    def decider(self) -> DecidingPart: ...

    @property
    def wait_loop(self) -> Any: ...


StartMerger = Callable[[Bus, Fleet], Awaitable[Started]]
MakeHpa = Callable[[Fleet], Callable[[Ask], Answer]]

Clusters = dict[str, list[NodeReport]]


def group(name: str) -> str:
    return f"default/{name}/v1/default"


def shape(cpu: int = 1000, count: int = 1, template: str = "t", **more: Any) -> Shape:
    return Shape(
        key=f"{cpu}x{count}{more}",
        object="Deployment/x",
        count=count,
        resources={"cpu": cpu, "pods": 1},
        template=template,
        **more,
    )


def revision(name: str, *apps: ShapedApp, number: int = 1, at: str = "") -> Revision:
    all_apps = list(apps) or [ShapedApp(name="a", shapes=[shape()])]
    return Revision(group=group(name), revision=number, tenant="default", apps=all_apps, instantiated=at)


class MergerHarness:
    """Mergers and hpa in one process, each with a connection, a fleet and a ledger of its own; reports reach them all."""

    def __init__(
        self, nats: NatsServer, bus: Bus, clusters: Callable[[], Clusters], start: StartMerger, hpa: MakeHpa
    ) -> None:
        self.nats, self.bus, self.clusters = nats, bus, clusters
        self._start, self._hpa = start, hpa
        self.writers: list[FleetWriter] = []
        self.buses: list[Bus] = []
        self.mergers: list[Started] = []
        self.events: list[Event] = []

    async def open(self, mergers: int) -> None:
        await self.bus.subscribe(
            "moorage.events.decisions.>", lambda _, data: self.events.append(msgspec.json.decode(data, type=Event))
        )
        for _ in range(mergers):
            await self.merger()

    async def connect(self, worker: str) -> tuple[Bus, Fleet]:
        bus = await Bus.connect(self.nats.settings(), worker=worker)
        self.buses.append(bus)
        writer = writer_of(self.clusters())
        self.writers.append(writer)
        return bus, writer.fleet

    async def merger(self) -> Started:
        bus, fleet = await self.connect("merger")
        self.mergers.append(await self._start(bus, fleet))
        return self.mergers[-1]

    async def hpa(self) -> None:
        bus, fleet = await self.connect("hpa")
        keep_capacity(await open_ledger(bus), fleet)
        hpa = self._hpa(fleet)

        async def answer(incoming: Incoming) -> Answer:
            return hpa(msgspec.json.decode(incoming.data, type=Ask))

        await self.controller("hpa", answer, bus, policy="required")

    async def controller(
        self, name: str, answer: Callable[[Incoming], Awaitable[Any]] | None, bus: Bus | None = None, **fields: Any
    ) -> None:
        if answer is not None:
            await (bus or self.bus).serve(subjects.candidates(name), answer, limit=512)
        # Tests of deadlines give one; elsewhere a busy machine must not make an answer late.
        registered = Controller(name=name, **{"deadline_ms": 5000, **fields})
        await self.bus.bucket("moorage-controllers").put(token(name), msgspec.json.encode(registered))
        await until(lambda: all(m.decider.controllers.get(name) == registered for m in self.mergers))

    def report(self, cluster: str, change: Callable[[FleetWriter, int], Any]) -> None:
        for writer in self.writers:
            change(writer, writer.fleet.ids[cluster])

    async def store(self, record: Revision, state: str = "Instantiated") -> None:
        stored = GroupRecord(group=record.group, revision=record.revision, state=state, resolved=record)  # type: ignore[arg-type]
        await self.bus.bucket("moorage-groups").put(group_tokens(record.group), msgspec.json.encode(stored))

    async def decide(self, *records: Revision) -> None:
        for record in records:
            await self.store(record)
        for record in records:
            await self.bus.publish(subjects.GROUPS_DECIDE, Decide(id=f"hint {record.group}", record=record))

    def attempts(self, name: str) -> list[Attempt]:
        events = [e for e in self.events if e.subject.endswith("." + group_tokens(group(name)))]
        return [msgspec.json.decode(e.data, type=Attempt) for e in events]

    async def attempt(self, name: str, phase: str, seconds: float = 40) -> Attempt:
        await until(lambda: any(a.phase == phase for a in self.attempts(name)), seconds, f"{name} {phase}")
        return [a for a in self.attempts(name) if a.phase == phase][-1]

    async def simulate(self, record: Revision) -> Attempt:
        data = await self.bus.request(subjects.MERGER_SIMULATE, Decide(record=record), timeout=30)
        return msgspec.json.decode(data, type=Attempt)

    @property
    def ledger(self) -> Ledger:
        return max((m.decider.ledger for m in self.mergers), key=lambda ledger: ledger.seq)

    async def check(self) -> None:
        """Asserts that the log never claims more than there is."""
        ledger, commits = await read_log(self.bus)
        room = room_in(writer_of(self.clusters()).fleet)
        assert violations(commits, room, ledger) == []

    async def close(self) -> None:
        for bus in self.buses:
            await bus.close()


#: Opens mergers on these clusters for one test: `async with open_mergers(clusters, mergers=2) as site`.
OpenMergers = Callable[..., AbstractAsyncContextManager[Any]]


def three_clusters() -> Clusters:
    return {f"lab/c-{i}": [node(cpu="4"), node(cpu="4")] for i in range(3)}


def scarce(nodes: int = 2) -> Clusters:
    """Four clusters with nodes of two cores."""
    return {f"lab/c-{i}": [node(cpu="2") for _ in range(nodes)] for i in range(4)}


def allow_only(*names: str, count: int | None = None) -> Callable[[Incoming], Awaitable[Answer]]:
    async def answer(incoming: Incoming) -> Answer:
        ask = msgspec.json.decode(incoming.data, type=Ask)
        sets = [CandidateGroup(mode="allow", clusters=list(names), count=count)]
        return Answer(cause=ask.id, apps={app.name: AppAnswer(groups=sets) for app in ask.apps})

    return answer


async def silent(_: Incoming) -> None:
    """Answers no ask in time."""
    await asyncio.sleep(30)
