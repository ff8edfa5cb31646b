"""All readers of the decision log end with the same ledger and capacity: after they missed a purge, with an unreadable
snapshot, or when they start late."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from moorage.bus import Bus
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.ledger import LOG, LedgerLost, open_ledger, read_snapshot, write_snapshot
from moorage.merger import snapshots
from moorage.merger.worker import start
from moorage.mesh.stores import SNAPSHOTS
from moorage.model.claims import Commit, Release, Withdrawal
from moorage_testkit.committers import CommitterHarness, pod_on
from moorage_testkit.fleets import node
from moorage_testkit.invariants import read_log
from moorage_testkit.merger_harness import Clusters, MergerHarness, group, revision
from moorage_testkit.mesh_client import eventually
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

Join = Callable[[], Awaitable[CommitterHarness]]


def clusters() -> Clusters:
    return {f"lab/c-{i}": [node(cpu="2"), node(cpu="2")] for i in range(4)}


@pytest_asyncio.fixture
async def join(nats: NatsServer, bus: Bus) -> AsyncIterator[Join]:
    """Starts another reader and writer of the log."""
    joined: list[CommitterHarness] = []

    async def one() -> CommitterHarness:
        joined.append(await CommitterHarness(nats, clusters).open())
        return joined[-1]

    yield one
    for party in joined:
        await party.bus.close()


async def filled(party: CommitterHarness, names: str) -> None:
    for i, name in enumerate(names):
        await party.commit(pod_on(name, f"lab/c-{i % 4}", f"n-{i // 4 % 2}"))


def have_equal_ledgers(one: CommitterHarness, other: CommitterHarness) -> bool:
    ledger, other_ledger = one.follower.ledger, other.follower.ledger
    known = (
        ledger.seq == other_ledger.seq
        and ledger.claims == other_ledger.claims
        and ledger.standing == other_ledger.standing
    )
    return known and one.free == other.free


async def test_a_follower_reloads_after_a_purge_it_missed(bus: Bus, join: Join) -> None:
    party, reader = await join(), await join()
    await filled(party, "abcd")
    await until(lambda: have_equal_ledgers(party, reader))
    await reader.follower.stop()
    await party.committer.commit(Withdrawal(group=group("a"), revision=1))
    await party.committer.commit(Release(claims=["claim-a"]))
    await filled(party, "efghi")
    for _ in range(2):
        await write_snapshot(bus, party.follower.ledger)
        await party.commit(pod_on(f"g{party.follower.ledger.seq}", "lab/c-3", "n-1"))
    assert await bus.log(LOG).first() > reader.follower.ledger.seq + 1
    assert not have_equal_ledgers(party, reader)
    _, commits = await read_log(bus)
    reader.follower.fold(*commits[-1])  # the first delivery after it subscribed again
    await until(lambda: have_equal_ledgers(party, reader), what="the same claims and the same room")
    # It continues from there, and can commit.
    await reader.commit(pod_on("last", "lab/c-0", "n-1"))
    await until(lambda: have_equal_ledgers(party, reader) and group("last") in party.follower.ledger.standing)


async def test_a_commit_is_not_folded_after_a_gap(bus: Bus, join: Join) -> None:
    party, reader = await join(), await join()
    seen: list[int] = []
    reader.follower.on_fold.append(lambda _, changes: seen.append(changes.seq))
    await reader.follower.stop()
    await filled(party, "abcdef")
    _, commits = await read_log(bus)
    assert reader.follower.fold(*commits[2]) is False
    await until(lambda: have_equal_ledgers(party, reader))
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_a_log_that_begins_after_the_snapshot_is_refused(bus: Bus, join: Join) -> None:
    party, reader = await join(), await join()
    await reader.follower.stop()
    await filled(party, "abcdef")
    await bus.log(LOG).purge(4)
    with pytest.raises(LedgerLost, match="begins at 5"):
        await open_ledger(bus)
    # A reader that was away meanwhile ends, too, with the state that it had.
    reader.follower.fold(6, Commit())
    await asyncio.wait_for(reader.bus.closed.wait(), 30)
    assert reader.follower.ledger.seq == 0 and not party.bus.closed.is_set()
    await write_snapshot(bus, party.follower.ledger)
    assert have_equal_ledgers(party, await join())


@pytest.mark.parametrize("junk", [b"", b"\xff\xfe", b"\x81\xa3seq\xa3one", b'{"seq": 6}'])
async def test_an_unreadable_snapshot_is_replaced_by_an_older_one_and_the_log(
    bus: Bus, join: Join, junk: bytes
) -> None:
    party = await join()
    await filled(party, "abc")
    await write_snapshot(bus, party.follower.ledger)
    await filled(party, "def")
    newest = await write_snapshot(bus, party.follower.ledger)
    await bus.objects(SNAPSHOTS).put(newest, junk)
    await filled(party, "gh")
    assert await bus.log(LOG).first() == 4, "the log is there from the older one on"
    assert (await read_snapshot(bus)).seq == 3
    assert have_equal_ledgers(party, await join())


async def stored(bus: Bus, seq: int) -> bool:
    """Stores it as the newest of two, since older ones are deleted."""
    names = await bus.objects(SNAPSHOTS).names()
    return len(names) <= 2 and names[-1:] == [f"ledger-{seq:020d}"]


async def test_a_late_merger_loads_the_snapshot_and_the_rest_of_the_log(
    nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", 3)
    site = MergerHarness(nats, bus, clusters, start, lambda fleet: HardwareAnswers(fleet).answer)
    try:
        await site.open(1)
        await site.hpa()
        await until(lambda: site.mergers[0].wait_loop is not None, what="it holds the lease")
        for upto in (3, 6, 9):
            for i in range(upto - 3, upto):  # one after the other, so that each is a commit of its own
                await site.decide(revision(f"g{i}", at=f"{i:03}"))
                await site.attempt(f"g{i}", "Placed")
            await eventually(functools.partial(stored, bus, upto), 40, f"the log up to {upto} is a snapshot")
        await site.decide(revision("after", at="9"))
        await site.attempt("after", "Placed")
        assert await bus.log(LOG).first() == 7, "what the older snapshot holds is purged"
        late = await site.merger()
        first = site.mergers[0].decider
        assert late.decider.ledger.claims == first.ledger.claims
        assert late.decider.ledger.standing == first.ledger.standing
        first_free, late_free = (site.writers[i].fleet.free("cpu") for i in (0, -1))
        assert first_free is not None and late_free is not None
        assert first_free.tolist() == late_free.tolist() and sum(late_free) == 6000
        await site.check()
    finally:
        await site.close()
