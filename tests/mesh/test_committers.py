"""Several committers append to one decision log: capacity is never claimed twice, and lost acknowledgements are resolved."""

from __future__ import annotations

import asyncio

import pytest

from moorage.bus import Bus, Conflict, NoAnswer
from moorage.ledger import (
    Committed,
    Dropped,
    Guard,
    Ledger,
    committer,
)
from moorage.model.claims import Decision, Reassignment, Release, Settlement, Withdrawal
from moorage_testkit.committers import CommitterHarness, at_the_log, pod_on
from moorage_testkit.fleets import node
from moorage_testkit.invariants import read_log, violations
from moorage_testkit.merger_harness import Clusters, group, scarce
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

ROOM = {f"lab/c-{i}": {f"n-{j}": {"cpu": 2000, "pods": 110} for j in range(2)} for i in range(4)}


@pytest.mark.parametrize("count", [2, 3])
async def test_one_of_concurrent_committers_gets_the_last_slot(nats: NatsServer, bus: Bus, count: int) -> None:
    def single() -> Clusters:
        return {f"lab/c-{i}": [node(cpu="1") for _ in range(10)] for i in range(4)}

    room = {name: {f"n-{i}": {"cpu": 1000, "pods": 110} for i in range(10)} for name in single()}
    async with at_the_log(nats, single, count) as parties:
        places = list(parties[0].free)
        for number, place in enumerate(places):
            results = await asyncio.gather(*(p.commit(pod_on(f"t{number}-{i}", *place)) for i, p in enumerate(parties)))
            assert [type(r) for r in results].count(Committed) == 1, (number, results)
        assert sum(p.committer.conflicts for p in parties) > 0, "they did compete"
        _, commits = await read_log(bus)
        assert violations(commits, room) == []
        assert sum(len(c.entries_of(Decision)) for _, c in commits) == len(places)
        for party in parties:
            await party.follower.wait(await bus.log("MOORAGE_LEDGER").last())
            assert set(party.free.values()) == {0}


async def test_a_decision_that_lost_its_slot_is_proposed_again_at_once(nats: NatsServer, bus: Bus) -> None:
    """The other commit comes first, and is not known yet when this decision is proposed."""
    async with at_the_log(nats, lambda: {"lab/c-0": [node(cpu="1"), node(cpu="1")]}, 2) as (one, other):
        lost = pod_on("mine")
        one.capacity.hold(lost)
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

        assert isinstance(await one.committer.commit(lost, None, again), Committed)
        standing = one.follower.ledger.standing[group("mine")]
        assert (standing.id, standing.claims[0].slots[0].node) == ("mine-again", "n-1")
        assert tried == ["n-1"] and set(one.free.values()) == {0}
        # There is no capacity left: it is dropped, and holds nothing.
        late = pod_on("late")
        one.capacity.hold(late)
        dropped = await one.committer.commit(late, None, again)
        assert isinstance(dropped, Dropped) and not dropped.code
        assert set(one.free.values()) == {0}


async def test_commits_are_bounded_and_too_large_decisions_refused(nats: NatsServer, bus: Bus) -> None:
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


async def test_a_committer_that_won_yields_to_the_others(
    nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "PAUSE", 2.0)
    monkeypatch.setattr(committer, "_RECENTLY", 20.0)
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]

    async def two_batches(start: int) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        many = [Withdrawal(group=group(f"g{start + i}"), revision=1) for i in range(2 * committer.MAX_ENTRIES)]
        await asyncio.gather(*(first.committer.commit(w) for w in many))
        return loop.time() - began

    assert await two_batches(0) < 2.0, "alone, nobody waits"
    await second.follower.wait(2)
    await second.committer.commit(Withdrawal(group=group("other"), revision=1))
    await first.follower.wait(3)
    await asyncio.sleep(2.2)  # its own pause
    both = asyncio.ensure_future(two_batches(100))
    await second.follower.wait(4)
    await second.committer.commit(Withdrawal(group=group("other"), revision=2))
    assert await both >= 2.0
    _, commits = await read_log(bus)
    assert [c.by == commits[0][1].by for _, c in commits] == [True, True, False, True, False, True]
    assert first.committer.conflicts == second.committer.conflicts == 0
    for p in (first, second):
        await p.bus.close()


class LossyLog:
    """A log that loses acknowledgements: some after the message was stored, some before it was sent."""

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
async def test_a_lost_acknowledgement_is_resolved_by_reading_the_log(
    nats: NatsServer, bus: Bus, lose: list[str]
) -> None:
    party = await CommitterHarness(nats, scarce).open()
    party.committer._log = LossyLog(party, lose)  # type: ignore[assignment]
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
async def test_a_kept_claim_can_be_released_before_the_decision_that_keeps_it(
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
async def test_a_decision_withdrawn_in_the_same_commit_is_dropped(nats: NatsServer, bus: Bus, withdrawal: str) -> None:
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
    outcomes = dict(zip((e.id if isinstance(e, Decision) else "" for e in entries), results, strict=True))
    assert outcomes["gone"] == Dropped("Withdrawn", "the revision was withdrawn, or a newer one is decided")
    assert outcomes["stays"] == outcomes[""] == Committed(1)
    assert list(party.follower.ledger.claims) == ["claim-stays"]
    cpu = party.capacity.fleet.free("cpu")
    assert cpu is not None and int(cpu[0]) == 1000
    await party.bus.close()


async def test_a_reassignment_and_a_decision_of_one_group_are_separate_commits(nats: NatsServer, bus: Bus) -> None:
    """A reassignment is about existing pods; the decision may have more of them."""
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


async def test_a_decision_stays_as_it_is_while_a_settlement_of_its_cluster_comes_first(
    nats: NatsServer, bus: Bus
) -> None:
    """The settlement changes the state that the decision was made from, but most often its room is still there."""
    party = await CommitterHarness(nats, scarce).open()
    await party.commit(pod_on("g"))
    moved = Settlement(cluster="lab/c-0", epoch="", slots={"claim-g": pod_on("g", at="n-1").claims[0].slots})
    fits, lost = pod_on("fits"), pod_on("lost", at="n-1", cpu=1500)
    for decision in (fits, lost):
        party.capacity.hold(decision)
    results = await asyncio.gather(
        party.committer.commit(moved),
        party.committer.commit(fits),
        party.committer.commit(lost),
        party.committer.commit(Withdrawal(group=group("other"), revision=1)),
    )
    assert results[0] == results[3] == Committed(2) and results[1] == Committed(3)
    assert isinstance(results[2], Dropped), "the settlement took its room"
    assert party.free["lab/c-0", "n-0"] == party.free["lab/c-0", "n-1"] == 1000
    await party.bus.close()


async def test_a_guard_makes_an_entry_of_the_state_that_it_is_appended_to(nats: NatsServer, bus: Bus) -> None:
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]
    await first.commit(pod_on("g"))
    await second.follower.wait(1)
    seen: list[int] = []

    def guard(ledger: Ledger) -> Withdrawal:
        seen.append(ledger.seq)
        return Withdrawal(group=group("g"), revision=ledger.seq)

    placeholder = Withdrawal(group="", revision=0)
    await asyncio.gather(first.commit(pod_on("h")), second.committer.commit(placeholder, guard))
    _, commits = await read_log(first.bus)
    (made,) = (entry for _, commit in commits for entry in commit.entries_of(Withdrawal))
    assert made == Withdrawal(group=group("g"), revision=seen[-1])
    for p in (first, second):
        await p.bus.close()


async def test_entries_that_became_larger_share_no_commit_that_is_too_large(nats: NatsServer, bus: Bus) -> None:
    party = await CommitterHarness(nats, scarce).open()

    def large(number: int) -> Guard:
        made = Withdrawal(group=group(f"g-{number}"), revision=1, traceparent="x" * 500_000)
        return lambda _ledger: made

    small = Withdrawal(group="", revision=0)
    results = await asyncio.gather(*(party.committer.commit(small, large(n)) for n in range(3)))
    assert results == [Committed(1), Committed(2), Committed(3)]
    too_large = Withdrawal(group=group("g"), revision=1, traceparent="x" * 800_000)
    dropped = await party.committer.commit(small, lambda _: too_large)
    assert isinstance(dropped, Dropped) and dropped.code == "DecisionTooLarge"
    await party.bus.close()


async def test_a_commit_confirmed_by_the_log_has_its_own_sequence(nats: NatsServer, bus: Bus) -> None:
    """Others append while the commit looks for its message."""
    first, second = [await CommitterHarness(nats, scarce).open() for _ in range(2)]
    is_committed = first.committer._is_committed

    async def others_meanwhile(ident: str, expected: int) -> bool:
        await second.follower.wait(1)
        await second.commit(pod_on("second", at="n-1"))
        await first.follower.wait(2)
        return await is_committed(ident, expected)

    first.committer._log = LossyLog(first, ["acknowledgement"])  # type: ignore[assignment]
    first.committer._is_committed = others_meanwhile  # type: ignore[method-assign]
    assert await first.commit(pod_on("first")) == Committed(1)
    for p in (first, second):
        await p.bus.close()


async def test_a_conflict_on_the_broker_is_a_conflict_error(bus: Bus) -> None:
    log = bus.log("MOORAGE_LEDGER")
    await log.append(b"{}", expected=0)
    with pytest.raises(Conflict):
        await log.append(b"{}", expected=0)
