"""Settling a cluster whose applications run in slots of machines that several types share, or have devices that nodes count."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from moorage.classes import BUILT_IN_ONLY
from moorage.fleet import FleetWriter, normalize_node, with_devices
from moorage.ledger import Capacity, Ledger
from moorage.merger.core.settle import settle
from moorage.merger.core.settlement_draft import Draft, Progress, Surroundings
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Settlement, SlotReservations, claim_id
from moorage.model.groups import Revision
from moorage.model.machine_slots import Dependent, ReservedSlots, reservation_claim, slot_resource
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import DeviceGrant, Slot
from moorage_testkit.fleets import node, writer_of

CLUSTER, WHOLE, HALF = "lab/one", "g/whole", "g/half"
NODES = ("n-0", "n-1", "n-2")


class World:
    def __init__(self, *slots: int) -> None:
        self.writer = writer_of({CLUSTER: [node(cpu="64", memory="64Gi") for _ in NODES]})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.documents: dict[str, Revision] = {}
        reserved = ReservedSlots(
            machine=WHOLE,
            cluster=CLUSTER,
            size={"cpu": 4000, "pods": 2},
            slots=dict(zip(NODES, slots, strict=True)),
            children={HALF: {"cpu": 2000, "pods": 1}},
            dependents={HALF: Dependent(parent=WHOLE, per_parent=2)},
        )
        self.fold(SlotReservations(id="r", generation=1, reserved=[reserved]))

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        changes = self.ledger.fold(self.ledger.seq + 1, commit)
        self.capacity.folded(changes, commit.entries_of(Decision), [r.id for r in commit.entries_of(SlotReservations)])

    def decide(self, group: str, kind: str, *at: str) -> bool:
        resources = {slot_resource(kind): 1}
        shape = Shape(key=group, object="Deployment/d", count=len(at), resources=resources, machine=kind, template="t")
        claim = Claim(
            id=claim_id(group, "a", shape.object, CLUSTER, "t"),
            decision=group,
            intent=IntentRef(kind="Application", name=group, revision=1),
            tenant="t",
            app="a",
            object=shape.object,
            cluster=CLUSTER,
            within=reservation_claim(kind, CLUSTER),
            slots=[Slot(node=name, count=count, resources=resources) for name, count in Counter(at).items()],
        )
        decision = Decision(id=group, group=group, revision=1, claims=[claim])
        self.capacity.hold(decision)
        if not self.capacity.fits(group):
            self.capacity.give_back(group)
            return False
        self.fold(decision)
        app = ShapedApp(name="a", replicas=1, shapes=[shape])
        self.documents[group] = Revision(group=group, revision=1, tenant="t", apps=[app])
        return True

    def lose(self, name: str) -> None:
        rows = [normalize_node(node(other, cpu="64", memory="64Gi", ready=other != name))[0] for other in NODES]
        self.writer.put(0, CLUSTER, rows, whole=True)

    def settle(self, lost: str, *, ran: bool = True) -> Settlement:
        """Settles after a node is lost. A group that did not run yet may be ended for an older one."""
        held, progress = self.capacity.held_on(CLUSTER), Progress(reached=ran, ran=ran, restorable=False)
        around = Surroundings(self.documents, held, frozenset((lost,)), lambda _group: progress)
        entry = settle(Draft(0, self.ledger, self.writer.fleet, around)).entry
        fewer = around._replace(objects=self.capacity.to_settle(CLUSTER, whole=True))
        assert entry == settle(Draft(0, self.ledger, self.writer.fleet, fewer)).entry
        return entry if entry is not None else Settlement(cluster=CLUSTER, epoch="", slots={})

    def pods(self, settled: Settlement) -> dict[str, Counter[str]]:
        """Returns what is on each node of each type after a settlement. Older groups have the slots of those that it displaces."""
        found: dict[str, Counter[str]] = {name: Counter() for name in NODES}
        for ident, active in self.ledger.claims.items():
            if active.claim.decision in settled.ended or active.group in settled.displaced:
                continue
            for slot in settled.slots.get(ident, active.claim.slots):
                for resource in slot.resources:
                    found[slot.node][resource] += slot.count
        return found


def holds(slots: int, pods: Counter[str]) -> bool:
    return pods[slot_resource(WHOLE)] + -(-pods[slot_resource(HALF)] // 2) <= slots


def test_a_claim_leaves_a_lost_node_for_a_slot_that_another_type_has_opened() -> None:
    world = World(1, 1, 0)
    assert world.decide("one", HALF, "n-0") and world.decide("two", HALF, "n-1")
    world.lose("n-0")
    (moved,) = world.settle("n-0").slots.values()
    assert [(slot.node, slot.count) for slot in moved] == [("n-1", 1)]


def test_a_whole_slot_does_not_move_to_one_that_a_half_has_opened() -> None:
    world = World(1, 1, 1)
    assert world.decide("one", WHOLE, "n-0") and world.decide("two", HALF, "n-1")
    world.lose("n-0")
    (moved,) = world.settle("n-0").slots.values()
    assert [(slot.node, slot.count) for slot in moved] == [("n-2", 1)]
    full = World(1, 1, 0)
    assert full.decide("one", WHOLE, "n-0") and full.decide("two", HALF, "n-1")
    full.lose("n-0")
    assert full.settle("n-0").displaced.keys() == {"two"}, "the older one gets its slot"


@pytest.mark.parametrize("seed", range(40))
def test_slots_of_several_types_that_move_never_exceed_those_of_their_nodes(seed: int) -> None:
    rng = Random(seed)
    counts = [rng.randint(1, 3) for _ in NODES]
    world = World(*counts)
    for number in range(rng.randint(1, 6)):
        at = [rng.choice(NODES) for _ in range(rng.randint(1, 2))]
        world.decide(f"a{number}", rng.choice((WHOLE, HALF)), *at)
    lost = rng.choice(NODES)
    world.lose(lost)
    settled = world.settle(lost, ran=bool(seed % 2))
    after = world.pods(settled)
    for name, count in zip(NODES, counts, strict=True):
        assert holds(count, after[name]), after
    if not (settled.ended or settled.displaced):
        assert not +after[lost], "all of them fit on the nodes that are left"


def test_open_slots_with_devices_that_a_node_counts_keep_their_room() -> None:
    gpu = "nvidia.com/gpu"
    writer = FleetWriter()
    row = normalize_node(node("n-0", cpu="8", resources={gpu: "4"}))[0]
    writer.put(0, CLUSTER, [with_devices(row, BUILT_IN_ONLY)], whole=True)
    grant = DeviceGrant(part=f"n-0/{gpu}", need="gpu", name=gpu, amount=2)
    slot = Slot(node="n-0", count=2, resources={"pods": 1}, parts={grant.part: {gpu: 2}}, devices=[grant])
    intent = IntentRef(kind="Application", name="one", revision=1)
    claim = Claim(
        id="c", decision="one", intent=intent, tenant="t", app="a", object="Deployment/d", cluster=CLUSTER, slots=[slot]
    )
    ledger = Ledger()
    ledger.fold(1, Commit(id="1", entries=[Decision(id="one", group="one", revision=1, claims=[claim])]))
    shape = Shape(key="one", object="Deployment/d", count=2, template="t", resources={"pods": 1})
    apps = [ShapedApp(name="a", replicas=1, shapes=[shape])]
    documents = {"one": Revision(group="one", revision=1, tenant="t", apps=apps)}
    progress = Progress(reached=False, ran=False, restorable=False)
    settled = settle(Draft(0, ledger, writer.fleet, Surroundings(documents, progress=lambda _group: progress)))
    assert not settled.displaced and settled.entry is None
