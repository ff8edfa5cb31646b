"""Claims on parts: what is given once is not given again, by whatever way it is asked for."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from moorage.fit import Unassigned
from moorage.fleet import Fleet, FleetWriter
from moorage.ledger import Capacity, Ledger, Placed, Wanted, assign_beside_own
from moorage.ledger.room import gone_parts
from moorage.merger.core.propose import NameOrder, ProposalRefused, propose
from moorage.merger.core.responses import ControllerResults, Replies, gather
from moorage.merger.core.settle import settle
from moorage.merger.core.settlement_draft import Draft, Surroundings
from moorage.model.candidates import OwnClaim
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Withdrawal, claim_id
from moorage.model.part_requests import PartGroup, SameSubtree
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import PodPlace, Slot, with_parts
from moorage_testkit.fleets import node, provider, two_zones, writer_of
from moorage_testkit.merger_harness import revision

ZONE0 = {"n-0/numa-0": {"cpu": 2000}, "n-0/numa-0/fpga": {"FPGA": 1}}
ZONE1 = {"n-0/numa-1": {"cpu": 2000}, "n-0/numa-1/fpga": {"FPGA": 1}}


def zoned(name: str = "", **fields: Any) -> NodeReport:
    """A node with two zones of four cores and an FPGA each."""
    cards = [provider(f"numa-{z}/fpga", f"numa-{z}", FPGA="1") for z in (0, 1)]
    return node(name, cpu="8", zones=two_zones("4"), providers=cards, **fields)


def pair(count: int = 1, cores: int = 2, **fields: Any) -> Shape:
    values: dict[str, Any] = {
        "key": f"pair{count}-{cores}",
        "object": "StatefulSet/s",
        "template": "t",
        "count": count,
        "resources": {"cpu": cores * 1000, "pods": 1},
        "groups": [
            PartGroup(suffix="_C", resources={"cpu": cores * 1000}),
            PartGroup(suffix="_A", resources={"FPGA": 1}),
        ],
        "relations": [SameSubtree(groups=("_C", "_A"))],
    }
    return Shape(**values | fields)


def slots(*parts: dict[str, dict[str, int]], name: str = "n-0") -> list[Slot]:
    return with_parts(Slot(node=name, resources={"cpu": 2000, "pods": 1}), [PodPlace(one, {}) for one in parts])


def claim(ident: str, *found: Slot) -> Claim:
    intent = IntentRef(kind="Application", name="g", revision=1)
    return Claim(
        id=ident,
        decision="d",
        intent=intent,
        tenant="t",
        slots=list(found),
        app="a",
        object=f"StatefulSet/{ident}",
        cluster="lab/one",
    )


def decision(ident: str, *claims: Claim, revision: int = 1) -> Decision:
    return Decision(id=ident, group=f"g-{ident}", revision=revision, claims=list(claims))


class World:
    def __init__(self, *nodes: NodeReport) -> None:
        self.writer: FleetWriter = writer_of({"lab/one": nodes})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)

    @property
    def fleet(self) -> Fleet:
        return self.writer.fleet

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def taken(self, name: str = "n-0") -> dict[str, dict[str, int]]:
        row = self.fleet.row_of(0, name)
        assert row is not None
        return self.fleet.parts_taken(row)

    def placed(self, *wanted: Wanted) -> list[Placed] | Unassigned:
        return assign_beside_own(self.fleet, 0, wanted)


def total(*parts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one in parts:
        for part, amounts in one.items():
            for name, amount in amounts.items():
                found.setdefault(part, {})[name] = found.get(part, {}).get(name, 0) + amount
    return found


def test_parts_of_claims_are_taken_until_their_release() -> None:
    world = World(zoned())
    first = decision("d1", claim("k", *slots(ZONE0)))
    world.capacity.hold(first)
    assert world.taken() == ZONE0 and world.capacity.fits("d1")
    rival = decision("d2", claim("l", *slots(ZONE0)))
    world.capacity.hold(rival)
    assert not world.capacity.fits("d2")
    world.capacity.give_back("d2")
    world.fold(first)
    assert world.taken() == ZONE0
    before = world.fleet.tick
    world.fold(Withdrawal(group="g-d1", revision=1))
    assert world.taken() == ZONE0
    world.fold(Release(claims=["k"]))
    assert world.taken() == {}
    improved = world.fleet.improved_since(before)
    assert improved is not None and improved.size == 1, "a group that waits for a card is woken"


def test_a_pod_covers_its_slot_at_the_node_but_not_in_parts_whose_source_does_not_name_it() -> None:
    world = World(zoned())
    aligned = slots(ZONE0)
    aligned[0].aligned = {"n-0/numa-0": {"cpu": 2000}}
    world.fold(decision("d1", claim("k", *aligned)))
    world.writer.put(0, "lab/one", claims={"k": {"n-0": 1}})
    cpu = world.fleet.free("cpu")
    assert cpu is not None and int(cpu[0]) == 8000
    assert world.taken() == ZONE0
    world.writer.put(0, "lab/one", claims={"k": {"n-0": 1}}, counted={"k": {"n-0": 1}})
    card = {"n-0/numa-0/fpga": {"FPGA": 1}}
    assert int(cpu[0]) == 8000 and world.taken() == card, "no report of zones includes the card"
    world.writer.put(0, "lab/one", claims={"k": {"n-0": 1}})
    assert world.taken() == ZONE0
    world.writer.put(0, "lab/one", claims={"k": {}})
    assert int(cpu[0]) == 6000 and world.taken() == ZONE0


def test_claims_stay_while_their_part_is_gone_and_count_when_it_is_back() -> None:
    world = World(zoned())
    world.fold(decision("d1", claim("k", *slots(ZONE1))))
    without = zoned("n-0")
    without.providers = [one for one in without.providers or () if one.id == "numa-0/fpga"]
    renew(world, without)
    assert world.taken() == {"n-0/numa-1": {"cpu": 2000}}
    assert gone_parts(world.ledger.standing["g-d1"].claims, world.fleet) == ["n-0/numa-1/fpga"]
    assert not world.capacity.may_be_unsettled("lab/one")
    renew(world, zoned("n-0"))
    assert world.taken() == ZONE1 and not gone_parts(world.ledger.standing["g-d1"].claims, world.fleet)


def renew(world: World, report: NodeReport) -> None:
    fresh = writer_of({"lab/one": [report]})
    row = fresh.row(0, "n-0")
    assert row is not None
    world.writer.put(0, "lab/one", [row])


def test_what_fits_by_sums_waits_when_the_zones_are_full() -> None:
    world = World(zoned(), zoned())
    found = world.placed(Wanted(pair(4), "k"))
    assert isinstance(found, list)
    world.fold(decision("d1", claim("k", *found[0].slots)))
    assert total(world.taken("n-0"), world.taken("n-1")) == total(
        *(slot.parts for slot in found[0].slots for _ in range(slot.count))
    )
    refused = world.placed(Wanted(pair(1, object="StatefulSet/t"), "l"))
    assert isinstance(refused, Unassigned) and refused.code == "PartShort"


def test_slots_that_stay_keep_their_parts() -> None:
    world = World(zoned())
    world.fold(decision("d1", claim("k", *slots(ZONE1))))
    own = [OwnClaim(id="k", object="StatefulSet/s", slots=slots(ZONE1))]
    found = world.placed(Wanted(pair(1), "k", own))
    assert isinstance(found, list) and [slot.parts for slot in found[0].slots] == [ZONE1]
    wider = world.placed(Wanted(pair(2), "k", own))
    assert isinstance(wider, list) and [slot.parts for slot in wider[0].slots] == [ZONE1, ZONE0]


def test_an_update_takes_over_the_parts_of_the_object() -> None:
    world = World(zoned())
    world.fold(decision("d1", claim("k", *slots(ZONE0, ZONE1))))
    own = [OwnClaim(id="k", object="StatefulSet/s", slots=slots(ZONE0, ZONE1))]
    found = world.placed(Wanted(pair(2, cores=3), "new", own))
    assert isinstance(found, list), found
    taken = [slot.parts for slot in found[0].slots for _ in range(slot.count)]
    assert total(*taken) == {
        f"n-0/numa-{z}{path}": {name: amount}
        for z in (0, 1)
        for path, name, amount in (("", "cpu", 3000), ("/fpga", "FPGA", 1))
    }
    assert isinstance(world.placed(Wanted(pair(2, cores=5), "new", own)), Unassigned)
    beside = world.placed(Wanted(pair(2, cores=3, surge=1), "new", own))
    assert isinstance(beside, Unassigned), "the pod that starts first finds no card"


def test_settlements_move_parts_as_they_move_nodes() -> None:
    world = World(zoned(), zoned())
    shape = pair(1, object="StatefulSet/k")
    app = ShapedApp(name="a", shapes=[shape])
    document = revision("g", app)
    ident = claim_id(document.group, "a", "StatefulSet/k", "lab/one", "t")
    found = Claim(
        id=ident,
        decision="d",
        intent=IntentRef(kind="Application", name="g", revision=1),
        tenant="t",
        slots=slots(ZONE0),
        app="a",
        object="StatefulSet/k",
        cluster="lab/one",
    )
    world.fold(Decision(id="d", group=document.group, revision=1, claims=[found]))
    report = zoned("n-0", in_use={"numa-0/fpga": {"FPGA": "1"}})  # a stranger took the card
    renew(world, report)
    assert world.capacity.may_be_unsettled("lab/one")
    settled = settle(Draft(0, world.ledger, world.fleet, Surroundings(documents={document.group: document})))
    assert settled.entry is not None and not settled.displaced
    (moved,) = settled.entry.slots[ident]
    assert moved.parts and "n-0/numa-0" not in moved.parts
    world.fold(settled.entry)
    assert total(world.taken("n-0"), world.taken("n-1")) == moved.parts
    assert not world.capacity.may_be_unsettled("lab/one")


def test_daemon_sets_get_parts_of_nodes_that_come_later() -> None:
    world = World(zoned())
    shape = pair(1, object="DaemonSet/d", per_node=True)
    document = revision("g", ShapedApp(name="a", shapes=[shape]))
    ident = claim_id(document.group, "a", "DaemonSet/d", "lab/one", "t")
    found = claim(ident, *slots(ZONE0))
    found.object, found.app = "DaemonSet/d", "a"
    world.fold(Decision(id="d", group=document.group, revision=1, claims=[found]))
    later = writer_of({"lab/one": [zoned("n-0"), zoned("n-1")]})
    row = later.row(0, "n-1")
    assert row is not None
    world.writer.put(0, "lab/one", [row])
    settled = settle(Draft(0, world.ledger, world.fleet, Surroundings(documents={document.group: document})))
    assert settled.entry is not None and not settled.displaced
    here = {slot.node: slot.parts for slot in settled.entry.slots[ident]}
    assert here == {"n-0": ZONE0, "n-1": {part.replace("n-0", "n-1"): amounts for part, amounts in ZONE0.items()}}
    world.fold(settled.entry)
    assert world.taken("n-1") == here["n-1"]
    again = settle(Draft(0, world.ledger, world.fleet, Surroundings(documents={document.group: document})))
    assert again.entry is None


@pytest.mark.parametrize(
    ("steering", "pinned"), [("", True), ("pinned", True), ("required", False), ("preferred", False)]
)
def test_pods_with_parts_on_several_nodes_are_pinned(steering: Any, pinned: bool) -> None:
    world = World(zoned("n-0"), zoned("n-1"))

    def decide(count: int) -> Decision:
        record = revision("g", ShapedApp(name="a", shapes=[pair(count, object="Deployment/d")], steering=steering))
        results: ControllerResults = gather(Replies(["a"], [], {}, {}), world.fleet)
        decided = propose(record, results, world.fleet, world.ledger, NameOrder(), f"d{count}")
        assert isinstance(decided, Decision)
        world.fold(decided)
        return decided

    alone = decide(1).claims[0]
    assert alone.pinned == (steering == "pinned")
    several = decide(3).claims[0]
    assert len({slot.node for slot in several.slots}) == 2 and several.pinned == pinned
    assert several.required_nodes.keys() == (set() if pinned else {"n-0", "n-1"})
    assert decide(1).claims[0].pinned == pinned, "another template would restart pods"


def test_decisions_are_proposed_with_parts() -> None:
    world = World(zoned())
    record = revision("g", ShapedApp(name="a", shapes=[pair(2)]))
    results: ControllerResults = gather(Replies(["a"], [], {}, {}), world.fleet)
    proposed = propose(record, results, world.fleet, world.ledger, NameOrder(), "d")
    assert isinstance(proposed, Decision)
    assert [slot.parts for slot in proposed.claims[0].slots] == [ZONE0, ZONE1]
    assert [warning.code for warning in proposed.warnings] == ["ChosenByKubelet"]
    again = msgspec.json.decode(msgspec.json.encode(proposed), type=Decision)
    assert again == proposed
    world.fold(proposed)
    other = revision("h", ShapedApp(name="a", shapes=[pair(1)]))
    refused = propose(other, results, world.fleet, world.ledger, NameOrder(), "e")
    assert isinstance(refused, ProposalRefused)
    assert {reason.code for reason in refused.reasons} >= {"PartShort"}


def test_random_decisions_never_give_a_part_twice() -> None:
    for seed in range(30):
        rng = Random(seed)
        world = World(*(zoned() for _ in range(rng.randint(1, 3))))
        standing: list[str] = []
        for step in range(12):
            if standing and rng.random() < 0.3:
                gone = standing.pop(rng.randrange(len(standing)))
                world.fold(Withdrawal(group=f"g-{gone}", revision=1))
                world.fold(Release(claims=[f"k-{gone}"]))
                continue
            ident = f"d{step}"
            cores = rng.randint(1, 4)
            found = world.placed(Wanted(pair(rng.randint(1, 2), cores, object=f"StatefulSet/{ident}"), f"k-{ident}"))
            if isinstance(found, Unassigned):
                continue
            world.fold(decision(ident, claim(f"k-{ident}", *found[0].slots)))
            standing.append(ident)
            for columns in world.fleet.parts.classes.values():
                there = columns.row >= 0
                assert (columns.used + columns.claimed <= columns.capacity)[there].all()
        for ident in standing:
            world.fold(Withdrawal(group=f"g-{ident}", revision=1))
            world.fold(Release(claims=[f"k-{ident}"]))
        assert all(not columns.claimed.any() for columns in world.fleet.parts.classes.values())
