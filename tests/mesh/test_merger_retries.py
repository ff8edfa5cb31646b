"""Tests how the merger retries waiting groups, and how another merger takes them over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
import pytest

from moorage.bus import Incoming, subjects
from moorage.fleet import normalize_node
from moorage.fleet.delta import CORDONED, STALE, decode
from moorage.ledger import newest_snapshot
from moorage.merger import snapshots, wait_loop
from moorage.model.candidates import Answer, AppAnswer, Ask, CandidateGroup
from moorage.model.claims import Claim, Commit, Decision, IntentRef, Slot
from moorage.model.shapes import ShapedApp
from moorage.model.status import ClaimsRemoved
from moorage_testkit.fleets import node, writer_of
from moorage_testkit.merger_harness import (
    MergerHarness,
    OpenMergers,
    allow_only,
    group,
    revision,
    shape,
    silent,
    three_clusters,
)
from moorage_testkit.mesh_client import eventually
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer


async def test_a_lost_hint_loses_nothing(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.store(revision("no-hint"))
        await s.attempt("no-hint", "Placed")
        await s.store(revision("no-hint"), "Terminated")
        await until(lambda: group("no-hint") not in s.ledger.standing)


async def test_a_withdrawal_by_another_task_is_not_repeated(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.decide(*(revision(name) for name in "ab"))
        for name in "ab":
            await s.attempt(name, "Placed")
        await until(lambda: s.mergers[0].wait_loop is not None)
        decider, withdraw = s.mergers[0].decider, s.mergers[0].decider.withdraw

        async def both(name: str, number: int, based_on: int) -> None:
            for other in "ab":
                await withdraw(group(other), number, based_on)

        decider.withdraw = both
        for name in "ab":
            await s.store(revision(name), "Terminated")  # no hint is sent
        await until(lambda: not s.ledger.standing, 40)
        await asyncio.sleep(0.2)
        assert not s.buses[0].closed.is_set()


async def test_the_decision_of_a_killed_merger_is_not_made_again(open_mergers: OpenMergers) -> None:
    """The next merger keeps the decision, and decides the group that the killed one had not reached."""
    async with open_mergers(three_clusters) as s:
        records = [revision("decided"), revision("undecided")]
        for record in records:
            await s.store(record)
        intent = IntentRef(kind="Application", name="decided", revision=1)
        slot = Slot(node="n-0", resources={"cpu": 1000, "pods": 1})
        claim = Claim(id="c", decision="d", intent=intent, tenant="default", slots=[slot], app="a", cluster="lab/c-0")
        decision = Decision(id="d", group=group("decided"), revision=1, claims=[claim])
        commit = Commit(id="last commit", by="the killed merger", entries=[decision])
        await s.bus.log("MOORAGE_LEDGER").append(msgspec.json.encode(commit), expected=0)
        await s.attempt("undecided", "Placed")
        await asyncio.sleep(0.2)
        assert s.ledger.standing[group("decided")].id == "d"
        assert s.attempts("decided") == []


async def test_a_silent_controller_does_not_delay_each_retry(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        answers: dict[str, Callable[[Incoming], Awaitable[Any]]] = {"now": silent}

        async def changing(incoming: Incoming) -> Any:
            return await answers["now"](incoming)

        await s.controller("must", changing, policy="required", deadline_ms=200)
        await s.decide(*(revision(f"g{i}") for i in range(12)))
        for i in range(12):
            await s.attempt(f"g{i}", "Pending")
        await until(lambda: s.mergers[0].wait_loop is not None)
        answers["now"] = allow_only("lab/c-1", "lab/c-2")
        started = asyncio.get_running_loop().time()
        for i in range(12):
            await s.attempt(f"g{i}", "Placed")
        assert asyncio.get_running_loop().time() - started < 20


def put(site: MergerHarness, cid: int, name: str, **more: Any) -> None:
    for writer in site.writers:
        writer.put(cid, name, [normalize_node(node("n-0", cpu="4"))[0]], **more)


async def wait_until_refused(site: MergerHarness, name: str) -> None:
    """Waits until the group is refused, and the leading merger has nothing left to try."""

    def refused() -> bool:
        loop = site.mergers[0].wait_loop
        waiter = loop.waiting.groups.get(group(name)) if loop is not None else None
        return waiter is not None and waiter.attempt is not None

    await site.attempt(name, "Pending")
    await until(refused)
    await asyncio.sleep(0.5)


@pytest.mark.parametrize("how", ["joins", "may be used again", "is uncordoned", "has other labels"])
async def test_an_app_without_pods_is_placed_when_a_cluster_becomes_available(
    open_mergers: OpenMergers, how: str
) -> None:
    async with open_mergers(lambda: {"lab/c-0": [node(cpu="4")], "lab/c-1": [node(cpu="4")]}) as s:
        allowed = {"now": allow_only("lab/c-0")}

        async def choosy(incoming: Incoming) -> Answer:
            return await allowed["now"](incoming)

        if how == "has other labels":
            await s.controller("choosy", choosy)
        elif how != "joins":
            put(s, 1, "lab/c-1", state=STALE if how == "may be used again" else CORDONED)
        replicas = 3 if how == "joins" else 2
        await s.decide(revision("bare", ShapedApp(name="a", replicas=replicas)))
        none = ShapedApp(name="a", replicas=replicas, shapes=[shape(64000, count=0)])
        await s.decide(revision("none", none))
        for name in ("bare", "none"):
            await wait_until_refused(s, name)
        if how == "joins":
            put(s, 2, "lab/c-2", whole=True, labels={}, state=0)
        elif how == "has other labels":
            allowed["now"] = allow_only("lab/c-0", "lab/c-1")
            put(s, 1, "lab/c-1", labels={"open": "yes"})
        else:
            put(s, 1, "lab/c-1", state=0)
        for name in ("bare", "none"):
            await s.attempt(name, "Placed", 5)


async def test_all_waiting_groups_are_retried_periodically(
    open_mergers: OpenMergers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No change is announced."""
    async with open_mergers(three_clusters) as s:
        answers: dict[str, Callable[[Incoming], Awaitable[Any]]] = {"now": allow_only()}

        async def changing(incoming: Incoming) -> Any:
            return await answers["now"](incoming)

        await s.controller("silent", changing)
        await s.decide(revision("shop"))
        await wait_until_refused(s, "shop")
        answers["now"] = allow_only("lab/c-0")
        await asyncio.sleep(1.0)
        assert group("shop") not in s.ledger.standing
        monkeypatch.setattr(wait_loop, "SWEEP", 1.5)
        s.report("lab/c-2", lambda w, cid: w.refresh(cid, 9.0))
        await s.bus.publish(
            subjects.MERGER_REMOVED, ClaimsRemoved(claims=[], cluster="lab/c-2")
        )  # wakes the loop, but helps no group
        await s.attempt("shop", "Placed", 5)


async def test_concurrent_changes_make_one_round(open_mergers: OpenMergers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait_loop.GATHER == 0.05
    monkeypatch.setattr(wait_loop, "GATHER", 1.0)
    async with open_mergers(three_clusters) as s:
        await s.controller("nowhere", allow_only())
        await s.decide(revision("shop"))
        await wait_until_refused(s, "shop")
        await asyncio.sleep(wait_loop.HINT_GRACE + 1.5)  # what was gathered before is tried
        tried: list[float] = []
        decide = s.mergers[0].decider.decide

        async def counted(*args: Any, **more: Any) -> Any:
            tried.append(asyncio.get_running_loop().time())
            return await decide(*args, **more)

        s.mergers[0].decider.decide = counted
        began = asyncio.get_running_loop().time()
        for i in range(6):
            s.report(
                "lab/c-0", lambda w, cid, i=i: w.put(cid, "lab/c-0", [normalize_node(node(f"more-{i}", cpu="4"))[0]])
            )
            await asyncio.sleep(0.01)
        await until(lambda: bool(tried))
        await asyncio.sleep(1.5)  # a second round would come within the time that changes are gathered
        assert len(tried) == 1 and tried[0] - began >= 1.0


async def test_the_log_is_purged_although_the_lease_changes_hands_often(
    nats: NatsServer, open_mergers: OpenMergers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", 4)
    async with open_mergers(three_clusters, mergers=0) as s:
        log = s.bus.log("MOORAGE_LEDGER")
        cuts = []
        for expected in (0, 6, 6, 12):
            for _ in range(3):
                last = await log.last()
                await log.append(msgspec.json.encode(Commit(id=f"c{last}", by="others")), expected=last)
            await s.merger()
            await until(lambda: s.mergers[0].wait_loop is not None, 15)

            async def is_written(expected: int = expected) -> bool:
                return await newest_snapshot(s.bus) == expected

            await eventually(is_written, 40, f"the snapshot of {expected} commits")
            await asyncio.sleep(0.4)  # and no other
            cuts.append(await newest_snapshot(s.bus))
            await s.buses.pop().close()
            s.writers.clear()
            del s.mergers[0]
        assert cuts == [0, 6, 6, 12]
        assert await log.first() == 7


async def test_another_merger_takes_over_waiting_groups(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="1")]}, mergers=2) as s:
        await s.decide(revision("first"))
        await s.attempt("first", "Placed")
        await s.decide(revision("second"))
        await s.attempt("second", "Pending")
        await until(lambda: any(m.wait_loop is not None for m in s.mergers), 10)
        holder = next(i for i, m in enumerate(s.mergers) if m.wait_loop is not None)
        await s.buses[holder].close()
        del s.mergers[holder]
        await until(lambda: s.mergers[0].wait_loop is not None, 15)
        made, _ = normalize_node(node("n-9", cpu="2"))
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [made]))
        await s.attempt("second", "Placed")
        # n-9 is not in the fleet that the checker has.
        s.clusters = lambda: {"lab/one": [node(cpu="1"), node("n-9", cpu="2")]}


async def test_displaced_pods_are_claimed_where_they_run(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="4"), node(cpu="4")]}) as s:
        await s.decide(revision("shop", ShapedApp(name="a", shapes=[shape(1000, 2)])))
        await s.attempt("shop", "Placed")
        (claim,) = s.ledger.standing[group("shop")].claims
        observed = {"n-0": 2} if claim.slots[0].node == "n-1" else {"n-1": 2}
        await until(lambda: s.mergers[0].wait_loop is not None)
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", claims={claim.id: observed}))

        def places() -> dict[str, int]:
            (current,) = s.ledger.standing[group("shop")].claims
            found: dict[str, int] = {}
            for slot in current.slots:
                found[slot.node] = found.get(slot.node, 0) + slot.count
            return found

        await until(lambda: places() == observed, 40)


async def test_a_controller_that_had_not_seen_the_newest_cluster_is_asked_again(open_mergers: OpenMergers) -> None:
    """It answered without knowing the cluster; the group does not have to wait for the next sweep."""
    asked: list[str] = []
    there = three_clusters()

    async def lagging(incoming: Incoming) -> Answer:
        asked.append(msgspec.json.decode(incoming.data, type=Ask).epoch)
        everywhere = AppAnswer(groups=[CandidateGroup(mode="deny", clusters=[])])
        return Answer(apps={"a": everywhere}, epoch="1.4" if len(asked) < 3 else "1.5")

    async with open_mergers(lambda: dict(there)) as s:
        await s.controller("lagging", lagging)
        there["lab/new"] = [node("n-0", cpu="64")]
        patch = decode(writer_of(there).snapshot(len(there) - 1, 1, 5))
        patch.generation, patch.counter = 1, 5
        for writer in s.writers:
            writer.fleet.apply(patch)
        await s.decide(revision("large", ShapedApp(name="a", shapes=[shape(32_000)])))
        assert (await s.attempt("large", "Placed")).apps["a"].clusters == ["lab/new"]
        assert asked == ["1.5"] * 3


@pytest.mark.parametrize("behind", ["the fleet", "the decision log"])
async def test_a_group_refused_by_an_outdated_answer_is_tried_again_without_a_change(
    open_mergers: OpenMergers, behind: str
) -> None:
    """A controller is so far behind that all tries of the first decision are refused. Nothing changes after that."""
    asks: list[Ask] = []

    async def lagging(incoming: Incoming) -> Answer:
        asks.append(ask := msgspec.json.decode(incoming.data, type=Ask))
        fits = len([one for one in asks if one.group == ask.group]) > 12
        mode: Literal["allow", "deny"] = "deny" if fits else "allow"
        epoch = "1.4" if behind == "the fleet" and not fits else ask.epoch
        sequence = 1 if behind == "the decision log" and not fits else s.ledger.seq
        return Answer(apps={"a": AppAnswer(groups=[CandidateGroup(mode=mode)])}, epoch=epoch, sequence=sequence)

    async with open_mergers(three_clusters) as s:
        patch = decode(writer_of(three_clusters()).snapshot(0, 1, 5))
        patch.generation, patch.counter = 1, 5
        for writer in s.writers:
            writer.fleet.apply(patch)
        for name in ("first", "second"):
            await s.decide(revision(name))
            await s.attempt(name, "Placed")
        await s.controller("lagging", lagging)
        await s.decide(revision("shop"))
        await s.attempt("shop", "Pending")
        await s.attempt("shop", "Placed")


async def test_a_controller_that_is_slow_for_one_group_does_not_keep_the_others_waiting(
    open_mergers: OpenMergers,
) -> None:
    """Although that group is the oldest, and is tried first."""
    slow_for: set[str] = set()

    async def must(incoming: Incoming) -> Any:
        if msgspec.json.decode(incoming.data, type=Ask).group in slow_for:
            return await silent(incoming)
        return await allow_only("lab/c-1", "lab/c-2")(incoming)

    async with open_mergers(three_clusters) as s:
        await s.controller("must", must, policy="required", deadline_ms=300)
        slow_for.update(group(name) for name in ("old", "a", "b", "c"))
        await s.decide(*(revision(name, at=f"2026-01-0{i}") for i, name in enumerate(("old", "a", "b", "c"))))
        for name in ("old", "a", "b", "c"):
            await s.attempt(name, "Pending")
        await until(lambda: s.mergers[0].wait_loop is not None)
        slow_for.intersection_update({group("old")})
        for name in ("a", "b", "c"):
            await s.attempt(name, "Placed")
        assert not any(attempt.phase == "Placed" for attempt in s.attempts("old"))
        slow_for.clear()
        await s.attempt("old", "Placed")
