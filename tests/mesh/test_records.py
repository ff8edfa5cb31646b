"""Records of decisions over a real broker: written beside deciding, replayed by any merger, lost without harm."""

from __future__ import annotations

import random

import msgspec
import pytest

from moorage.bus import Bus, subjects
from moorage.bus.jetstream import api
from moorage.fleet import CORDONED
from moorage.gateway.decision_records import DecisionRecords
from moorage.ledger.records import digest
from moorage.merger import recorder
from moorage.mesh import stores
from moorage.model.groups import Withdraw
from moorage.model.problems import Refused
from moorage.model.records import Replay, ReplayAsk
from moorage.model.shapes import Shape, ShapedApp
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import Clusters, OpenMergers, group, revision, shape
from moorage_testkit.polling import until


def thirty_clusters() -> Clusters:
    rng = random.Random(1)
    return {
        f"lab/c-{i:02}": [node(cpu=str(rng.randint(4, 32)), memory=str(rng.randint(8, 64))) for _ in range(4)]
        for i in range(30)
    }


def random_apps(rng: random.Random) -> list[ShapedApp]:
    def one(name: str) -> Shape:
        resources = {"cpu": 500 * rng.randint(1, 3), "memory": rng.randint(1, 3), "pods": 1}
        made = Shape(
            key="",
            object=f"Deployment/{name}",
            count=rng.randint(1, 2),
            resources=resources,
            template=str(rng.random()),
        )
        made.key = digest(msgspec.json.encode(made))
        return made

    return [
        ShapedApp(
            name=name, replicas=rng.choice([1, 1, 2]), shapes=[one(f"{name}{i}") for i in range(rng.choice([1, 2]))]
        )
        for name in "ab"[: rng.choice([1, 2])]
    ]


async def replayed(bus: Bus, records: DecisionRecords, decision: str) -> Replay:
    found = await records.find(decision, wait=True)
    assert found is not None and found.records, decision
    ask = ReplayAsk(decision=decision, records=found.records)
    return await bus.call(subjects.MERGER_REPLAY, ask, Replay, timeout=10)


async def test_two_hundred_decisions_of_two_mergers_replay(
    open_mergers: OpenMergers, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SAVED", 60.0)  # however slow the machine is
    rng = random.Random(2)
    async with open_mergers(thirty_clusters, mergers=2) as s:
        await s.decide(*(revision(f"g{i}", *random_apps(rng)) for i in range(200)))
        await until(lambda: len({e.subject for e in s.events}) >= 200, 60)
        await until(lambda: len(s.ledger.standing) > 100, 60)
        first = {d.id: d.group for d in s.ledger.standing.values()}
        # Some get another decision, some end, and the fleet changes.
        again = [revision(f"g{i}", *random_apps(rng), number=2) for i in range(20)]
        await s.decide(*again)
        await until(lambda: all(s.attempts(f"g{i}")[-1].revision == 2 for i in range(20)), 30)
        for i in range(20, 30):
            await s.store(revision(f"g{i}"), "Terminated")
            await s.bus.publish(subjects.GROUPS_WITHDRAW, Withdraw(group=group(f"g{i}"), revision=1))
        await until(lambda: all(group(f"g{i}") not in s.ledger.standing for i in range(20, 30)))
        for cluster in list(s.clusters())[::2]:
            s.report(cluster, lambda w, cid: w.put(cid, w.fleet.names[cid], state=CORDONED))
        records = DecisionRecords(bus)
        standing = {d.id: d.group for d in s.ledger.standing.values()}
        for decision in first | standing:
            found = await replayed(bus, records, decision)
            assert found.same and not found.unsure, found
        history = await records.history()
        withdrawn = {group(f"g{i}") for i in range(20, 30)}

        def is_written() -> bool:
            items = history.items(s.ledger.standing)
            # What waited for room may have been decided since.
            decided = {*first, *(d.id for d in s.ledger.standing.values())}
            ended = all(item.outcome == "Withdrawn" for item in items if item.past.group in withdrawn)
            return ended and decided <= {item.past.id for item in items}

        await until(is_written, 60)
        items = history.items(s.ledger.standing)
        current = {d.id for d in s.ledger.standing.values()}
        assert [item.past.seq for item in items] == sorted(item.past.seq for item in items)
        for item in items:
            if item.past.id in current:
                assert item.outcome == "Current"
            elif item.past.group in withdrawn:
                assert item.outcome == "Withdrawn" and item.ended >= item.past.decided
            else:
                later = [i.past.id for i in items if i.past.group == item.past.group and i.past.seq > item.past.seq]
                assert (item.outcome, item.replaced_by) == ("Replaced", later[0])


async def test_without_time_decisions_are_listed_and_counted_but_not_recorded(
    open_mergers: OpenMergers, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SHARE", 0.0)
    monkeypatch.setattr(recorder, "SAVED", 1e-9)
    async with open_mergers(thirty_clusters) as s:
        await s.decide(*(revision(f"g{i}", ShapedApp(name="a", shapes=[shape()])) for i in range(10)))
        await until(lambda: len(s.ledger.standing) == 10)
        records = DecisionRecords(bus)
        history = await records.history()
        await until(lambda: len(history.items(s.ledger.standing)) == 10)
        found = [await records.find(d.id, wait=True) for d in s.ledger.standing.values()]
        assert len([f for f in found if f is not None and not f.records]) >= 9
        assert s.mergers[0].decider.recorder.lost >= 9


async def test_deciding_goes_on_without_the_stream_of_records(open_mergers: OpenMergers, bus: Bus) -> None:
    async with open_mergers(thirty_clusters) as s:
        await api(bus, f"STREAM.DELETE.{stores.RECORDS}")
        for i in range(3):
            await s.decide(revision(f"g{i}", ShapedApp(name="a", shapes=[shape()])))
            await s.attempt(f"g{i}", "Placed")
        await until(lambda: s.mergers[0].decider.recorder.lost == 3, 20)
        records = DecisionRecords(bus)
        assert await records.state() is None
        with pytest.raises(Refused, match="bus provision"):
            await records.history()


async def test_what_cannot_be_replayed_is_refused(open_mergers: OpenMergers, bus: Bus) -> None:
    async with open_mergers(thirty_clusters) as s:
        await s.decide(revision("g", ShapedApp(name="a", shapes=[shape()])))
        await s.attempt("g", "Placed")
        records = DecisionRecords(bus)
        (decision,) = (d.id for d in s.ledger.standing.values())
        found = await records.find(decision, wait=True)
        assert found is not None
        junk = await bus.log(stores.RECORDS, subjects.RECORDS_DECISIONS).append(b"junk")
        for ask, code in (
            (ReplayAsk(decision=decision, records=junk + 1000), "NotFound"),
            (ReplayAsk(decision="other", records=found.records), "NotFound"),
            (ReplayAsk(decision=decision, records=junk), "Damaged"),
        ):
            with pytest.raises(Refused) as refused:
                await bus.call(subjects.MERGER_REPLAY, ask, Replay, timeout=10)
            assert refused.value.problem.code == code
