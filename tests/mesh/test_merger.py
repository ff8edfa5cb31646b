"""Tests decisions of the merger with a real broker: placements, updates, withdrawals, hints and simulations."""

from __future__ import annotations

import asyncio

import msgspec

from moorage.bus import Incoming, subjects
from moorage.fleet import CORDONED
from moorage.model.candidates import Answer, Ask
from moorage.model.claims import Decision
from moorage.model.groups import Decide, Stored, Withdraw
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.status import ClaimsRemoved
from moorage_testkit.fleets import node
from moorage_testkit.invariants import counting_pods, read_log
from moorage_testkit.merger_harness import (
    OpenMergers,
    group,
    revision,
    shape,
    three_clusters,
)
from moorage_testkit.polling import until


async def test_a_group_is_placed_claimed_and_published(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.decide(revision("shop", ShapedApp(name="a", replicas=2, shapes=[shape(3000, 2)])))
        placed = await s.attempt("shop", "Placed")
        assert len(placed.apps["a"].clusters) == 2
        assert placed.controllers[0].outcome == "answered"
        decision = s.ledger.standing[group("shop")]
        assert decision.id == placed.decision
        assert sorted(c.cluster for c in decision.claims) == sorted(placed.apps["a"].clusters)
        assert counting_pods(s.ledger) == 4
        assert s.events[0].cause == f"hint {group('shop')}"


async def test_a_pending_group_has_reasons_and_is_placed_when_capacity_appears(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.decide(revision("big", ShapedApp(name="a", replicas=3, shapes=[shape(4000, 2)])))
        await s.attempt("big", "Placed")
        await s.decide(revision("late", at="2"), revision("early", at="1"))
        for name in ("late", "early"):
            pending = await s.attempt(name, "Pending")
            codes = {(r.code, r.by) for r in pending.reasons}
            assert ("NotEnoughClusters", "merger") in codes
            assert any(r.by == "hpa" and r.needed == "1" and r.free == "0" for r in pending.reasons), pending.reasons
        # The big group ends; its claims count until the removal is confirmed and a later report shows no pod.
        await s.store(revision("big"), "Terminated")
        await s.bus.publish(subjects.GROUPS_WITHDRAW, Withdraw(group=group("big"), revision=1))
        await until(lambda: group("big") not in s.ledger.standing)
        assert len(s.ledger.claims) == 3
        claim = next(c for c in s.ledger.claims.values() if c.claim.cluster == "lab/c-1")
        removed = ClaimsRemoved(claims=[claim.claim.id], cluster="lab/c-1", as_of=5.0)
        await s.bus.publish(subjects.MERGER_REMOVED, removed)
        await asyncio.sleep(0.2)
        assert claim.claim.id in s.ledger.claims, "no later report yet"
        s.report("lab/c-1", lambda w, cid: w.refresh(cid, 6.0))
        await s.attempt("early", "Placed")
        await s.attempt("late", "Placed")
        order = [e.subject for e in s.events if "placed" in e.subject and "big" not in e.subject]
        assert "early" in order[0], "the oldest first"


async def test_an_update_keeps_unchanged_claims_and_the_old_decision_until_it_fits(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="4")], "lab/two": [node(cpu="4")]}) as s:
        first = ShapedApp(name="a", shapes=[shape(4000)])
        await s.decide(revision("shop", first))
        placed = await s.attempt("shop", "Placed")
        before = s.ledger.standing[group("shop")]
        await s.decide(revision("shop", ShapedApp(name="a", shapes=[shape(9000, template="u")]), number=2))
        await s.attempt("shop", "Pending")
        assert s.ledger.standing[group("shop")].id == before.id
        await s.decide(revision("shop", first, number=3))
        await until(lambda: s.ledger.standing[group("shop")].revision == 3)
        after = s.ledger.standing[group("shop")]
        assert [c.id for c in after.claims] == [c.id for c in before.claims]
        assert [c.slots for c in after.claims] == [c.slots for c in before.claims]
        assert after.claims[0].cluster == placed.apps["a"].clusters[0]
        assert not [h for h in s.ledger.claims.values() if h.withdrawn]


async def test_scaling_up_keeps_existing_pods_in_place(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="4")], "lab/two": [node(cpu="8")]}) as s:
        await s.decide(revision("shop", ShapedApp(name="a", shapes=[shape(1000, 3)])))
        before = (await s.attempt("shop", "Placed")).apps["a"].clusters
        await s.decide(revision("shop", ShapedApp(name="a", shapes=[shape(1000, 4)]), number=2))
        await until(lambda: s.ledger.standing[group("shop")].revision == 2)
        (claim,) = s.ledger.standing[group("shop")].claims
        assert [claim.cluster] == before
        assert sum(slot.count for slot in claim.slots) == 4


async def test_duplicate_hints_and_crossing_withdrawals_are_harmless(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters, mergers=2) as s:
        records = [revision(f"g{i}") for i in range(12)]
        await s.decide(*records, *records)
        for i, record in enumerate(records):
            if i % 2:
                await s.store(record, "Terminated")
                await s.bus.publish(subjects.GROUPS_WITHDRAW, Withdraw(group=record.group, revision=1))
        await until(lambda: all(s.ledger.ended_revisions.get(r.group) == 1 for r in records[1::2]))
        await until(lambda: all(r.group in s.ledger.standing for r in records[0::2]))
        await asyncio.sleep(0.2)
        assert not any(r.group in s.ledger.standing for r in records[1::2])
        _, commits = await read_log(s.bus)
        decided = [d.group for _, c in commits for d in c.entries_of(Decision)]
        assert sorted(decided) == sorted(set(decided)), "each group was decided once"


async def test_an_early_hint_is_committed_only_after_its_record_is_durable(open_mergers: OpenMergers) -> None:
    asked: list[str] = []
    async with open_mergers(three_clusters) as s:

        async def answer(incoming: Incoming) -> Answer:
            asked.append(msgspec.json.decode(incoming.data, type=Ask).group)
            return Answer()

        await s.controller("eager", answer, policy="optional", deadline_ms=500)
        for name in ("stands", "falls"):
            hint = Decide(id=f"hint {name}", record=revision(name), ahead=True)
            await s.bus.publish(subjects.GROUPS_DECIDE, hint)
        await until(lambda: len(asked) == 2)
        await asyncio.sleep(0.2)
        assert not s.ledger.standing, "its record may never be stored"
        await s.bus.publish(subjects.GROUPS_STORED, Stored(id="hint stands"))
        await s.attempt("stands", "Placed")
        await asyncio.sleep(1.2)
        assert group("falls") not in s.ledger.standing and not s.attempts("falls")
        # Claims that were never confirmed do not block others.
        await s.decide(revision("falls"))
        await s.attempt("falls", "Placed")


async def test_an_early_hint_alone_gives_its_room_back_if_its_record_is_never_stored(open_mergers: OpenMergers) -> None:
    asked: list[str] = []
    async with open_mergers(lambda: {"lab/one": [node(cpu="4")]}) as s:

        async def answer(incoming: Incoming) -> Answer:
            asked.append(msgspec.json.decode(incoming.data, type=Ask).group)
            return Answer()

        await s.controller("eager", answer, policy="optional", deadline_ms=500)
        big = ShapedApp(name="a", shapes=[shape(3000)])
        await s.bus.publish(subjects.GROUPS_DECIDE, Decide(id="hint falls", record=revision("falls", big), ahead=True))
        await until(lambda: any(writer.fleet.taken(0) for writer in s.writers))
        await until(lambda: not any(writer.fleet.taken(0) for writer in s.writers))
        assert not s.ledger.standing and not s.events
        await s.bus.publish(
            subjects.GROUPS_DECIDE, Decide(id="hint stands", record=revision("stands", big), ahead=True)
        )
        await until(lambda: any(writer.fleet.taken(0) for writer in s.writers))  # it only waits for its record
        assert not s.ledger.standing, "its record may never be stored"
        await s.bus.publish(subjects.GROUPS_STORED, Stored(id="hint stands"))
        await s.attempt("stands", "Placed")
        # One that cannot be placed is told of only once it is stored, too.
        await s.bus.publish(subjects.GROUPS_DECIDE, Decide(id="hint waits", record=revision("waits", big), ahead=True))
        await until(lambda: group("waits") in asked)
        assert not s.attempts("waits")
        await s.bus.publish(subjects.GROUPS_STORED, Stored(id="hint waits"))
        await s.attempt("waits", "Pending")


async def test_what_changes_while_a_record_is_written_is_seen_by_its_decision(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="4")]}) as s:
        hint = Decide(id="hint", record=revision("shop", ShapedApp(name="a", shapes=[shape(3000)])), ahead=True)
        await s.bus.publish(subjects.GROUPS_DECIDE, hint)
        await until(lambda: any(writer.fleet.taken(0) for writer in s.writers))  # the proposal holds its room
        s.report("lab/one", lambda w, cid: w.set_state(cid, CORDONED))
        await s.bus.publish(subjects.GROUPS_STORED, Stored(id="hint"))
        await s.attempt("shop", "Pending")
        assert not s.ledger.standing


async def test_simulate_decides_without_committing(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        before = s.ledger.seq
        would = await s.simulate(revision("shop"))
        assert would.simulated
        assert would.phase == "Placed"
        assert would.apps["a"].claims
        would = await s.simulate(revision("huge", ShapedApp(name="a", shapes=[shape(64000)])))
        assert would.phase == "Pending"
        assert any(r.code == "ResourceShort" and r.free == "4" and r.needed == "64" for r in would.reasons)
        assert s.ledger.seq == before
        await s.decide(revision("shop"))
        placed = await s.attempt("shop", "Placed")
        assert [v.clusters for v in placed.apps.values()]


async def test_an_unsupported_need_fails_and_does_not_wait(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        odd = Shape(key="odd", object="Deployment/x", resources={"pods": 1}, devices=[{}])
        await s.decide(revision("odd", ShapedApp(name="a", shapes=[odd])))
        failed = await s.attempt("odd", "Failed")
        assert [r.code for r in failed.reasons] == ["Unsupported"]
