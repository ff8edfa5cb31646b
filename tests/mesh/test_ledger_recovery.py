"""Followers of the decision log load snapshots, skip unreadable ones, and end after a failed callback."""

from __future__ import annotations

import asyncio

import pytest

from moorage.bus import Bus
from moorage.ledger import (
    Changes,
    Ledger,
    LedgerLost,
    newest_snapshot,
    open_ledger,
    read_snapshot,
    snapshots,
    write_snapshot,
)
from moorage.model.claims import Commit, Decision
from moorage_testkit.committers import CommitterHarness, pod_on
from moorage_testkit.invariants import read_log
from moorage_testkit.merger_harness import group, scarce
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer


async def test_a_follower_starts_from_the_snapshot_and_survives_a_purge(nats: NatsServer, bus: Bus) -> None:
    party, reader = await CommitterHarness(nats, scarce).open(), await CommitterHarness(nats, scarce).open()
    for i in range(6):
        await party.commit(pod_on(f"g{i}", f"lab/c-{i % 4}", f"n-{i // 4}"))
        await write_snapshot(bus, party.follower.ledger)
    assert await bus.log("MOORAGE_LEDGER").first() == 6, "what comes before the second-newest snapshot is purged"
    assert len([n for n in await bus.objects("moorage-snapshots").names() if n.startswith("ledger-")]) == 2
    late = await CommitterHarness(nats, scarce).open()
    assert late.follower.ledger.claims == party.follower.ledger.claims
    await until(lambda: reader.follower.ledger.seq == 6)
    await late.commit(pod_on("more", "lab/c-3", "n-1"))
    await until(lambda: group("more") in reader.follower.ledger.standing)
    # A reader that was away while the log was purged past it loads again.
    reader.follower.ledger.seq = 2
    _, commits = await read_log(bus)
    reader.follower.fold(*commits[-1])
    await until(lambda: reader.follower.ledger.seq == 7)
    assert reader.follower.ledger.claims == late.follower.ledger.claims
    for p in (party, reader, late):
        await p.bus.close()


async def two_snapshots(party: CommitterHarness) -> list[str]:
    for i in range(2):
        await party.commit(pod_on(f"g{i}"))
        await write_snapshot(party.bus, party.follower.ledger)
    await party.commit(pod_on("g2", "lab/c-1"))
    return await party.bus.objects("moorage-snapshots").names()


async def damage(bus: Bus, name: str, how: str) -> None:
    js = bus.nc.jetstream()
    store = await js.object_store("moorage-snapshots")
    info = await store.get_info(name)
    chunk = f"$O.moorage-snapshots.C.{info.nuid}"
    found = await js.get_last_msg("OBJ_moorage-snapshots", chunk)
    if how != "no snapshot":
        await js.delete_msg("OBJ_moorage-snapshots", found.seq or 0)
    if how == "damaged":
        await js.publish(chunk, b"x" * len(found.data or b""))
    if how == "no snapshot":
        await store.put(name, b"none")


@pytest.mark.parametrize("how", ["damaged", "missing", "no snapshot"])
async def test_an_unreadable_snapshot_is_skipped(
    nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(snapshots, "READ_TIMEOUT", 3.0)
    party = await CommitterHarness(nats, scarce).open()
    older, newest = await two_snapshots(party)
    assert await newest_snapshot(bus) == 2
    await damage(bus, newest, how)
    assert (await read_snapshot(bus)).seq == 1
    late = await CommitterHarness(nats, scarce).open()
    assert late.follower.ledger.claims == party.follower.ledger.claims
    # Without a snapshot and with a truncated log nothing is invented, and the error names what the operator can do.
    await damage(bus, older, how)
    with pytest.raises(LedgerLost, match="moorage restore"):
        await open_ledger(bus)
    # A follower that has to reload ends.
    late.follower._reload("a gap")
    await asyncio.wait_for(late.bus.closed.wait(), 60)
    assert not party.bus.closed.is_set()
    for p in (party, late):
        await p.bus.close()


async def test_a_failed_callback_of_a_commit_ends_the_process(nats: NatsServer, bus: Bus) -> None:
    """Callbacks after the failed one, such as the capacity, would be wrong for ever."""

    def cannot(commit: Commit, _changes: Changes) -> None:
        if any(d.id == "too much" for d in commit.entries_of(Decision)):
            raise KeyError("too much")

    writer, *others = [await CommitterHarness(nats, scarce).open() for _ in range(3)]
    for party in others:
        party.follower.on_fold.insert(0, cannot)
    reader, committer = others
    await writer.commit(pod_on("first"))
    await committer.follower.wait(1)
    pending = asyncio.ensure_future(committer.commit(pod_on("too much")))
    for party in others:
        await asyncio.wait_for(party.bus.closed.wait(), 30)
    await writer.commit(pod_on("last", at="n-1"))
    await asyncio.sleep(0.1)
    assert reader.follower.ledger.seq == 2, "nothing more is folded"
    assert not pending.done() and not writer.bus.closed.is_set()
    pending.cancel()
    for party in (writer, *others):
        await party.bus.close()


async def test_a_failed_callback_of_a_reload_ends_the_process(nats: NatsServer, bus: Bus) -> None:
    party = await CommitterHarness(nats, scarce).open()

    def cannot(_ledger: Ledger) -> None:
        raise KeyError("in part")

    party.follower.on_reload.insert(0, cannot)
    party.follower._reload("a gap")
    await asyncio.wait_for(party.bus.closed.wait(), 30)
    assert party.follower.broken
    await party.bus.close()


async def test_nothing_is_committed_after_a_partial_fold(nats: NatsServer, bus: Bus) -> None:
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]

    def cannot(_commit: Commit, _changes: Changes) -> None:
        raise KeyError("in part")

    first.follower.on_fold.insert(0, cannot)
    await second.commit(pod_on("other", cpu=2000))
    await asyncio.wait_for(first.bus.closed.wait(), 30)
    assert first.capacity.fleet.free("cpu")[0] == 2000, "the fold did not reach the capacity"  # type: ignore[index]
    pending = asyncio.ensure_future(first.commit(pod_on("ours")))
    await asyncio.sleep(0.2)
    assert not pending.done()
    assert await bus.log("MOORAGE_LEDGER").last() == 1
    pending.cancel()
    for party in (first, second):
        await party.bus.close()
