"""Slots of machines in the ledger: the sum of a node never moves when a guest comes, and no slot is given twice."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from random import Random

import msgspec
import pytest

from moorage.fleet import normalize_node
from moorage.ledger import Capacity, Ledger
from moorage.model.claims import (
    Claim,
    Commit,
    Decision,
    Entry,
    IntentRef,
    Release,
    SlotGrants,
    SlotReservations,
    Withdrawal,
)
from moorage.model.machine_slots import GrantedSlot, ReservedSlots, machine_of, reservation_claim, slot_resource
from moorage.model.machines import Allow, Machine, MachineType, TypeSpec, Window
from moorage.model.slots import Slot
from moorage.slots.core.layout import NodeKey
from moorage.slots.core.planner import FleetRoom
from moorage.slots.core.slot_pods import SlotsInUse
from moorage_testkit.fleets import node, writer_of

CLUSTER, MACHINE = "lab/one", "general/large"
SLOT = slot_resource(MACHINE)
RESERVATION = reservation_claim(MACHINE, CLUSTER)
SIZE = {"cpu": 2000, "memory": 1 << 30, "pods": 1}


def reserved(windows: dict[str, dict[str, int]] | None = None, **slots: int) -> ReservedSlots:
    names = {name.replace("_", "-"): count for name, count in slots.items()}
    return ReservedSlots(machine=MACHINE, cluster=CLUSTER, size=SIZE, slots=names, windows=windows or {})


def guest(uid: str, name: str = "n-0", **fields: str | bool) -> GrantedSlot:
    values: dict[str, object] = {"machine": MACHINE, "cluster": CLUSTER, "node": name, "claim": RESERVATION}
    return GrantedSlot(uid=uid, **(values | fields))  # type: ignore[arg-type]


def app(ident: str, name: str = "n-0", count: int = 1) -> Decision:
    """An application that the mesh placed into slots."""
    claim = Claim(
        id=f"claim-{ident}",
        decision=ident,
        intent=IntentRef(kind="Application", name=ident, revision=1),
        tenant="t",
        app="a",
        object="Deployment/d",
        cluster=CLUSTER,
        within=RESERVATION,
        slots=[Slot(node=name, count=count, resources={SLOT: 1})],
    )
    return Decision(id=ident, group=f"g-{ident}", revision=1, claims=[claim])


class World:
    """One cluster of two nodes with eight cores each. `pods` are its live pods by name: their node and their claim."""

    def __init__(self) -> None:
        self.writer = writer_of({CLUSTER: [node(cpu="8", memory="64Gi"), node(cpu="8", memory="64Gi")]})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.pods: dict[str, tuple[str, str]] = {}

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        held = [r.id for r in commit.entries_of(SlotReservations)] + [g.id for g in commit.entries_of(SlotGrants)]
        changes = self.ledger.fold(self.ledger.seq + 1, commit)
        self.capacity.folded(changes, commit.entries_of(Decision), held)

    def reserve(self, *slots: ReservedSlots, generation: int = 1) -> bool:
        entry = SlotReservations(id=f"r{self.ledger.seq}", generation=generation, reserved=list(slots))
        self.capacity.hold_reservations(entry)
        fits = self.capacity.holds_room(entry.id)
        if fits:
            self.fold(entry)
        self.capacity.give_back_entry(entry.id)
        return fits

    def grant(self, *slots: GrantedSlot, withdrawn: tuple[str, ...] = (), observed: bool = False) -> bool:
        entry = SlotGrants(
            id=f"g{self.ledger.seq}", generation=1, granted=list(slots), withdrawn=list(withdrawn), observed=observed
        )
        self.capacity.hold_grants(entry)
        fits = observed or self.capacity.holds_room(entry.id)
        if fits:
            self.fold(entry)
        self.capacity.give_back_entry(entry.id)
        return fits

    def decide(self, decision: Decision) -> bool:
        self.capacity.hold(decision)
        fits = self.capacity.fits(decision.id)
        if fits:
            self.fold(decision)
        else:
            self.capacity.give_back(decision.id)
        return fits

    def free(self, name: str, resource: str = "cpu") -> int:
        fleet = self.writer.fleet
        row, column = fleet.row_of(0, name), fleet.free(resource)
        assert row is not None and column is not None
        return int(column[row])

    def report(self) -> None:
        """The agent reports its nodes and pods. A pod in a slot requests what a slot has."""
        bound = Counter(name for name, _ in self.pods.values())
        claims: dict[str, dict[str, int]] = {}
        for name, claim in self.pods.values():
            live = claims.setdefault(claim, {})
            live[name] = live.get(name, 0) + 1
        rows = []
        for name in ("n-0", "n-1"):
            pods = bound[name]
            requested = {"cpu": str(2 * pods), "memory": f"{pods}Gi"}
            rows.append(normalize_node(node(name, cpu="8", memory="64Gi", requested=requested, pod_count=pods))[0])
        self.writer.put(0, CLUSTER, rows, whole=True, claims=claims)

    def reload(self) -> None:
        self.ledger = Ledger.decode(self.ledger.encode())
        self.capacity.reload(self.ledger)


def test_pods_of_a_controller_before_are_room_for_the_slots_that_replace_them() -> None:
    """They carry the claim of a reservation that is not in the ledger yet."""
    w = World()
    w.pods = {f"old-{i}": (f"n-{i % 2}", RESERVATION) for i in range(8)}
    w.report()
    kind = MachineType(name="large", spec=TypeSpec(cpu="2", memory="1Gi"), available=8)
    room = FleetRoom(w.writer.fleet, w.ledger, Machine(name="m", group="general", types=(kind,)))
    assert w.free("n-0") == 0 and room.free(NodeKey(CLUSTER, "n-0"), "cpu") == 8000
    assert w.reserve(reserved(n_0=4, n_1=4))
    # One of them leaves, and a reservation comes in its place: nothing moves.
    room = FleetRoom(w.writer.fleet, w.ledger, Machine(name="m", group="general", types=(kind,)))
    assert w.free("n-0") == 0 and room.free(NodeKey(CLUSTER, "n-0"), "cpu") == 8000
    del w.pods["old-0"]
    w.report()
    assert w.free("n-0") == 0


def test_a_reservation_takes_its_room_and_offers_slots() -> None:
    world = World()
    before = world.writer.fleet.tick
    assert world.reserve(reserved(n_0=3))
    assert (world.free("n-0"), world.free("n-0", SLOT), world.free("n-1", SLOT)) == (2000, 3, 0)
    improved = world.writer.fleet.improved_since(before)
    assert improved is not None and improved.size == 1, "a group that waits for a slot is woken"
    assert not world.reserve(reserved(n_0=5)), "ten cores of eight"
    assert (world.free("n-0"), world.free("n-0", SLOT)) == (2000, 3)
    assert world.reserve(reserved())
    assert (world.free("n-0"), world.free("n-0", SLOT)) == (8000, 0)


def test_the_sum_of_a_node_stays_while_a_guest_replaces_a_reservation() -> None:
    world = World()
    world.reserve(reserved(n_0=2))
    world.pods = {"r-0": ("n-0", RESERVATION), "r-1": ("n-0", RESERVATION)}
    world.report()
    assert world.free("n-0") == 4000
    assert world.grant(guest("u"))
    assert (world.free("n-0"), world.free("n-0", SLOT)) == (4000, 1)
    del world.pods["r-1"]  # makes room
    world.report()
    assert world.free("n-0") == 4000
    world.pods["guest"] = ("n-0", RESERVATION)
    world.report()
    assert (world.free("n-0"), world.free("n-0", SLOT)) == (4000, 1)
    del world.pods["guest"]
    world.report()
    assert world.grant(withdrawn=("u",))
    assert (world.free("n-0"), world.free("n-0", SLOT)) == (4000, 2)


def test_a_guest_and_an_application_never_get_the_same_slot() -> None:
    world = World()
    world.reserve(reserved(n_0=2))
    assert world.decide(app("one")) and world.grant(guest("u"))
    assert not world.decide(app("two"))
    assert not world.grant(guest("v"))
    world.pods = {"pod-one": ("n-0", "claim-one")}
    world.report()
    assert (world.free("n-0"), world.free("n-0", SLOT)) == (4000, 0), "a running guest still has its slot"
    world.reload()
    assert (world.free("n-0"), world.free("n-0", SLOT)) == (4000, 0)
    world.fold(Withdrawal(group="g-one", revision=1))
    assert not world.decide(app("two")), "its pod still runs"
    world.fold(Release(claims=["claim-one"]))
    assert world.decide(app("two"))


def test_what_a_guest_has_already_counts_even_without_a_slot() -> None:
    world = World()
    world.reserve(reserved(n_0=1))
    assert world.decide(app("one"))
    assert world.grant(guest("u"), observed=True)
    assert world.free("n-0", SLOT) == -1
    assert not world.grant(guest("v"))


def test_slots_of_windows_and_of_the_cluster_are_not_offered_to_everyone() -> None:
    world = World()
    slots = reserved(windows={"night": {"n-0": 1}}, n_0=3)
    slots.offline, slots.kept = {"n-0": 1}, {"n-0": 1}
    assert world.reserve(slots)
    assert (world.free("n-0", SLOT), world.free("n-0", slot_resource(MACHINE, "night"))) == (1, 1)
    assert world.grant(guest("u", window="night", pool="night"))
    assert world.free("n-0", slot_resource(MACHINE, "night")) == 0
    assert world.grant(guest("v", apart=True)) and world.free("n-0", SLOT) == 1
    assert machine_of(slot_resource(MACHINE, "night")) == (MACHINE, "night") and machine_of("cpu") is None


def test_slots_that_a_window_keeps_are_lent_to_who_is_gone_before() -> None:
    def leased(ident: str, time: int) -> Decision:
        decision = app(ident)
        decision.claims[0].slots[0].resources = {slot_resource(MACHINE, before=time): 1}
        return decision

    world, soon, later = World(), 1_000, 2_000
    kept = msgspec.structs.replace(reserved(n_0=3), kept={"n-0": 2}, before={soon: {"n-0": 3}, later: {"n-0": 2}})
    assert world.reserve(kept) and world.writer.fleet.slot_times == {MACHINE: (soon, later)}

    def free() -> tuple[int, int, int]:
        return tuple(world.free("n-0", slot_resource(MACHINE, before=time)) for time in (soon, later, 0))  # type: ignore[return-value]

    assert free() == (3, 2, 1)
    assert world.decide(leased("a", soon)) and free() == (2, 2, 1), "it leaves others what it cannot have anyway"
    assert world.grant(msgspec.structs.replace(guest("u"), before=later)) and free() == (1, 1, 1)
    assert not world.decide(app("two", count=2)) and world.decide(app("b")) and free() == (0, 0, 0)
    assert not world.decide(leased("c", soon)) and not world.grant(guest("v"))
    fewer = msgspec.structs.replace(kept, slots={"n-0": 2})
    entry = SlotReservations(id="fewer", generation=1, reserved=[fewer])
    assert not world.capacity.keeps_slots(entry), "three have slots"
    entry.reserved = [msgspec.structs.replace(kept, before={soon: {"n-0": 3}})]
    assert not world.capacity.keeps_slots(entry), "somebody has slots until then"
    world.reload()
    assert free() == (0, 0, 0)
    world.reserve(reserved())
    assert world.writer.fleet.slot_times == {}


def test_a_slot_that_one_has_after_the_other_is_in_use_once() -> None:
    begin, end = (datetime.fromtimestamp(time, UTC).isoformat() for time in (2_000, 3_000))
    window = Window(name="w", slots=2, from_=begin, until=end)
    kind = MachineType(name="large", spec=TypeSpec(cpu="2", memory="1Gi"), available=3, windows=(window,))
    world, group, name = World(), MACHINE.partition("/")[0], MACHINE.partition("/")[2]
    machine = Machine(name="m", group=group, types=(msgspec.structs.replace(kind, name=name),))
    slots = [slot_resource(MACHINE, before=2_000), slot_resource(MACHINE, "w"), SLOT]
    for ident, resource in zip("abc", slots, strict=True):
        decision = app(ident, count=2 if ident == "b" else 1)
        decision.claims[0].slots[0].resources = {resource: 1}
        world.fold(decision)

    def in_use(now: float) -> int:
        return SlotsInUse.read(world.ledger, machine, (CLUSTER,), now).promised[name][NodeKey(CLUSTER, "n-0")]

    assert [in_use(now) for now in (1_000, 2_500, 3_500)] == [3, 3, 1]
    world.fold(SlotGrants(id="g", generation=1, granted=[guest("u")]))
    assert in_use(1_000) == 4


def test_the_fleet_knows_who_may_use_slots() -> None:
    world, night = World(), slot_resource(MACHINE, "night")
    slots = reserved(windows={"night": {"n-0": 1}}, n_0=2)
    assert world.reserve(slots) and not world.writer.fleet.slot_users
    slots.window_projects = {"night": ["owls"]}
    assert world.reserve(slots)
    assert world.writer.fleet.slot_users == {night: {CLUSTER: (Allow(projects=("owls",)),)}}
    slots.allow = Allow(projects=("owls", "larks"), namespaces=("zoo",))
    assert world.reserve(slots)
    for _ in range(2):
        may = {
            (r, namespace): [
                p for p in ("owls", "larks", "cats") if all(a.admits(p, namespace) for a in users[CLUSTER])
            ]
            for r, users in world.writer.fleet.slot_users.items()
            for namespace in ("zoo", "wild")
        }
        assert may == {
            (SLOT, "wild"): ["owls", "larks"],
            (SLOT, "zoo"): ["owls", "larks", "cats"],
            (night, "wild"): ["owls"],
            (night, "zoo"): ["owls"],
        }
        world.reload()
    tick = world.writer.fleet.tick
    assert world.reserve(slots) and not len(improved(world, tick)), "nothing changed"
    slots.allow = Allow(projects=("cats",))
    assert world.reserve(slots) and improved(world, tick) == [0], "who waits is tried again"
    assert world.reserve(reserved()) and not world.writer.fleet.slot_users


def improved(world: World, tick: int) -> list[int]:
    rows = world.writer.fleet.improved_since(tick)
    assert rows is not None
    return [int(row) for row in rows]


def test_an_older_worker_changes_nothing() -> None:
    world = World()
    assert world.reserve(reserved(n_0=1), generation=7)
    old = SlotReservations(id="old", generation=6, reserved=[reserved(n_0=3)])
    world.fold(old, SlotGrants(id="older", generation=6, granted=[guest("u")]))
    assert world.ledger.machines.granted == {} and world.free("n-0", SLOT) == 1


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_the_columns_are_as_counted_from_nothing(seed: int) -> None:
    rng, world = Random(seed), World()
    for step in range(60):
        name = f"n-{rng.randrange(2)}"
        match rng.randrange(7):
            case 0:
                world.reserve(reserved(n_0=rng.randrange(4), n_1=rng.randrange(4)))
            case 1:
                world.grant(guest(f"u{rng.randrange(6)}", name), withdrawn=(f"u{rng.randrange(6)}",))
            case 2:
                world.grant(withdrawn=(f"u{rng.randrange(6)}",))
            case 3:
                world.decide(app(f"a{step}", name, rng.randint(1, 2)))
            case 4 if world.ledger.claims:
                ident = rng.choice(sorted(world.ledger.claims))
                world.fold(Withdrawal(group=world.ledger.claims[ident].group, revision=1), Release(claims=[ident]))
            case 5:
                claims = [RESERVATION, *sorted(world.ledger.claims)]
                world.pods = {f"p{n}": (f"n-{rng.randrange(2)}", rng.choice(claims)) for n in range(rng.randrange(4))}
                world.report()
            case _:
                world.reload()
        again = World()
        again.ledger, again.pods = world.ledger, world.pods
        again.report()
        again.capacity.reload(world.ledger)
        for where in ("n-0", "n-1"):
            for resource in ("cpu", "memory", "pods"):
                assert world.free(where, resource) == again.free(where, resource), (seed, step, resource)
            slots = world.ledger.machines.reserved.get(RESERVATION, reserved()).slots.get(where, 0)
            taken = sum(g.node == where for g in world.ledger.machines.granted.values())
            taken += sum(s.count for a in world.ledger.claims.values() for s in a.claim.slots if s.node == where)
            column = world.writer.fleet.free(SLOT)
            assert (0 if column is None else world.free(where, SLOT)) == slots - taken, (seed, step)
