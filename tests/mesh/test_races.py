"""Many groups and several mergers compete for scarce capacity while processes and the broker die: exactly as many groups
are placed as fit, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moorage.bus import Bus, Settings, subjects
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fleet.redis_store import FleetStore
from moorage.ledger import (
    open_ledger,
)
from moorage.merger.worker import start
from moorage.model.claims import Release, Withdrawal
from moorage.model.groups import Decide
from moorage.model.part_requests import PartGroup, SameSubtree
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp
from moorage_testkit.fleets import node, provider, two_zones, writer_of
from moorage_testkit.invariants import counting_pods
from moorage_testkit.merger_harness import MergerHarness, OpenMergers, revision, scarce, shape
from moorage_testkit.polling import until
from moorage_testkit.seeds import seeds
from moorage_testkit.servers import NatsServer, RedisServer


@pytest.mark.parametrize(("mergers", "seed"), [(1, 0), *((mergers, seed) for mergers in (2, 3) for seed in range(4))])
async def test_exactly_as_many_groups_as_fit_are_placed(open_mergers: OpenMergers, mergers: int, seed: int) -> None:
    """There is capacity for 16 pods of one core, and 40 groups come at once."""
    async with open_mergers(lambda: scarce(2), mergers) as s:
        names = [f"g{i}" for i in range(40)]
        records = [revision(n, at=f"{i:03}") for i, n in enumerate(names)]
        random.Random(seed).shuffle(records)
        await s.decide(*records)
        await until(lambda: all(s.attempts(n) for n in names), 30, "every group was tried")
        await until(lambda: len(s.ledger.standing) == 16, 60)
        await asyncio.sleep(0.3)
        assert len(s.ledger.standing) == 16
        assert counting_pods(s.ledger) == 16


async def test_the_last_parts_are_given_once(open_mergers: OpenMergers) -> None:
    """Each of two nodes has two zones with a card: by sums there is room for eight groups, by zones for four."""
    wanted = Shape(
        key="pair",
        object="Deployment/d",
        resources={"cpu": 2000, "pods": 1},
        groups=[PartGroup(suffix="_C", resources={"cpu": 2000}), PartGroup(suffix="_A", resources={"CARD": 1})],
        relations=[SameSubtree(groups=("_C", "_A"))],
    )

    def zoned() -> NodeReport:
        cards = [provider(f"numa-{z}/card", f"numa-{z}", CARD="1") for z in (0, 1)]
        return node(cpu="8", zones=two_zones("4"), providers=cards)

    async with open_mergers(lambda: {"lab/a": [zoned()], "lab/b": [zoned()]}, 3) as s:
        names = [f"g{i}" for i in range(12)]
        await s.decide(*(revision(n, ShapedApp(name="a", shapes=[wanted]), at=n) for n in names))
        await until(lambda: all(s.attempts(n) for n in names), 30, "every group was tried")
        await until(lambda: len(s.ledger.standing) == 4, 30)
        given = [
            (claim.cluster, part)
            for decision in s.ledger.standing.values()
            for claim in decision.claims
            for slot in claim.slots
            for part in slot.parts
        ]
        assert len(given) == len(set(given)) == 8
        assert {r.code for n in names for a in s.attempts(n) for r in a.reasons} <= {
            "PartShort",
            "NotEnoughClusters",
            "Overtaken",
        }
        gone = next(iter(s.ledger.standing.values()))
        committer = s.mergers[0].decider.committer
        await committer.commit(Withdrawal(group=gone.group, revision=1))
        await committer.commit(Release(claims=[claim.id for claim in gone.claims]))
        await until(
            lambda: gone.group not in s.ledger.standing and len(s.ledger.standing) == 4, 30, "another group is woken"
        )


@pytest.mark.parametrize("mergers", [2, 3])
@pytest.mark.parametrize("seed", seeds(3, 50))
async def test_groups_of_all_sizes_never_overcommit(open_mergers: OpenMergers, seed: int, mergers: int) -> None:
    rng = random.Random(seed)
    async with open_mergers(lambda: scarce(3), mergers) as s:
        records = []
        for i in range(30):
            apps = [
                ShapedApp(
                    name=n, replicas=rng.randint(1, 2), shapes=[shape(rng.choice([500, 1000, 2000]), rng.randint(1, 2))]
                )
                for n in "ab"[: rng.randint(1, 2)]
            ]
            records.append(revision(f"g{i}", *apps, at=f"{i:03}"))
        await s.decide(*records)
        await until(lambda: all(s.attempts(f"g{i}") for i in range(30)), 30)
        for record in rng.sample(records, 10):
            await s.store(record, "Terminated")
            await s.bus.publish(subjects.GROUPS_WITHDRAW, b'{"group":"%s","revision":1}' % record.group.encode())
        await until(lambda: sum(1 for r in records if s.ledger.ended_revisions.get(r.group)) >= 1, 10)


RUN = "import asyncio, sys; from moorage.bus import Settings; from {module} import main; asyncio.run(main(Settings(*sys.argv[1:])))"


@contextmanager
def worker(module: str, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-c",
        RUN.format(module=module),
        settings.nats_url,
        settings.nats_seed,
        settings.redis_url,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_killed_mergers_and_a_restarted_broker_keep_the_log_consistent(
    nats: NatsServer, redis: RedisServer, bus: Bus
) -> None:
    """Checks that in the end exactly as many groups as fit are placed, and that the log is consistent."""
    settings = Settings(nats.url, "", redis.url)
    writer = writer_of(scarce(6))
    store = FleetStore(redis.url)
    await store.rewrite(1, 1, writer)
    records = [revision(f"g{i}", at=f"{i:03}") for i in range(60)]
    site = MergerHarness(nats, bus, lambda: scarce(6), start, lambda fleet: HardwareAnswers(fleet).answer)
    hpa = await Bus.connect(nats.settings(), worker="hpa")
    try:
        site.buses.append(hpa)
        await site.hpa()
        follower = await open_ledger(bus)
        with worker("moorage.merger.worker", settings) as first, worker("moorage.merger.worker", settings) as second:
            for record in records:
                await site.store(record)
            for i, record in enumerate(records):
                with_hint = Decide(record=record)
                await bus.publish(subjects.GROUPS_DECIDE, with_hint)
                if i == 20:
                    await until(lambda: len(follower.ledger.standing) >= 1, 60)
                    first.send_signal(signal.SIGKILL)
            await until(lambda: len(follower.ledger.standing) >= 10, 60)
            nats.restart(signal.SIGKILL)
            await until(lambda: len(follower.ledger.standing) >= 20, 60)
            second.send_signal(signal.SIGKILL)
            with worker("moorage.merger.worker", settings):
                await until(lambda: len(follower.ledger.standing) == 48, 90, "everything that fits is placed")
                await asyncio.sleep(0.5)
                assert len(follower.ledger.standing) == 48
        await site.check()
    finally:
        await site.close()
        await store.close()
