"""Many groups and several mergers on scarce room, also while processes and the broker die: exactly as many are placed as
fit, never more, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from moorage.bus import Bus, Conflict, NoAnswer, Settings, subjects
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fleet.redis_store import FleetStore
from moorage.ledger import (
    Changes,
    Committed,
    Dropped,
    Ledger,
    LedgerLost,
    committer,
    newest_snapshot,
    open_ledger,
    read_snapshot,
    snapshots,
    write_snapshot,
)
from moorage.merger.worker import start
from moorage.model.claims import Commit, Decision, Reassignment, Release, Withdrawal
from moorage.model.groups import Decide
from moorage.model.shapes import ShapedApp
from moorage_testkit.committers import CommitterHarness, at_the_log, pod_on
from moorage_testkit.fleets import node, writer_of
from moorage_testkit.invariants import counting_pods, read_log, violations
from moorage_testkit.merger_harness import Clusters, MergerHarness, group, revision, shape
from moorage_testkit.polling import until
from moorage_testkit.seeds import seeds
from moorage_testkit.servers import NatsServer, RedisServer


@asynccontextmanager
async def opened(nats: NatsServer, bus: Bus, nodes: int, mergers: int) -> AsyncIterator[MergerHarness]:
    site = MergerHarness(nats, bus, lambda: scarce(nodes), start, lambda fleet: HardwareAnswers(fleet).answer)
    try:
        await site.open(mergers)
        await site.hpa()
        yield site
        await site.check()
    finally:
        await site.close()


def scarce(nodes: int = 2) -> Clusters:
    return {f"lab/c-{i}": [node(cpu="2") for _ in range(nodes)] for i in range(4)}


@pytest.mark.parametrize(("mergers", "turn"), [(1, 0), *((mergers, turn) for mergers in (2, 3) for turn in range(4))])
async def test_exactly_as_many_as_fit(nats: NatsServer, bus: Bus, mergers: int, turn: int) -> None:
    """Room for 16 pods of one core, 40 groups at once."""
    async with opened(nats, bus, 2, mergers) as s:
        names = [f"g{i}" for i in range(40)]
        records = [revision(n, at=f"{i:03}") for i, n in enumerate(names)]
        random.Random(turn).shuffle(records)
        await s.decide(*records)
        await until(lambda: all(s.attempts(n) for n in names), 30, "every group was tried")
        await until(lambda: len(s.ledger.standing) == 16, 10)
        await asyncio.sleep(0.3)
        assert len(s.ledger.standing) == 16
        assert counting_pods(s.ledger) == 16


@pytest.mark.parametrize("mergers", [2, 3])
@pytest.mark.parametrize("seed", seeds(3, 50))
async def test_groups_of_all_sizes_never_share_room(nats: NatsServer, bus: Bus, seed: int, mergers: int) -> None:
    rng = random.Random(seed)
    async with opened(nats, bus, 3, mergers) as s:
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


# -- committers -------------------------------------------------------------------------------------------------------


ROOM = {f"lab/c-{i}": {f"n-{j}": {"cpu": 2000, "pods": 110} for j in range(2)} for i in range(4)}


@pytest.mark.parametrize("count", [2, 3])
async def test_of_committers_that_want_the_last_place_exactly_one_gets_it(
    nats: NatsServer, bus: Bus, count: int
) -> None:
    def single() -> Clusters:
        return {f"lab/c-{i}": [node(cpu="1") for _ in range(10)] for i in range(4)}

    room = {name: {f"n-{i}": {"cpu": 1000, "pods": 110} for i in range(10)} for name in single()}
    async with at_the_log(nats, single, count) as parties:
        places = list(parties[0].free)
        for turn, place in enumerate(places):
            results = await asyncio.gather(*(p.commit(pod_on(f"t{turn}-{i}", *place)) for i, p in enumerate(parties)))
            assert [type(r) for r in results].count(Committed) == 1, (turn, results)
        assert sum(p.committer.conflicts for p in parties) > 0, "they did compete"
        _, commits = await read_log(bus)
        assert violations(commits, room) == []
        assert sum(len(c.entries_of(Decision)) for _, c in commits) == len(places)
        for party in parties:
            await party.follower.wait(await bus.log("MOORAGE_LEDGER").last())
            assert set(party.free.values()) == {0}


async def test_who_lost_a_place_is_decided_anew_in_its_turn(nats: NatsServer, bus: Bus) -> None:
    """The other's commit comes first, and is not known yet when this one is decided."""
    async with at_the_log(nats, lambda: {"lab/c-0": [node(cpu="1"), node(cpu="1")]}, 2) as (one, other):
        mine = pod_on("mine")
        one.capacity.hold(mine)
        assert isinstance(await other.commit(pod_on("theirs")), Committed)
        await until(lambda: one.follower.ledger.seq == 1)
        tried: list[str] = []

        def again() -> Decision | None:
            node_of = {0: "n-1"}.get(len(tried))
            tried.append(node_of or "")
            if node_of is None:
                return None
            found = pod_on("mine", at=node_of, ident="mine-again")
            one.capacity.hold(found)
            return found

        assert isinstance(await one.committer.commit(mine, None, again), Committed)
        standing = one.follower.ledger.standing[group("mine")]
        assert (standing.id, standing.claims[0].slots[0].node) == ("mine-again", "n-1")
        assert tried == ["n-1"] and set(one.free.values()) == {0}
        # Nowhere is room any more: it is dropped, and holds nothing.
        late = pod_on("late")
        one.capacity.hold(late)
        dropped = await one.committer.commit(late, None, again)
        assert isinstance(dropped, Dropped) and not dropped.code
        assert set(one.free.values()) == {0}


async def test_batches_are_bounded_and_too_large_ones_refused(nats: NatsServer, bus: Bus) -> None:
    party = await CommitterHarness(nats, scarce).open()
    many = [Withdrawal(group=group(f"g{i}"), revision=1) for i in range(100)]
    results = await asyncio.gather(*(party.committer.commit(w) for w in many))
    assert all(isinstance(r, Committed) for r in results)
    _, commits = await read_log(bus)
    assert max(len(c.entries_of(Withdrawal)) for _, c in commits) <= 32
    assert len(commits) < 10
    huge = pod_on("huge")
    huge.claims[0].object = "x" * (800 << 10)
    refused = await party.commit(huge)
    assert isinstance(refused, Dropped)
    assert refused.code == "DecisionTooLarge"
    cpu = party.capacity.fleet.free("cpu")
    assert cpu is not None
    assert set(cpu[:2].tolist()) == {2000}, "nothing is held for it any more"
    await party.bus.close()


async def test_who_won_over_others_lets_them_have_their_turn(
    nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "PAUSE", 0.3)
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]

    async def two_batches(start: int) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        many = [Withdrawal(group=group(f"g{start + i}"), revision=1) for i in range(2 * committer.MAX_ENTRIES)]
        await asyncio.gather(*(first.committer.commit(w) for w in many))
        return loop.time() - began

    assert await two_batches(0) < 0.3, "alone, nobody waits"
    await second.follower.wait(2)
    await second.committer.commit(Withdrawal(group=group("other"), revision=1))
    await first.follower.wait(3)
    await asyncio.sleep(0.4)  # its own pause
    both = asyncio.ensure_future(two_batches(100))
    await second.follower.wait(4)
    await second.committer.commit(Withdrawal(group=group("other"), revision=2))
    assert await both >= 0.3
    _, commits = await read_log(bus)
    assert [c.by == commits[0][1].by for _, c in commits] == [True, True, False, True, False, True]
    assert first.committer.conflicts == second.committer.conflicts == 0
    for p in (first, second):
        await p.bus.close()


class Forgetful:
    """The log, but acknowledgements get lost: some after the message stood, some before it was sent."""

    def __init__(self, party: CommitterHarness, lose: list[str]) -> None:
        self._log, self._lose = party.committer._log, lose

    async def append(self, data: bytes, *, expected: int) -> int:
        how = self._lose.pop(0) if self._lose else "nothing"
        if how == "message":
            raise NoAnswer("lost")
        seq = await self._log.append(data, expected=expected)
        if how == "acknowledgement":
            raise NoAnswer("lost")
        return seq

    async def last(self) -> int:
        return await self._log.last()


@pytest.mark.parametrize(
    "lose", [["acknowledgement"], ["message"], ["message", "acknowledgement"], ["acknowledgement", "message"]]
)
async def test_a_lost_acknowledgement_is_settled_by_looking(nats: NatsServer, bus: Bus, lose: list[str]) -> None:
    party = await CommitterHarness(nats, scarce).open()
    party.committer._log = Forgetful(party, lose)  # type: ignore[assignment]
    result = await party.commit(pod_on("once"))
    assert isinstance(result, Committed)
    _, commits = await read_log(bus)
    assert [d.id for _, c in commits for d in c.entries_of(Decision)] == ["once"]
    again = await party.commit(pod_on("twice"))
    assert isinstance(again, Committed)
    assert party.follower.ledger.seq == await bus.log("MOORAGE_LEDGER").last()
    await party.bus.close()


async def test_a_withdrawn_revision_is_not_committed(nats: NatsServer, bus: Bus) -> None:
    parties = [await CommitterHarness(nats, scarce).open() for _ in range(2)]
    await parties[0].committer.commit(Withdrawal(group=group("gone"), revision=1))
    result = await parties[1].commit(pod_on("gone"))
    assert isinstance(result, Dropped) or group("gone") not in parties[1].follower.ledger.standing
    await until(lambda: parties[0].follower.ledger.seq == parties[1].follower.ledger.seq)
    for p in parties:
        assert not p.follower.ledger.claims
        await p.bus.close()


@pytest.mark.parametrize("how", ["released", "reassigned"])
async def test_a_claim_that_is_kept_may_lose_its_room_before_the_decision_that_keeps_it(
    nats: NatsServer, bus: Bus, how: str
) -> None:
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]
    await first.commit(pod_on("kept", cpu=2000))
    again = pod_on("kept", cpu=2000, number=2, ident="again")
    if how == "released":
        await first.committer.commit(Withdrawal(group=group("kept"), revision=1))
        freed: Release | Reassignment = Release(claims=["claim-kept"])
    else:
        freed = Reassignment(claim="claim-kept", slots=pod_on("kept", at="n-1", cpu=2000).claims[0].slots)
    first.capacity.hold(again)
    assert first.capacity.fits("again")
    await second.follower.wait(first.follower.ledger.seq)
    await second.committer.commit(freed)
    assert isinstance(await second.commit(pod_on("other", cpu=2000)), Committed)
    result = await first.committer.commit(again)
    assert isinstance(result, Dropped) and not result.code, "it may be decided anew"
    _, commits = await read_log(bus)
    assert violations(commits, ROOM) == []
    for p in (first, second):
        await p.bus.close()


@pytest.mark.parametrize("withdrawal", ["first", "last"])
async def test_what_is_withdrawn_in_the_same_commit_is_not_said_to_stand(
    nats: NatsServer, bus: Bus, withdrawal: str
) -> None:
    party = await CommitterHarness(nats, scarce).open()
    entries: list[Decision | Withdrawal] = [
        pod_on("gone"),
        Withdrawal(group=group("gone"), revision=1),
        pod_on("stays"),
    ]
    if withdrawal == "first":
        entries.reverse()
    for entry in entries:
        if isinstance(entry, Decision):
            party.capacity.hold(entry)
    results = await asyncio.gather(*(party.committer.commit(e) for e in entries))
    said = dict(zip((e.id if isinstance(e, Decision) else "" for e in entries), results, strict=True))
    assert said["gone"] == Dropped("Withdrawn", "the revision was withdrawn, or a newer one is decided")
    assert said["stays"] == said[""] == Committed(1)
    assert list(party.follower.ledger.claims) == ["claim-stays"]
    cpu = party.capacity.fleet.free("cpu")
    assert cpu is not None and int(cpu[0]) == 1000
    await party.bus.close()


async def test_where_pods_went_and_what_is_decided_for_them_are_not_said_in_one_commit(
    nats: NatsServer, bus: Bus
) -> None:
    """Where they went is where the pods of before are; the decision may be of more."""
    party = await CommitterHarness(nats, scarce).open()
    await party.commit(pod_on("g"))
    moved = Reassignment(claim="claim-g", slots=pod_on("g", at="n-1").claims[0].slots)
    more = pod_on("g", cpu=1500, number=2, ident="more")
    party.capacity.hold(more)
    both = await asyncio.gather(party.committer.commit(more), party.committer.commit(moved))
    assert isinstance(both[0], Committed) and isinstance(both[1], Dropped)
    assert party.follower.ledger.claims["claim-g"].claim.slots == more.claims[0].slots
    moved.slots = pod_on("g", at="n-1", cpu=1500).claims[0].slots
    less = pod_on("g", number=3, ident="less")
    party.capacity.hold(less)
    both = await asyncio.gather(party.committer.commit(moved), party.committer.commit(less))
    assert isinstance(both[0], Committed) and isinstance(both[1], Dropped)
    await party.bus.close()


async def test_a_commit_that_was_settled_is_named_by_its_own_number(nats: NatsServer, bus: Bus) -> None:
    """Others append while it is settled whether it stands."""
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]
    settle = first.committer._is_committed

    async def others_meanwhile(ident: str, expected: int) -> bool:
        await second.follower.wait(1)
        await second.commit(pod_on("second", at="n-1"))
        await first.follower.wait(2)
        return await settle(ident, expected)

    first.committer._log = Forgetful(first, ["acknowledgement"])  # type: ignore[assignment]
    first.committer._is_committed = others_meanwhile  # type: ignore[method-assign]
    assert await first.commit(pod_on("first")) == Committed(1)
    for p in (first, second):
        await p.bus.close()


async def test_a_reader_begins_with_the_snapshot_and_survives_a_purge(nats: NatsServer, bus: Bus) -> None:
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
async def test_a_snapshot_that_cannot_be_read_is_passed_over(
    nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(snapshots, "READ_TIMEOUT", 0.5)
    party = await CommitterHarness(nats, scarce).open()
    older, newest = await two_snapshots(party)
    assert await newest_snapshot(bus) == 2
    await damage(bus, newest, how)
    assert (await read_snapshot(bus)).seq == 1
    late = await CommitterHarness(nats, scarce).open()
    assert late.follower.ledger.claims == party.follower.ledger.claims
    # Where none is left and the log begins later, nothing is made up, and who must act is told how.
    await damage(bus, older, how)
    with pytest.raises(LedgerLost, match="moorage restore"):
        await open_ledger(bus)
    # Who has to load again ends.
    late.follower._reload("a gap")
    await asyncio.wait_for(late.bus.closed.wait(), 10)
    assert not party.bus.closed.is_set()
    for p in (party, late):
        await p.bus.close()


async def test_who_was_told_half_of_a_commit_ends(nats: NatsServer, bus: Bus) -> None:
    """What was told after it, as the capacity may be, would be wrong for ever."""

    def cannot(commit: Commit, _changes: Changes) -> None:
        if any(d.id == "too much" for d in commit.entries_of(Decision)):
            raise KeyError("too much")

    writer, *others = [await CommitterHarness(nats, scarce).open() for _ in range(3)]
    for party in others:
        party.follower.on_fold.insert(0, cannot)
    reader, committer = others
    await writer.commit(pod_on("first"))
    await committer.follower.wait(1)
    ours = asyncio.ensure_future(committer.commit(pod_on("too much")))
    for party in others:
        await asyncio.wait_for(party.bus.closed.wait(), 5)
    await writer.commit(pod_on("last", at="n-1"))
    await asyncio.sleep(0.1)
    assert reader.follower.ledger.seq == 2, "it goes on with nothing"
    assert not ours.done() and not writer.bus.closed.is_set()
    ours.cancel()
    for party in (writer, *others):
        await party.bus.close()


async def test_who_was_told_half_of_a_ledger_ends(nats: NatsServer, bus: Bus) -> None:
    party = await CommitterHarness(nats, scarce).open()

    def cannot(_ledger: Ledger) -> None:
        raise KeyError("told in part")

    party.follower.on_reload.insert(0, cannot)
    party.follower._reload("a gap")
    await asyncio.wait_for(party.bus.closed.wait(), 5)
    assert party.follower.broken
    await party.bus.close()


async def test_nothing_is_committed_onto_what_was_folded_in_part(nats: NatsServer, bus: Bus) -> None:
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]

    def cannot(_commit: Commit, _changes: Changes) -> None:
        raise KeyError("told in part")

    first.follower.on_fold.insert(0, cannot)
    await second.commit(pod_on("other", cpu=2000))
    await asyncio.wait_for(first.bus.closed.wait(), 5)
    assert first.capacity.fleet.free("cpu")[0] == 2000, "it does not know better"  # type: ignore[index]
    ours = asyncio.ensure_future(first.commit(pod_on("ours")))
    await asyncio.sleep(0.2)
    assert not ours.done()
    assert await bus.log("MOORAGE_LEDGER").last() == 1
    ours.cancel()
    for party in (first, second):
        await party.bus.close()


async def test_conflicts_on_the_wire_are_conflicts(bus: Bus) -> None:
    log = bus.log("MOORAGE_LEDGER")
    await log.append(b"{}", expected=0)
    with pytest.raises(Conflict):
        await log.append(b"{}", expected=0)


# -- processes --------------------------------------------------------------------------------------------------------

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


async def test_mergers_killed_and_the_broker_restarted_in_the_middle(
    nats: NatsServer, redis: RedisServer, bus: Bus
) -> None:
    """Whatever dies when: in the end exactly what fits is placed, and the log holds together."""
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
                    await until(lambda: len(follower.ledger.standing) >= 1, 30)
                    first.send_signal(signal.SIGKILL)
            await until(lambda: len(follower.ledger.standing) >= 10, 30)
            nats.restart(signal.SIGKILL)
            await until(lambda: len(follower.ledger.standing) >= 20, 40)
            second.send_signal(signal.SIGKILL)
            with worker("moorage.merger.worker", settings):
                await until(lambda: len(follower.ledger.standing) == 48, 40, "everything that fits is placed")
                await asyncio.sleep(0.5)
                assert len(follower.ledger.standing) == 48
        await site.check()
    finally:
        await site.close()
        await store.close()
