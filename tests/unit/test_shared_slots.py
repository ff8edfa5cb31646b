"""Machine types that live in slots of another: counted by columns, by the joint assignment and by commits as by trying every way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

import numpy as np
import pytest

from moorage.fit import Assigned, assign
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
from moorage.model.machine_slots import (
    Dependent,
    GrantedSlot,
    ReservedSlots,
    opened_resource,
    reservation_claim,
    slot_resource,
)
from moorage.model.shapes import Shape
from moorage.model.shared_slots import SharedSlots, SharedType
from moorage.model.slots import Slot
from moorage_testkit.fleets import node, writer_of

CLUSTER, NODES = "lab/one", ("n-0", "n-1")
PARENT = "g/whole"


class Kinds:
    """A type and those that live in its slots: each with the one above it, how many of it share a slot, and how many there may be."""

    def __init__(self, *below: tuple[str, str, int], most: dict[str, dict[str, int]] | None = None) -> None:
        self.below, self.most = below, most or {}
        self.names = [PARENT, *(name for name, _, _ in below)]

    def reserved(self, **slots: int) -> ReservedSlots:
        names = {name.replace("_", "-"): count for name, count in slots.items()}
        return ReservedSlots(
            machine=PARENT,
            cluster=CLUSTER,
            size={"cpu": 4000, "pods": 8},
            slots=names,
            children={name: {"cpu": 500, "pods": 1} for name, _, _ in self.below},
            dependents={
                name: Dependent(parent=above, per_parent=per, most=self.most.get(name))
                for name, above, per in self.below
            },
        )

    def needs(self, counts: dict[str, int]) -> int:
        """Returns how many slots so many pods need: of all ways to put them into slots, the one with the fewest."""
        per = {name: (above, share) for name, above, share in self.below}
        return _fewest(tuple(sorted(per.items())), tuple(sorted(counts.items())))

    def fits(self, slots: int, counts: dict[str, int], node: str = "") -> bool:
        limited = ((name, most.get(node, 0)) for name, most in self.most.items())
        return self.needs(counts) <= slots and all(self._with_below(name, counts) <= most for name, most in limited)

    def _with_below(self, name: str, counts: dict[str, int]) -> int:
        own = counts.get(name, 0)
        for child, above, share in self.below:
            if above == name:
                own += -(-self._with_below(child, counts) // share)
        return own


@cache
def _fewest(per: tuple[tuple[str, tuple[str, int]], ...], counts: tuple[tuple[str, int], ...]) -> int:
    """Opens slots one at a time, for a pod of the type itself or for as many of one type below as share it, and tries all ways."""
    below, left = dict(per), {name: n for name, n in counts if n}
    if not left:
        return 0
    best = sum(left.values())
    for name in left:
        for taken in _one_slot(below, name, left):
            rest = tuple(sorted((n, c - taken.get(n, 0)) for n, c in left.items()))
            best = min(best, 1 + _fewest(per, rest))
    return best


def _one_slot(below: dict[str, tuple[str, int]], name: str, left: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yields what one slot of the first type may hold: a pod of it, or so many slots of one type below, each with a pod or split again."""
    if name not in below:
        yield {name: 1}
        return
    chain = [name]
    while below[chain[-1]][0] in below:
        chain.append(below[chain[-1]][0])
    top = chain[-1]
    split: list[dict[str, int]] = [{}]
    for _ in range(below[top][1]):
        more = []
        for had in split:
            rest = {n: c - had.get(n, 0) for n, c in left.items()}
            ways = [{top: 1}] if rest.get(top, 0) > 0 else []
            ways += [
                {child: min(share, rest[child])}
                for child, (above, share) in below.items()
                if above == top and rest.get(child, 0) > 0
            ]
            more += [{n: had.get(n, 0) + way.get(n, 0) for n in {*had, *way}} for way in ways] or [had]
        split = list({tuple(sorted(one.items())): one for one in more}.values())
    yield from split


#: One type; two beside each other; one in another.
TREES = (
    (("g/half", PARENT, 2),),
    (("g/half", PARENT, 2), ("g/third", PARENT, 3)),
    (("g/half", PARENT, 2), ("g/quarter", "g/half", 2)),
    (("g/third", PARENT, 3), ("g/sixth", "g/third", 2), ("g/half", PARENT, 2)),
)


@pytest.mark.parametrize("tree", TREES)
def test_what_is_free_is_what_can_be_put_into_slots(tree: tuple[tuple[str, str, int], ...]) -> None:
    kinds, rng = Kinds(*tree), Random(0)
    for _ in range(300):
        slots = rng.randint(0, 3)
        counts = {name: rng.randint(0, 3) for name in kinds.names}
        shared = kinds.reserved(n_0=slots).shared("n-0")
        shared = shared.with_taken({slot_resource(name): count for name, count in counts.items()})
        assert shared.used()[0] == kinds.needs(counts), counts
        if not kinds.fits(slots, counts):
            assert min(shared.free().values()) < 0
            continue
        for name in kinds.names:
            more = next(n for n in range(40) if not kinds.fits(slots, counts | {name: counts[name] + n + 1}))
            assert shared.free()[slot_resource(name)] == more, (slots, counts, name)
        added = {name: rng.randint(0, 2) for name in kinds.names}
        both = {name: counts[name] + added[name] for name in kinds.names}
        assert shared.holds({slot_resource(n): a for n, a in added.items()}) == kinds.fits(slots, both)


def test_types_of_which_there_are_only_so_many() -> None:
    types = (SharedType("w"), SharedType("h", 0, 2, most=3), SharedType("q", 1, 2))
    shared = SharedSlots(2, types, (0, 1, 0))
    assert shared.free() == {"w": 1, "h": 2, "q": 4}
    assert shared.holds({"h": 2}) and not shared.holds({"h": 2, "q": 1}) and shared.holds({"h": 1, "q": 2})


def test_logs_from_before_name_sizes_only() -> None:
    """Until `slots` writes the reservation again, each pod of another type counts as a whole slot."""
    old = ReservedSlots(machine=PARENT, cluster=CLUSTER, slots={"n-0": 3}, children={"g/half": {"cpu": 2000}})
    assert old.shared("n-0").free() == {slot_resource(PARENT): 3, slot_resource("g/half"): 3}


@pytest.mark.parametrize("apart", [False, True])
def test_guests_of_logs_from_before_count_in_the_slots_of_their_type(apart: bool) -> None:
    """Reads logs where all but one of the guests that shared a slot were apart."""
    claim = reservation_claim("g/half", CLUSTER)
    old = GrantedSlot(uid="u", machine="g/half", cluster=CLUSTER, node="n-0", claim=claim, parent=PARENT, apart=apart)
    assert old.takes == {slot_resource("g/half"): 1}


class World:
    """One cluster of two nodes with three slots each, its ledger, and what everybody has by a count of its own."""

    def __init__(self, kinds: Kinds, slots: int = 3) -> None:
        self.kinds, self.slots = kinds, slots
        self.writer = writer_of({CLUSTER: [node(cpu="64", memory="64Gi"), node(cpu="64", memory="64Gi")]})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.has: dict[str, list[tuple[str, str]]] = {}  # owner → node and type of each of its slots
        assert self.reserve(slots)

    @property
    def fleet(self) -> object:
        return self.writer.fleet

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        held = [r.id for r in commit.entries_of(SlotReservations)] + [g.id for g in commit.entries_of(SlotGrants)]
        changes = self.ledger.fold(self.ledger.seq + 1, commit)
        self.capacity.folded(changes, commit.entries_of(Decision), held)

    def reserve(self, *slots: int) -> bool:
        counts = slots if len(slots) > 1 else slots * 2
        reserved = self.kinds.reserved(n_0=counts[0], n_1=counts[1])
        entry = SlotReservations(id=f"r{self.ledger.seq}", generation=1, reserved=[reserved])
        self.capacity.hold_reservations(entry)
        fits = self.capacity.holds_room(entry.id) and self.capacity.keeps_slots(entry)
        if fits:
            self.fold(entry)
        self.capacity.give_back_entry(entry.id)
        return fits

    def counts(self, name: str) -> dict[str, int]:
        found = dict.fromkeys(self.kinds.names, 0)
        for slots in self.has.values():
            for where, kind in slots:
                if where == name:
                    found[kind] += 1
        return found

    def decide(self, owner: str, pods: list[tuple[str, str]]) -> bool:
        """Decides an application with these pods, each of an object of its own."""
        claims = [
            Claim(
                id=f"{owner}-{number}",
                decision=owner,
                intent=IntentRef(kind="Application", name=owner, revision=1),
                tenant="t",
                app="a",
                object=f"Deployment/d{number}",
                cluster=CLUSTER,
                within=reservation_claim(kind, CLUSTER),
                slots=[Slot(node=where, resources={slot_resource(kind): 1})],
            )
            for number, (where, kind) in enumerate(pods)
        ]
        decision = Decision(id=owner, group=owner, revision=1, claims=claims)
        self.capacity.hold(decision)
        fits = self.capacity.fits(owner)
        if fits:
            self.fold(decision)
            self.has[owner] = pods
        else:
            self.capacity.give_back(owner)
        return fits

    def grant(self, uid: str, where: str, kind: str) -> bool:
        slot = GrantedSlot(
            uid=uid, machine=kind, cluster=CLUSTER, node=where, claim=reservation_claim(kind, CLUSTER), parent=PARENT
        )
        entry = SlotGrants(id=f"g{self.ledger.seq}", generation=1, granted=[slot])
        self.capacity.hold_grants(entry)
        fits = self.capacity.holds_room(entry.id)
        if fits:
            self.fold(entry)
            self.has[uid] = [(where, kind)]
        self.capacity.give_back_entry(entry.id)
        return fits

    def leave(self, owner: str) -> None:
        del self.has[owner]
        claims = [ident for ident, active in self.ledger.claims.items() if active.group == owner]
        if claims:
            self.fold(Withdrawal(group=owner, revision=1), Release(claims=claims))
        else:
            self.fold(SlotGrants(id=f"w{self.ledger.seq}", generation=1, withdrawn=[owner]))

    def reload(self) -> None:
        self.ledger = Ledger.decode(self.ledger.encode())
        self.capacity.reload(self.ledger)

    def check(self) -> None:
        fleet = self.writer.fleet
        for name in NODES:
            counts, row = self.counts(name), fleet.row_of(0, name)
            assert self.kinds.fits(self.slots_on(name), counts, name), (name, counts)
            for kind in self.kinds.names:
                more = next(
                    n
                    for n in range(40)
                    if not self.kinds.fits(self.slots_on(name), counts | {kind: counts[kind] + n + 1}, name)
                )
                column = fleet.free(slot_resource(kind))
                assert column is not None and row is not None and int(column[row]) == more, (name, kind, counts)

    def slots_on(self, name: str) -> int:
        return self.ledger.machines.reserved[reservation_claim(PARENT, CLUSTER)].slots.get(name, 0)


@pytest.mark.parametrize("seed", range(24))
def test_guests_and_applications_get_what_is_free_and_nothing_twice(seed: int) -> None:
    rng = Random(seed)
    limited = {"g/half": {"n-0": 3, "n-1": 1}} if seed % 3 == 0 else None
    world = World(Kinds(*TREES[seed % len(TREES)], most=limited if "g/half" in str(TREES[seed % len(TREES)]) else None))
    for step in range(50):
        where, kind = rng.choice(NODES), rng.choice(world.kinds.names)
        counts = world.counts(where)
        fits = world.kinds.fits(world.slots_on(where), counts | {kind: counts[kind] + 1}, where)
        match rng.randrange(6):
            case 0 | 1:
                assert world.grant(f"u{step}", where, kind) == fits
            case 2:
                assert world.decide(f"a{step}", [(where, kind)]) == fits
            case 3:
                pods = [(rng.choice(NODES), rng.choice(world.kinds.names)) for _ in range(rng.randint(2, 3))]
                expected = all(
                    world.kinds.fits(
                        world.slots_on(name),
                        {k: n + pods.count((name, k)) for k, n in world.counts(name).items()},
                        name,
                    )
                    for name in {name for name, _ in pods}
                )
                assert world.decide(f"a{step}", pods) == expected
            case 4 if world.has:
                world.leave(rng.choice(sorted(world.has)))
            case 5:
                slots = [rng.randint(1, 4), rng.randint(1, 4)]
                keeps = all(world.kinds.fits(n, world.counts(w), w) for n, w in zip(slots, NODES, strict=True))
                assert world.reserve(*slots) == keeps
            case _:
                world.reload()
        world.check()


def test_two_committers_in_flight_never_share_a_slot() -> None:
    """Each fits alone; the second one that reaches the log does not any more."""
    world = World(Kinds(*TREES[0]), slots=1)

    def decision(owner: str, kind: str) -> Decision:
        claim = Claim(
            id=owner,
            decision=owner,
            intent=IntentRef(kind="Application", name=owner, revision=1),
            tenant="t",
            app="a",
            object="Deployment/d",
            cluster=CLUSTER,
            within=reservation_claim(kind, CLUSTER),
            slots=[Slot(node="n-0", resources={slot_resource(kind): 1})],
        )
        return Decision(id=owner, group=owner, revision=1, claims=[claim])

    mine, other = decision("mine", PARENT), decision("other", "g/half")
    world.capacity.hold(mine)
    assert world.capacity.fits("mine")
    world.fold(other)
    assert not world.capacity.fits("mine")
    world.capacity.give_back("mine")
    assert world.decide("second", [("n-0", "g/half")]) and not world.decide("third", [("n-0", "g/half")])


def shape(kind: str, count: int) -> Shape:
    return Shape(
        key=f"{kind}x{count}",
        object=f"Deployment/{kind}",
        count=count,
        resources={slot_resource(kind): 1},
        machine=kind,
    )


@pytest.mark.parametrize("seed", range(40))
def test_apps_of_several_types_are_assigned_together_exactly(seed: int) -> None:
    rng = Random(seed)
    kinds = Kinds(*TREES[seed % len(TREES)])
    world = World(kinds, slots=rng.randint(1, 2))
    for number in range(rng.randint(0, 3)):
        world.grant(f"u{number}", rng.choice(NODES), rng.choice(kinds.names))
    wanted = {kind: rng.randint(0, 3) for kind in kinds.names}
    shapes = [shape(kind, count) for kind, count in wanted.items() if count]
    if not shapes:
        return
    fleet = world.writer.fleet
    found = assign(fleet, fleet.rows_of(0), shapes)

    def ways(kind: int, on: list[dict[str, int]]) -> bool:
        if kind == len(kinds.names):
            return all(
                kinds.fits(world.slots_on(name), {k: n + on[at].get(k, 0) for k, n in world.counts(name).items()}, name)
                for at, name in enumerate(NODES)
            )
        name, count = kinds.names[kind], wanted[kinds.names[kind]]
        return any(ways(kind + 1, [on[0] | {name: n}, on[1] | {name: count - n}]) for n in range(count + 1))

    assert isinstance(found, Assigned) == ways(0, [{}, {}]), wanted
    if isinstance(found, Assigned):
        pods = [
            (slot.node, kind)
            for one, slots in zip(shapes, found.slots, strict=True)
            for slot in slots
            for kind in [one.machine] * slot.count
        ]
        assert world.decide("app", pods)


def test_what_a_group_has_itself_counts_as_free_for_it_in_every_type() -> None:
    """Checks that a whole slot fits in place of the half that the group has."""
    world = World(Kinds(*TREES[0]), slots=1)
    world.reserve(1, 0)
    assert world.decide("app", [("n-0", "g/half")])
    fleet = world.writer.fleet
    where = fleet.rows_of(0)
    assert not isinstance(assign(fleet, where, [shape(PARENT, 1)]), Assigned)
    row = fleet.row_of(0, "n-0")
    assert row is not None
    own = {row: {slot_resource("g/half"): -1}}
    assert isinstance(assign(fleet, where, [shape(PARENT, 1)], taken=own), Assigned)
    assert isinstance(assign(fleet, where, [shape("g/half", 2)], taken=own), Assigned)
    assert not isinstance(assign(fleet, where, [shape("g/half", 3)], taken=own), Assigned)
    assert np.array_equal(where, fleet.rows_of(0))


@pytest.mark.parametrize("seed", range(30))
def test_pods_go_to_slots_that_others_of_their_type_have_opened(seed: int) -> None:
    """Checks that as few slots are opened as in the best of all ways to put the pods on nodes."""
    rng = Random(seed)
    kinds = Kinds(*TREES[seed % len(TREES)])
    world = World(kinds, slots=rng.randint(2, 5))
    for number in range(rng.randint(1, 5)):
        world.grant(f"u{number}", rng.choice(NODES), rng.choice(kinds.names[1:]))
    fleet, name, count = world.writer.fleet, rng.choice(kinds.names[1:]), rng.randint(1, 6)

    def opened(on: dict[str, int]) -> int | None:
        counts = {at: world.counts(at) for at in NODES}
        after = {at: counts[at] | {name: counts[at][name] + on.get(at, 0)} for at in NODES}
        if not all(kinds.fits(world.slots_on(at), after[at], at) for at in NODES):
            return None
        return sum(kinds.needs(after[at]) - kinds.needs(counts[at]) for at in NODES)

    ways = [opened({NODES[0]: first, NODES[1]: count - first}) for first in range(count + 1)]
    fewest = min((way for way in ways if way is not None), default=None)
    found = assign(fleet, fleet.rows_of(0), [shape(name, count)])
    assert isinstance(found, Assigned) == (fewest is not None)
    if isinstance(found, Assigned):
        assert opened({slot.node: slot.count for slot in found.slots[0]}) == fewest
    column = fleet.free(opened_resource(slot_resource(name)))
    for at in NODES:
        row, counts = fleet.row_of(0, at), world.counts(at)
        more = next(n for n in range(40) if kinds.needs(counts | {name: counts[name] + n + 1}) > kinds.needs(counts))
        assert row is not None and more == (column[row] if column is not None else 0)


def test_of_opened_slots_the_nearest_are_filled_first() -> None:
    """A quarter goes into an opened half before a half is opened in a slot that is open."""
    world = World(Kinds(*TREES[2]), slots=2)
    assert world.grant("half", "n-0", "g/half") and world.grant("quarter", "n-1", "g/quarter")
    fleet = world.writer.fleet
    found = assign(fleet, fleet.rows_of(0), [shape("g/quarter", 2)])
    assert isinstance(found, Assigned)
    assert sorted((slot.node, slot.count) for slot in found.slots[0]) == [("n-0", 1), ("n-1", 1)]
