"""Pods that are told to have other parts of their node than their slots: slots follow them, and nothing is given twice."""

from __future__ import annotations

from random import Random

import pytest

from moorage.fleet import FleetWriter
from moorage.ledger import Capacity, Ledger
from moorage.ledger.part_moves import follow_parts, parts_moved, same_slots
from moorage.merger.core.settle import is_unsettled, settle
from moorage.merger.core.settlement_draft import Draft, Surroundings
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef
from moorage.model.slots import DeviceGrant, PartAmounts, PodPlace, Slot, with_parts
from moorage_testkit.fleets import node, provider, two_zones, writer_of

A, B = ("n-0/numa-0", "n-0/numa-1")


def on(zone: str, cpu: int = 2000, **classes: int) -> PartAmounts:
    return {zone: {"cpu": cpu}} | ({f"{zone}/fpga": dict(classes)} if classes else {})


def slots(*parts: PartAmounts, name: str = "n-0") -> list[Slot]:
    return with_parts(Slot(node=name, resources={"cpu": 2000, "pods": 1}), [PodPlace(one, one) for one in parts])


def test_slots_take_the_parts_of_their_pods() -> None:
    found = slots(on(A), on(A))
    assert follow_parts(found, {}) is found
    assert not parts_moved(found, {"n-0": [(on(A), 1)]})
    moved = follow_parts(found, {"n-0": [(on(A), 1), (on(B), 1)]})
    assert same_slots(moved, slots(on(A), on(B)))
    assert moved[1].aligned == on(B)
    assert not parts_moved(moved, {"n-0": [(on(B), 1), (on(A), 1)]}), "then nothing moves"
    # More pods than slots: none of the strays has a slot here.
    assert same_slots(follow_parts(slots(on(A)), {"n-0": [(on(B), 3)]}), slots(on(B)))
    # Pods of other nodes, and those that only take what the claim does not ask of parts.
    assert not parts_moved(found, {"n-1": [(on(B), 1)]})
    assert not parts_moved(found, {"n-0": [({B: {"memory": 5}}, 2)]})
    assert not parts_moved([Slot(node="n-0")], {"n-0": [(on(B), 2)]}), "a claim without parts"


def test_a_source_that_knows_some_classes_moves_only_those() -> None:
    grants = [
        DeviceGrant(part=A, need="_C", name="cpu", amount=2000),
        DeviceGrant(part=f"{A}/fpga", need="_A", name="FPGA", amount=1),
    ]
    (slot,) = slots(on(A, FPGA=1))
    slot.devices, slot.starting = grants, {"cpu": 3000}
    (after,) = follow_parts([slot], {"n-0": [(on(B) | {B: {"cpu": 2000, "memory": 7}}, 1)]})
    assert after.parts == {f"{A}/fpga": {"FPGA": 1}, B: {"cpu": 2000}}
    assert [grant.part for grant in after.devices] == [B, f"{A}/fpga"]
    assert after.starting == {}
    # A slot that came from another node has no parts yet.
    (bare,) = follow_parts([Slot(node="n-0"), *slots(on(A), name="n-1")], {"n-0": [(on(B), 1)]})[:1]
    assert bare.parts == on(B)


@pytest.mark.parametrize("seed", range(40))
def test_random_pods_are_followed_once_and_slots_keep_their_number(seed: int) -> None:
    random = Random(seed)
    zones = [f"n-0/numa-{z}" for z in range(3)]
    have = slots(*(on(random.choice(zones)) for _ in range(random.randint(1, 5))))
    pods = [(on(random.choice(zones)), random.randint(1, 2)) for _ in range(random.randint(1, 3))]
    after = follow_parts(have, {"n-0": pods})
    assert sum(s.count for s in after) == sum(s.count for s in have)
    assert not parts_moved(after, {"n-0": pods})
    told = sum(count for _, count in pods)
    if told <= sum(s.count for s in have):
        left = [slot.parts for slot in after for _ in range(slot.count)]
        for parts, count in pods:
            for _ in range(count):
                left.remove(parts)
        before = [slot.parts for slot in have for _ in range(slot.count)]
        assert all(parts in before for parts in left), "slots without a told pod stay"


class World:
    """A node with two zones of four cores and a claim of `c`."""

    def __init__(self, *parts: PartAmounts) -> None:
        cards = [provider(f"numa-{z}/fpga", f"numa-{z}", FPGA="1") for z in (0, 1)]
        self.plain = node("n-0", cpu="8", zones=two_zones("4"), providers=cards)
        self.writer: FleetWriter = writer_of({"lab/one": [self.plain]})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        intent = IntentRef(kind="Application", name="g", revision=1)
        claim = Claim(
            id="c", decision="d", intent=intent, tenant="t", slots=slots(*parts), app="a", object="StatefulSet/s",
            cluster="lab/one",
        )  # fmt: skip
        self.fold(Decision(id="d", group="g", revision=1, claims=[claim]))

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def pods(self, live: int, *named: tuple[PartAmounts, int]) -> None:
        told = {"c": {"n-0": list(named)}} if named else {}
        self.writer.put(0, "lab/one", claims={"c": {"n-0": live}}, named=told)

    def taken(self) -> dict[str, dict[str, int]]:
        row = self.writer.fleet.row_of(0, "n-0")
        assert row is not None
        return self.writer.fleet.parts_taken(row)

    def settle(self) -> bool:
        objects = self.capacity.to_settle("lab/one", whole=False)
        draft = Draft(0, self.ledger, self.writer.fleet, Surroundings(objects=objects))
        assert is_unsettled(draft) == self.capacity.may_be_unsettled("lab/one")
        found = settle(draft)
        if found.entry is not None:
            self.fold(found.entry)
        return found.entry is not None


def test_a_pod_covers_its_slot_in_parts_once_its_source_names_it() -> None:
    world = World(on(A), on(A))
    world.pods(2)
    assert world.taken() == {A: {"cpu": 4000}}
    world.pods(2, (on(A), 1))
    assert world.taken() == {A: {"cpu": 2000}} and not world.settle()
    world.pods(2, (on(A), 2))
    assert world.taken() == {} and not world.settle()
    world.pods(1, (on(A), 1))
    assert world.taken() == {A: {"cpu": 2000}}


def test_a_pod_on_other_parts_counts_in_both_until_its_slot_follows() -> None:
    world = World(on(A), on(A))
    world.pods(2, (on(A), 1), (on(B), 1))
    assert world.taken() == {A: {"cpu": 2000}}, "the slot that nobody covers, beside what is in use"
    assert world.settle()
    assert world.taken() == {}
    assert {part for slot in world.ledger.claims["c"].claim.slots for part in slot.parts} == {A, B}
    assert not world.settle()
