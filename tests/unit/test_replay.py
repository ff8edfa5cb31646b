"""Decisions made again from their records: random worlds replay exactly, whatever changed since, and whatever is changed in a
record is found."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from moorage.bus import Reply
from moorage.candidates import pack
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fit import PackingSolutions
from moorage.fit.hard_packing import solve
from moorage.fleet import Excerpt, Fleet, FleetWriter
from moorage.ledger import Capacity, Ledger, existing_placement
from moorage.ledger.records import NotRecorded, decode_batch, digest, encode_batch
from moorage.merger.core.propose import NameOrder, TriedChoices, propose
from moorage.merger.core.recording import Recording
from moorage.merger.core.replay import replay
from moorage.merger.core.responses import Replies, gather
from moorage.model.candidates import Answer, AppAnswer, AppsRule, Ask, CandidateGroup, Conflict, Level, WireSet
from moorage.model.claims import Commit, Decision
from moorage.model.controllers import Controller
from moorage.model.groups import Revision
from moorage.model.part_requests import PartGroup, SameSubtree
from moorage.model.records import DecisionRecord, Replay
from moorage.model.reports import NodeReport, Taint
from moorage.model.shapes import EXCLUSIVE, OptionalNeed, Requirement, Shape, ShapedApp, Toleration
from moorage.podspec import host_port, port_amounts
from moorage_testkit.brute_force import planted_packing
from moorage_testkit.fleets import fleet_of, node, provider, two_zones, writer_of
from moorage_testkit.merger_harness import revision

GPU = "x/gpu"
RELEASE = "1.2.3"


def random_node(rng: random.Random) -> NodeReport:
    exclusive = rng.choice([None, None, 2, 4])
    return node(
        labels={"zone": rng.choice("ab"), "rack": str(rng.randrange(50))},
        taints=[Taint(key="t", effect="NoSchedule")] if rng.random() < 0.2 else [],
        ready=rng.random() < 0.95,
        hostname=rng.random() < 0.9,
        cpu=str(rng.randint(2, 16)),
        memory=str(rng.randint(4, 64)),
        exclusive=exclusive,
        host_ports=rng.sample(["80/TCP", "81/TCP"], rng.choice([0, 0, 1])),
        resources={GPU: str(rng.randint(0, 4))} if rng.random() < 0.5 else {},
        **(random_inside(rng) if rng.random() < 0.8 else {}),
    )


def random_inside(rng: random.Random) -> dict[str, Any]:
    cards = [provider(f"numa-{zone}/card", f"numa-{zone}", CARD=str(rng.randint(1, 3))) for zone in range(2)]
    in_use = {"numa-0": {"cpu": "1"}} if rng.random() < 0.5 else {}
    return {"zones": two_zones(str(rng.randint(3, 6))), "providers": cards, "in_use": in_use}


def random_shape(rng: random.Random, name: str) -> Shape:
    resources = {"pods": 1, "cpu": 500 * rng.randint(1, 5), "memory": rng.randint(0, 6)}
    if rng.random() < 0.2:
        resources[GPU] = 1
    if rng.random() < 0.1:
        resources[EXCLUSIVE] = 1
    if rng.random() < 0.05:
        resources = {"pods": 1}
    if rng.random() < 0.1:
        resources.update(port_amounts([host_port(80)]))
    optional = [
        OptionalNeed(consumer="c", name="gpu", weight=3, resources={GPU: 1}),
        OptionalNeed(consumer="c", name="zone", weight=9, label=("zone", "a")),
    ]
    parts: dict[str, Any] = {}
    if "cpu" in resources and rng.random() < 0.2:
        groups = [PartGroup(suffix="_C", resources={"cpu": resources["cpu"]})]
        groups.append(PartGroup(suffix="_A", resources={"CARD": 1}))
        parts = {"groups": groups, "relations": [SameSubtree(groups=("_C", "_A"))] if rng.random() < 0.7 else []}
    made = Shape(
        key="",
        object=f"Deployment/{name}",
        count=rng.randint(1, 3),
        per_node=rng.random() < 0.1,
        resources=resources,
        terms=[[Requirement(key="zone", operator="In", values=("a",))]] if rng.random() < 0.2 else [],
        tolerations=[Toleration(operator="Exists")] if rng.random() < 0.5 else [],
        optional=rng.sample(optional, rng.choice([0, 0, 1, 2])),
        template=str(rng.randrange(3)),
        **parts,
    )
    made.key = digest(msgspec.json.encode(made))
    return made


def random_revision(rng: random.Random, name: str, number: int) -> Revision:
    apps = [
        ShapedApp(
            name=app,
            replicas=rng.choice([1, 1, 1, 2, 3]),
            shapes=[random_shape(rng, f"{app}{i}") for i in range(rng.choice([0, 1, 1, 2]))],
        )
        for app in "abcde"[: rng.choice([1, 1, 2, 3, 5])]
    ]
    return revision(name, *apps, number=number)


def random_taste(rng: random.Random, record: Revision, fleet: Fleet) -> Answer:
    """Scores, counted groups, rules and conflicts of a controller, some with names and some with numbers."""

    def some(part: float) -> WireSet:
        names = [name for name in fleet.names if rng.random() < part]
        return names if rng.random() < 0.5 else pack(fleet.clusters.mask(names))

    answer = Answer(epoch=str(fleet.epoch))
    for app in record.apps:
        groups = [CandidateGroup(mode="allow", clusters=some(0.8))] if rng.random() < 0.3 else []
        if rng.random() < 0.15:
            groups = [CandidateGroup(mode="allow", clusters=some(0.5), count=1) for _ in range(app.replicas)]
        elif rng.random() < 0.1:
            app.replicas = 0
            groups = [CandidateGroup(mode="allow", clusters=some(0.1), count=0, partial=rng.random() < 0.8)]
        levels = [Level(value=rng.choice([0.25, 1 / 3, 1.0]), clusters=some(0.4)) for _ in range(rng.choice([0, 2]))]
        answer.apps[app.name] = AppAnswer(groups=groups, levels=levels)
    names = [app.name for app in record.apps]
    if len(names) > 1 and rng.random() < 0.5:
        rule = AppsRule(app=names[0], mode="deny", apps=[names[1]], mandatory=rng.random() < 0.5)
        rule.mode = "with" if rng.random() < 0.5 else "deny"
        answer.rules.append(rule)
    if len(names) > 2 and rng.random() < 0.5:
        answer.conflicts.append(Conflict(apps=(names[1], names[2]), clusters=some(0.3)))
    return answer


class World:
    """A fleet, a ledger and controllers, in which groups are decided and recorded one after the other."""

    def __init__(self, seed: int, clusters: int) -> None:
        self.rng = random.Random(seed)
        self.writer: FleetWriter = writer_of(
            {f"lab/c-{i:03}": [random_node(self.rng) for _ in range(self.rng.randint(1, 5))] for i in range(clusters)},
            stale=[f"lab/c-{i:03}" for i in range(0, clusters, 17)],
        )
        self.fleet = self.writer.fleet
        self.ledger = Ledger()
        self.capacity = Capacity(self.fleet, self.ledger)
        self.hardware = HardwareAnswers(self.fleet)
        self.names = NameOrder()
        self.batches: dict[str, bytes] = {}  # by decision

    def decide(self, number: int) -> None:
        rng = self.rng
        group = rng.randrange(1 + number // 2) if number and rng.random() < 0.3 else number
        record = random_revision(rng, f"g{group}", number + 1)
        held = existing_placement(record, self.fleet, self.ledger).unchanged_clusters(record.apps, self.fleet)
        taste = random_taste(rng, record, self.fleet)
        ask = Ask(
            group=record.group,
            revision=record.revision,
            budget_ms=1,
            epoch=str(self.fleet.epoch),
            tenant="",
            apps=record.apps,
            held=held,
        )
        found = {"hpa": self.hardware.answer(ask), "taste": taste}
        replies = {name: Reply("answered", msgspec.json.encode(answer), 1.0) for name, answer in found.items()}
        replies["late"] = Reply("timeout", b"", 500.0)
        controllers = [
            Controller(name="hpa", weight=2, policy="required", kinds={"HpaIntent": {}}),
            Controller(name="taste", weight=1, priority=3),
            Controller(name="late", policy="stale-ok"),
        ]
        stale = {"late": replies["hpa"].data} if rng.random() < 0.3 else {}
        results = gather(Replies([app.name for app in record.apps], controllers, replies, stale), self.fleet)
        solutions, tried = PackingSolutions(), TriedChoices()
        ident = f"d{number}"
        proposal = propose(record, results, self.fleet, self.ledger, self.names, ident, solutions, tried)
        if not isinstance(proposal, Decision):
            return
        taken = Recording.take(proposal, record, results, tried, self.fleet, self.ledger, solutions)
        self.capacity.hold(proposal)
        changes = self.ledger.fold(self.ledger.seq + 1, Commit(id=ident, entries=[proposal]))
        self.capacity.folded(changes, [proposal])
        if ident in changes.refused:
            return
        self.batches[ident] = encode_batch({ident: taken.encode(RELEASE)}, taken.answers())
        if rng.random() < 0.5:
            self.run(proposal)

    def run(self, decision: Decision) -> None:
        """Lets pods of the decision run, some of them on another node than their slot, some of them ending."""
        for claim in decision.claims:
            cid = self.fleet.ids[claim.cluster]
            nodes = self.fleet.nodes_of(cid)
            live: dict[str, int] = {}
            for slot in claim.slots:
                at = slot.node if self.rng.random() < 0.8 else self.rng.choice(nodes)
                live[at] = live.get(at, 0) + slot.count
            ending = {claim.id: dict.fromkeys(live, 1)} if self.rng.random() < 0.2 else {}
            self.writer.put(cid, claim.cluster, [], claims={claim.id: live}, ending=ending)


@cache
def decided(seed: int = 1, groups: int = 270, clusters: int = 80) -> World:
    world = World(seed, clusters)
    for number in range(groups):
        world.decide(number)
    return world


def again(batch: bytes, ident: str, release: str = RELEASE) -> Replay:
    return replay(decode_batch(batch), ident, release)


@pytest.mark.timeout(400)
def test_decisions_replay_exactly_after_the_fleet_changed() -> None:
    """Replays every fourth of two hundred; the long test has all decisions of many worlds."""
    world = decided()
    assert len(world.batches) >= 200
    for cid in range(world.fleet.size):
        world.writer.put(cid, world.fleet.names[cid], [], whole=True, labels={})
    for ident, batch in list(world.batches.items())[::4]:
        found = again(batch, ident)
        assert found.same and not found.unsure, (ident, found)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
def test_many_worlds_replay_exactly(seed: int) -> None:
    world = World(seed, clusters=5 + 7 * (seed % 9))
    for number in range(200):
        world.decide(number)
    assert world.batches
    for ident, batch in world.batches.items():
        found = again(batch, ident)
        assert found.same and not found.unsure, (ident, found)


# -- changed records --------------------------------------------------------------------------------------------------

Change = Callable[[DecisionRecord, Excerpt], None]


def changed(batch: bytes, ident: str, change: Change, *, hashed: bool = True) -> bytes:
    """Returns the batch with the record changed, `hashed` as if it had been written so."""
    read = decode_batch(batch)
    record = msgspec.msgpack.decode(read.records[ident], type=DecisionRecord)
    excerpt = msgspec.msgpack.decode(record.fleet, type=Excerpt)
    change(record, excerpt)
    record.fleet = msgspec.Raw(msgspec.msgpack.encode(excerpt))
    read.records[ident] = msgspec.msgpack.encode(record)
    if hashed:
        read.digests[ident] = digest(read.records[ident])
    return zlib.compress(msgspec.msgpack.encode(read))


def another_node(record: DecisionRecord, _: Excerpt) -> None:
    record.decision.claims[0].slots[0].node += "x"


def another_cluster(record: DecisionRecord, _: Excerpt) -> None:
    record.decision.claims[0].cluster = "lab/elsewhere"


def another_score(record: DecisionRecord, _: Excerpt) -> None:
    record.decision.scores = {app: score / 2 + 0.1 for app, score in record.decision.scores.items()}


def another_value(record: DecisionRecord, _: Excerpt) -> None:
    (cid, value), *rest = record.tried[-1].ranked[0]
    record.tried[-1].ranked[0] = [(cid, value + 1), *rest]


def another_weight(record: DecisionRecord, _: Excerpt) -> None:
    record.controllers[0].weight = 7.0


def less_free(_: DecisionRecord, excerpt: Excerpt) -> None:
    free, total = excerpt.sums["cpu"]
    excerpt.sums["cpu"] = (np.frombuffer(free, "<i8") - 1000).tobytes(), total


def nothing_usable(_: DecisionRecord, excerpt: Excerpt) -> None:
    excerpt.usable = pack(np.zeros(excerpt.size, np.bool_))


def another_need(record: DecisionRecord, _: Excerpt) -> None:
    record.revision.apps[0].shapes[0].resources["cpu"] += 100


CHANGES: list[Change] = [
    another_node,
    another_cluster,
    another_score,
    another_value,
    another_weight,
    less_free,
    nothing_usable,
    another_need,
]


def plain_decisions() -> Iterator[tuple[str, bytes]]:
    """Yields decisions with a claimed slot and scores, of which something can be changed."""
    for ident, batch in decided().batches.items():
        record = msgspec.msgpack.decode(decode_batch(batch).records[ident], type=DecisionRecord)
        first = record.revision.apps[0].shapes
        if (
            first
            and "cpu" in first[0].resources
            and not first[0].per_node
            and not record.own
            and record.decision.scores
        ):
            yield ident, batch


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_record_is_found(change: Change) -> None:
    tried = list(plain_decisions())[:12]
    assert len(tried) > 5
    found = [again(changed(batch, ident, change), ident) for ident, batch in tried]
    # Two weights may have the same effect on one group; anything else shows in each.
    assert (any if change is another_weight else all)(not one.same for one in found)
    assert all(one.differences for one in found if not one.same)


def test_damage_is_found_by_its_hash() -> None:
    ident, batch = next(plain_decisions())

    def later(record: DecisionRecord, _: Excerpt) -> None:
        record.decision.traceparent = "x"  # nothing is computed from it

    found = again(changed(batch, ident, later, hashed=False), ident)
    assert [difference.what for difference in found.differences] == ["hash of the record"]
    read = decode_batch(batch)
    read.answers = {name: data.replace(b"}", b" }", 1) for name, data in read.answers.items()}
    found = again(zlib.compress(msgspec.msgpack.encode(read)), ident)
    differences = {difference.what for difference in found.differences}
    assert {"hash of the answer of hpa", "hash of the answer of taste"} <= differences
    assert all(what.startswith("hash of the answer of ") for what in differences)


def test_what_is_not_recorded_or_unreadable_says_so() -> None:
    ident, batch = next(plain_decisions())
    with pytest.raises(NotRecorded):
        again(batch, "other")
    read = decode_batch(batch)
    read.records[ident] = read.records[ident][:-5]
    with pytest.raises(msgspec.DecodeError):
        again(zlib.compress(msgspec.msgpack.encode(read)), ident)

    def junk(_: DecisionRecord, excerpt: Excerpt) -> None:
        excerpt.rows = b"junk"

    found = again(changed(batch, ident, junk), ident)
    assert [difference.what for difference in found.differences] == ["record"]


def test_another_release_is_named() -> None:
    ident, batch = next(plain_decisions())
    found = again(batch, ident, "9.9.9")
    assert found.same and found.unsure == [f"the decision was made by release {RELEASE}, this is 9.9.9"]


def hard_world() -> tuple[Revision, Fleet]:
    """Four nodes that twelve pods fill exactly, in a way that the quick search does not find."""
    rng = np.random.default_rng(12)
    problem = planted_packing(rng, 12, 4, 2, 0.0)
    names = ("cpu", "memory")
    nodes = [node(cpu=f"{cpu}m", memory=str(memory)) for cpu, memory in problem.free.tolist()]
    shapes = [
        Shape(key=str(i), object=f"Deployment/p{i}", resources=dict(zip(names, need, strict=True)), template="t")
        for i, need in enumerate(problem.needs.tolist())
    ]
    return revision("hard", ShapedApp(name="a", shapes=shapes)), fleet_of({"lab/one": nodes})


def test_a_packing_that_a_solver_found_is_taken_from_the_record_and_one_that_it_gave_up_is_said() -> None:
    record, fleet = hard_world()
    results = gather(Replies(["a"], [], {}, {}), fleet)
    ledger, solutions = Ledger(), PackingSolutions()
    propose(record, results, fleet, ledger, NameOrder(), "d", solutions)
    assert solutions.unsolved, "the quick search finds it: take another"
    solutions.add(solve(solutions.unsolved, 20))
    tried = TriedChoices()
    proposal = propose(record, results, fleet, ledger, NameOrder(), "d", solutions, tried)
    assert isinstance(proposal, Decision)
    taken = Recording.take(proposal, record, results, tried, fleet, ledger, solutions)
    batch = encode_batch({"d": taken.encode(RELEASE)}, taken.answers())
    assert again(batch, "d").same

    def stopped(record: DecisionRecord, _: Excerpt) -> None:
        record.packings[0].packed, record.packings[0].gave_up = None, 0.5

    found = again(changed(batch, "d", stopped), "d")
    assert not found.same
    assert "stopped by time after 500 ms" in found.unsure[0]
