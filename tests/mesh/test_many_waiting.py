"""Tests that of a thousand waiting groups the oldest that new capacity may help gets it soon, and no other is tried."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from moorage.bus import Bus, Incoming, subjects
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fleet import normalize_node
from moorage.merger.worker import start
from moorage.model.candidates import Answer, AppAnswer, Ask, CandidateGroup
from moorage.model.reports import NodeReport
from moorage.model.shapes import ShapedApp
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import Clusters, MergerHarness, group, revision, shape
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

pytestmark = pytest.mark.timeout(900)
WAITING = 1000


def clusters() -> Clusters:
    """Reports four full clusters, and one that is too small for all groups and changes all the time."""
    full = {f"lab/c-{i}": [node(cpu="64", requested={"cpu": "64"})] for i in range(4)}
    return full | {"lab/busy": [node(cpu="1", requested={"cpu": "1"})]}


@asynccontextmanager
async def open_merger(nats: NatsServer, bus: Bus, only: str = "") -> AsyncIterator[tuple[MergerHarness, list[str]]]:
    """Half of the shapes are of their own."""
    asked: list[str] = []
    site = MergerHarness(nats, bus, clusters, start, lambda fleet: HardwareAnswers(fleet).answer)
    try:
        await site.open(1)
        await site.hpa()
        if only:
            await site.controller("only", pinned_to(only), policy="required", steady=True, deadline_ms=2000)
        records = []
        for i in range(WAITING):
            cpu = 2000 if i % 2 else 2001 + i
            records.append(revision(f"g{i:04}", ShapedApp(name="a", shapes=[shape(cpu)]), at=f"2026-{i:06}"))
        for some in range(0, WAITING, 100):
            await site.decide(*records[some : some + 100])
            await until(lambda upto=some + 100: waiting(site) == upto, 200, "all of them wait")  # type: ignore[misc]
        await bus.subscribe(subjects.candidates("hpa"), lambda _, data: asked.append(data.decode()))
        yield site, asked
        await site.check()
    finally:
        await site.close()


def pinned_to(cluster: str) -> Callable[[Incoming], Awaitable[Answer]]:
    async def answer(incoming: Incoming) -> Answer:
        ask = msgspec.json.decode(incoming.data, type=Ask)
        groups = [CandidateGroup(mode="allow", clusters=[cluster])]
        return Answer(apps={app.name: AppAnswer(groups=groups) for app in ask.apps})

    return answer


def waiting(site: MergerHarness) -> int:
    (merger,) = site.mergers
    loop = merger.wait_loop
    return 0 if loop is None else sum(w.attempt is not None for w in loop.waiting.groups.values())


def has(site: MergerHarness, cluster: str, *nodes: NodeReport) -> None:
    rows = []
    for number, one in enumerate(nodes):
        one.name = f"n-{number}"
        rows.append(normalize_node(one)[0])
    site.report(cluster, lambda writer, cid: writer.put(cid, cluster, rows, whole=True))


async def wait_for_round(site: MergerHarness, asked: list[str]) -> None:
    """Waits until the merger has handled what changed: it asks nobody any more."""
    await until(lambda: site.mergers[0].wait_loop is not None)
    before = -1
    while before != len(asked):
        before = len(asked)
        await asyncio.sleep(0.7)


async def test_new_capacity_goes_to_the_oldest_of_a_thousand_waiting_groups(nats: NatsServer, bus: Bus) -> None:
    async with open_merger(nats, bus) as (site, asked):
        await wait_for_round(site, asked)
        asked.clear()
        # Capacity that no group could use comes and goes: one round each, and nobody is asked.
        for step in range(20):
            has(site, "lab/busy", node(cpu="1", requested={"cpu": f"{100 * (step % 5)}m"}))
            await asyncio.sleep(0.02)
        await wait_for_round(site, asked)
        assert not asked

        # Capacity for two groups, which any of them could use: the two oldest soon get it.
        began = time.monotonic()
        has(site, "lab/c-0", node(cpu="64", requested={"cpu": "58"}))
        await until(lambda: len(site.ledger.standing) == 2, 120, "two are placed")
        took = time.monotonic() - began
        await wait_for_round(site, asked)
        assert set(site.ledger.standing) == {group("g0000"), group("g0001")}
        assert len(asked) == 2, "no question more"
        assert took < 90, "half a second on a quiet machine"

        # Capacity for a hundred.
        began = time.monotonic()
        more = [node(cpu="4") for i in range(50)]
        has(site, "lab/c-1", *more)
        site.clusters = lambda: clusters() | {"lab/c-1": more}
        await until(lambda: len(site.ledger.standing) >= 52, 200, "what fits is placed")
        assert time.monotonic() - began < 150, "a quarter of a second on a quiet machine"
        assert len(asked) <= len(site.ledger.standing) + 2


async def test_capacity_that_helps_no_waiting_group_asks_nobody(nats: NatsServer, bus: Bus) -> None:
    """A controller that ignores capacity allows only full clusters."""
    async with open_merger(nats, bus, only="lab/c-0") as (site, asked):
        has(site, "lab/c-2", node(cpu="64"))
        # Once, by the leading merger: it has no answers yet that confine the groups to other clusters.
        loop = site.mergers[0].wait_loop
        await until(lambda: all(w.confined for w in loop.waiting.groups.values()), 250, "each is asked about")
        await wait_for_round(site, asked)
        assert len(asked) <= 2 * WAITING, "and why not"
        asked.clear()
        for step in range(10):
            has(site, "lab/c-2", node(cpu="64", requested={"cpu": f"{step % 3}"}))
            has(site, "lab/c-3", node(cpu="64", requested={"cpu": f"{20 - step}"}))
            await asyncio.sleep(0.05)
        await wait_for_round(site, asked)
        assert not asked
        has(site, "lab/c-0", node(cpu="64", requested={"cpu": "58"}))
        await until(lambda: len(site.ledger.standing) == 2, 120, "two are placed")
        assert set(site.ledger.standing) == {group("g0000"), group("g0001")}
        # The controller that confined them leaves, so they may use the free clusters.
        await site.bus.bucket("moorage-controllers").delete("only")
        await until(lambda: len(site.ledger.standing) > 20, 150, "what it kept away is placed")


async def test_a_long_round_is_interrupted_for_older_groups(nats: NatsServer, bus: Bus) -> None:
    """Capacity that appears during a long round goes to the oldest group that it may help."""
    async with open_merger(nats, bus, only="lab/c-0") as (site, asked):
        asked.clear()
        has(site, "lab/c-2", node(cpu="64"))
        await until(lambda: len(asked) >= 100, 150, "a round is under way")
        has(site, "lab/c-0", node(cpu="64", requested={"cpu": "58"}))
        await until(lambda: len(site.ledger.standing) == 2, 120, "two are placed")
        # The group that was being decided may have used some; all others have to wait for the oldest.
        assert group("g0000") in site.ledger.standing
        assert len(asked) < 2 * WAITING, "the others are not done yet"
