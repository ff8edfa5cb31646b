"""Tests the room that claims take."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fleet import normalize_node
from moorage.fleet.delta import CORDONED, STALE
from moorage.ledger import Capacity, CountedClaim, Ledger, cover, open_room
from moorage.ledger.capacity import excess
from moorage.ledger.families import FamilyNodes, differs_from_pods, is_fully_covered, strays_have_open_slots
from moorage.model.claims import (
    Claim,
    Commit,
    Decision,
    Entry,
    Reassignment,
    Release,
    Slot,
    Withdrawal,
)
from moorage_testkit.brute_force import taken_together
from moorage_testkit.fleets import fleet_of, node, writer_of

from .claims import GROUPS, claim, pods


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=4),
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 4), st.integers(0, 2))),
)
def test_live_pods_cover_slots_on_their_own_nodes(
    runs: list[tuple[str, int]], pods_on: dict[str, tuple[int, int]]
) -> None:
    slots = [pods(n, c) for n, c in runs]
    live = {n: staying + going for n, (staying, going) in pods_on.items()}
    ending = {n: going for n, (_, going) in pods_on.items() if going}
    coverage = cover(slots, live, ending)
    for slot, count in zip(slots, coverage.open, strict=True):
        assert 0 <= count <= slot.count
    for n in "abcd":
        places = sum(c for m, c in runs if m == n)
        staying, going = pods_on.get(n, (0, 0))
        assert coverage.strays.get(n, 0) == max(0, staying - places)
        covering = staying if coverage.strays else staying + going
        assert sum(c for s, c in zip(slots, coverage.open, strict=True) if s.node == n) == max(0, places - covering)


def free(capacity: Capacity, cluster: str = "lab/one", node_name: str = "n-0") -> int:
    row = capacity.fleet.row_of(capacity.fleet.ids[cluster], node_name)
    column = capacity.fleet.free("cpu")
    assert row is not None
    assert column is not None
    return int(column[row])


def test_claims_take_room_until_pods_show_and_again_when_they_go() -> None:
    writer = writer_of({"lab/one": [node(cpu="8"), node(cpu="8")]})
    ledger = Ledger()
    capacity = Capacity(writer.fleet, ledger)

    def fold(commit: Commit) -> None:
        capacity.folded(ledger.fold(ledger.seq + 1, commit), commit.entries_of(Decision))

    decision = Decision(id="d", group=GROUPS[0], revision=1, claims=[claim("k", pods("n-0", 2))])
    capacity.hold(decision)
    assert free(capacity) == 6000
    assert capacity.fits("d")
    before = capacity.fleet.tick
    fold(Commit(id="c", entries=[decision]))
    assert free(capacity) == 6000
    rows = capacity.fleet.improved_since(before)
    assert rows is not None
    assert rows.size == 0, "turning a decision in flight into claims must not look like room coming back"
    writer.put(0, "lab/one", claims={"k": {"n-1": 1}})
    assert free(capacity) == 6000, "a pod stands for no slot on another node"
    writer.put(0, "lab/one", claims={"k": {"n-0": 1}})
    assert free(capacity) == 7000
    writer.put(0, "lab/one", claims={"k": {"n-0": 1}}, ending={"k": {"n-0": 1}})
    assert free(capacity) == 7000
    writer.put(0, "lab/one", claims={"k": {"n-0": 1, "n-1": 1}}, ending={"k": {"n-0": 1}})
    assert free(capacity) == 6000, "one of them replaces the other"
    writer.put(0, "lab/one", claims={"k": {}})
    assert free(capacity) == 6000
    fold(Commit(id="e", entries=[Withdrawal(group=GROUPS[0], revision=1)]))
    assert free(capacity) == 6000, "a withdrawn claim counts until its release"
    fold(Commit(id="f", entries=[Release(claims=["k"])]))
    assert free(capacity) == 8000
    rows = capacity.fleet.improved_since(before)
    assert rows is not None
    assert rows.size == 1


def test_dropped_decisions_give_back_and_full_nodes_do_not_fit() -> None:
    capacity = Capacity(fleet_of({"lab/one": [node(cpu="2")]}), Ledger())
    first = Decision(id="d1", group=GROUPS[0], revision=1, claims=[claim("k", pods("n-0", 2))])
    second = Decision(id="d2", group=GROUPS[1], revision=1, claims=[claim("l", pods("n-0"))])
    capacity.hold(first)
    capacity.hold(second)
    assert not capacity.fits("d2")
    capacity.give_back("d1")
    assert capacity.fits("d2")
    assert free(capacity) == 1000


def test_room_that_a_decision_was_to_take_over_is_taken_itself_once_the_claim_that_had_it_is_gone() -> None:
    ledger = Ledger()
    capacity = Capacity(fleet_of({"lab/one": [node(cpu="1"), node(cpu="1")]}), ledger)

    def fold(*entries: Entry) -> None:
        commit = Commit(id=str(ledger.seq), entries=list(entries))
        capacity.folded(ledger.fold(ledger.seq + 1, commit), commit.entries_of(Decision))

    first = Decision(id="first", group=GROUPS[0], revision=1, claims=[claim("k", pods("n-0"))])
    again = Decision(id="again", group=GROUPS[0], revision=2, claims=[claim("k", pods("n-0"))])
    other = Decision(id="other", group=GROUPS[1], revision=1, claims=[claim("l", pods("n-0"))])
    fold(first)
    capacity.hold(again)
    assert free(capacity) == 0
    fold(Reassignment(claim="k", slots=[pods("n-1")]))
    assert (free(capacity), free(capacity, node_name="n-1")) == (0, 0)
    fold(Reassignment(claim="k", slots=[pods("n-0")]))
    assert (free(capacity), free(capacity, node_name="n-1")) == (0, 1000)
    fold(Withdrawal(group=GROUPS[0], revision=1))
    assert capacity.fits("again"), "its own room"
    fold(Release(claims=["k"]))
    assert free(capacity) == 0
    assert capacity.fits("again")
    fold(other)
    assert not capacity.fits("again")
    capacity.give_back("again")
    assert free(capacity) == 0


def test_more_pods_of_a_claim_whose_pods_run_elsewhere_take_what_will_count() -> None:
    writer = writer_of({"lab/one": [node(cpu="4"), node(cpu="4")]})
    ledger = Ledger()
    capacity = Capacity(writer.fleet, ledger)
    first = Decision(id="first", group=GROUPS[0], revision=1, claims=[claim("k", pods("n-0"))])
    capacity.folded(ledger.fold(1, Commit(id="c", entries=[first])), [first])
    writer.put(0, "lab/one", claims={"k": {"n-1": 1}})
    more = Decision(id="more", group=GROUPS[0], revision=2, claims=[claim("k", pods("n-0"), pods("n-1"))])
    capacity.hold(more)
    held = free(capacity), free(capacity, node_name="n-1")
    capacity.folded(ledger.fold(2, Commit(id="d", entries=[more])), [more])
    assert held == (free(capacity), free(capacity, node_name="n-1")) == (3000, 4000), (
        "the live pod covers the slot of its node"
    )


@pytest.mark.parametrize("how", ["stale", "cordoned", "not ready", "gone", "unschedulable"])
def test_what_nobody_may_use_any_more_does_not_fit(how: str) -> None:
    """Whatever stands there already may stay."""
    writer = writer_of({"lab/one": [node(cpu="4"), node(cpu="4")]})
    ledger = Ledger()
    capacity = Capacity(writer.fleet, ledger)
    stands = Decision(id="stands", group=GROUPS[0], revision=1, claims=[claim("k", pods("n-0")), claim("conf")])
    capacity.folded(ledger.fold(1, Commit(id="c", entries=[stands])), [stands])
    same = Decision(id="same", group=GROUPS[0], revision=2, claims=[claim("k", pods("n-0")), claim("conf")])
    more = Decision(id="more", group=GROUPS[0], revision=3, claims=[claim("k", pods("n-0", 2))])
    bare = Decision(id="bare", group=GROUPS[1], revision=1, claims=[claim("no pods")])
    for decision in (same, more, bare):
        capacity.hold(decision)
        assert capacity.fits(decision.id)
    match how:
        case "stale" | "cordoned":
            writer.put(0, "lab/one", state=STALE if how == "stale" else CORDONED)
        case "gone":
            writer.put(0, "lab/one", gone=["n-0"])
        case _:
            changed = node("n-0", cpu="4", ready=how != "not ready", unschedulable=how == "unschedulable")
            writer.put(0, "lab/one", [normalize_node(changed)[0]])
    assert capacity.fits("same")
    assert not capacity.fits("more")
    assert capacity.fits("bare") == (how not in ("stale", "cordoned"))


def test_nodes_that_go_and_come_are_taken_again() -> None:
    writer = writer_of({"lab/one": [node(cpu="8"), node(cpu="8")]})
    ledger = Ledger()
    capacity = Capacity(writer.fleet, ledger)
    decision = Decision(id="d", group=GROUPS[0], revision=1, claims=[claim("k", pods("n-0", 2))])
    changes = ledger.fold(1, Commit(id="c", entries=[decision]))
    capacity.folded(changes)
    writer.put(0, "lab/one", gone=["n-0"])
    made, _ = normalize_node(node("n-0", cpu="4"))
    writer.put(0, "lab/one", [made])
    assert free(capacity) == 2000
    others = [normalize_node(node(f"m-{i}", cpu="4"))[0] for i in range(30)]
    writer.put(0, "lab/one", others)
    assert free(capacity) == 2000
    fresh = fleet_of({"lab/zero": [node(cpu="1")], "lab/one": [node(cpu="16")]})
    writer.fleet.adopt(fresh)
    assert free(capacity) == 14000


class PlainFamily:
    """All claims of one object on one cluster, the newest last: what they take, one pod at a time."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def put(self, new: Claim) -> None:
        self.claims = [c for c in self.claims if c.id != new.id] + [new]

    def takes(self, live: dict[str, dict[str, int]], extra: Claim | None = None) -> Counter[tuple[str, str]]:
        claims = [c for c in self.claims if extra is None or c.id != extra.id] + ([extra] if extra else [])
        found: Counter[tuple[str, str]] = Counter()
        for where in ("n-0", "n-1") if claims else ():
            slots, running = [c.slots for c in claims], [live.get(c.id, {}) for c in claims]
            for name in ("cpu", "pods"):
                found[where, name] = taken_together(slots, running, where, name)
        return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_room_is_what_a_recount_says(seed: int) -> None:
    """Any mix of updates (number and size at once too), reports, nodes that go and come, and decisions in flight leaves free =
    allocatable - what each object's claims take - what decisions in flight would take beyond those, counted anew."""
    rng = random.Random(seed)
    names = ["lab/one", "lab/two"]
    writer = writer_of({name: [node(cpu="64"), node(cpu="64")] for name in names})
    ledger = Ledger()
    capacity = Capacity(writer.fleet, ledger)
    live: dict[str, dict[str, int]] = {}
    flights: dict[str, Decision] = {}
    families = {(group, name): PlainFamily() for group in GROUPS for name in names}
    away: set[int] = set()  # clusters without their second node
    for step in range(30):
        group = rng.choice(GROUPS)
        match rng.randrange(8):
            case 0 | 1 | 2:
                held = []
                for where in rng.sample(range(2), rng.randint(1, 2)):
                    version = rng.randrange(3)
                    slots = [
                        pods(f"n-{rng.randrange(2)}", rng.randint(1, 3), 1000 * (version + 1))
                        for _ in range(rng.randint(1, 3))
                    ]
                    slots[-1].surge = len(slots) > 1 and rng.random() < 0.3
                    held.append(claim(f"{group[2]}{where}{version}", *slots, cluster=names[where]))
                decision = Decision(id=f"d{step}", group=group, revision=rng.randint(1, 3), claims=held)
                capacity.hold(decision)
                flights[decision.id] = decision
            case 3 if flights:
                decision = flights.pop(rng.choice(list(flights)))
                commit = Commit(id=f"c{step}", entries=[decision])
                changes = ledger.fold(ledger.seq + 1, commit)
                capacity.folded(changes, commit.entries_of(Decision))
                for c in decision.claims if not changes.refused else ():
                    families[decision.group, c.cluster].put(c)
            case 4 if flights:
                ident = rng.choice(list(flights))
                del flights[ident]
                capacity.give_back(ident)
            case 5:
                cid = rng.randrange(2)
                if cid in away:
                    writer.put(cid, names[cid], [normalize_node(node("n-1", cpu="64"))[0]])
                else:
                    writer.put(cid, names[cid], gone=["n-1"])
                away ^= {cid}
            case 6:
                cid = rng.randrange(2)
                ident = f"{rng.choice('ab')}{cid}{rng.randrange(3)}"
                live[ident] = {f"n-{rng.randrange(2)}": rng.randint(0, 2)}
                writer.put(cid, names[cid], claims={ident: {n: c for n, c in live[ident].items() if c}})
            case _:
                commit = Commit(id=f"w{step}", entries=[Withdrawal(group=group, revision=rng.randint(0, 1))])
                if ledger.claims and rng.random() < 0.5:
                    commit.entries.append(Release(claims=[rng.choice(list(ledger.claims))]))
                capacity.folded(ledger.fold(ledger.seq + 1, commit))
                for family in families.values():
                    family.claims = [c for c in family.claims if c.id in ledger.claims]
        if rng.random() < 0.1:
            ledger = Ledger.decode(ledger.encode())
            capacity.reload(ledger)
        for cid, name in enumerate(names):
            taken: Counter[tuple[str, str]] = Counter()
            for group in GROUPS:
                now = families[group, name].takes(live)
                taken += now
                for decision in flights.values():
                    for c in decision.claims if decision.group == group else ():
                        if c.cluster == name:
                            taken += families[group, name].takes(live, c) - now
            for n in ("n-0",) if cid in away else ("n-0", "n-1"):
                assert free(capacity, name, n) == 64000 - taken[n, "cpu"]


def test_an_update_counts_the_larger_of_old_and_new_slot_by_slot() -> None:
    def counts(*claims: tuple[int, int]) -> int:
        """The newest last: how many pods on the node, and how large."""
        counted = [CountedClaim([pods("n-0", count, 1000 * cpu)]) for count, cpu in claims if count]
        return open_room(counted)["n-0"]["cpu"] // 1000

    assert counts((1, 4), (1, 4)) == 4, "another image"
    assert counts((1, 2), (1, 3)) == counts((1, 3), (1, 2)) == 3
    assert counts((2, 3), (3, 2)) == 8, "the third small pod may start beside two large ones"
    assert counts((3, 2), (2, 3)) == 6
    assert counts((1, 4), (2, 4)) == 8, "more of them"
    assert counts((2, 4), (1, 4)) == 8, "fewer: the older ones count until they are released"
    assert counts((1, 1), (1, 5), (1, 2)) == 5, "an update of an update"
    both = [CountedClaim([Slot(node="n", resources=r)]) for r in ({"cpu": 4, "memory": 1}, {"cpu": 1, "memory": 8})]
    assert open_room(both) == {"n": {"cpu": 4, "memory": 8}}, "each resource for itself"


def test_pods_of_any_version_cover_slots_of_any() -> None:
    old, new = [pods("n-0", 2, 1000)], [pods("n-0", 2, 3000)]

    def room(old_pods: int, new_pods: int, ending: int = 0) -> int:
        claims = [CountedClaim(old, {"n-0": old_pods}, {"n-0": ending}), CountedClaim(new, {"n-0": new_pods})]
        return open_room(claims).get("n-0", {}).get("cpu", 0)

    assert [room(2, 0), room(1, 1), room(0, 2)] == [4000, 2000, 0]
    assert room(2, 1) == 1000, "never less than the pods there: 5000 run, one more may grow"
    assert room(2, 2) == 0
    assert room(2, 0, ending=1) == 4000, "the ending pod still takes its place"
    strays = [CountedClaim(old, {"n-0": 1, "n-1": 1}, {"n-0": 1}), CountedClaim(new)]
    assert open_room(strays)["n-0"]["cpu"] == 6000, "but not while a pod stands elsewhere for the same place"


def test_an_object_with_a_pod_in_each_place_takes_nothing_more() -> None:
    covered = 0
    for slots_0, slots_1, pods_0, pods_1, ending, surge in product(
        range(3), range(3), range(3), range(3), range(2), range(2)
    ):
        slots = [pods(name, count) for name, count in (("n-0", slots_0), ("n-1", slots_1)) if count]
        slots += [Slot(node="n-0", resources={"cpu": 1000, "pods": 1}, surge=True)] * surge
        live = {name: count for name, count in (("n-0", pods_0), ("n-1", pods_1)) if count}
        claims = [CountedClaim(slots, live, dict.fromkeys(live, 1) if ending else {})]
        plain = bool(live) and not ending
        assert is_fully_covered(claims) == (
            plain and not open_room(claims) and not differs_from_pods(FamilyNodes(claims))
        )
        if is_fully_covered(claims):
            covered += 1
            assert not strays_have_open_slots(FamilyNodes(claims))
            assert not is_fully_covered([*claims, *claims]), "older claims may take more"
    assert covered == 2 * 8


def test_slots_for_a_surge_count_while_an_older_claim_does_and_are_dropped_then() -> None:
    ledger = Ledger()
    fleet = fleet_of({"lab/one": [node(cpu="4")]})
    capacity = Capacity(fleet, ledger)

    def fold(*entries: Entry) -> None:
        commit = Commit(id=f"c{ledger.seq}", entries=list(entries))
        capacity.folded(ledger.fold(ledger.seq + 1, commit), commit.entries_of(Decision))

    surge = Slot(node="n-0", resources={"cpu": 1000, "pods": 1}, surge=True)
    first = Decision(id="d1", group=GROUPS[0], revision=1, claims=[claim("old", pods("n-0"), surge)])
    fold(first)
    assert free(capacity) == 3000 and ledger.claims["old"].claim.slots == [pods("n-0")], "no older claim"
    fold(Decision(id="d2", group=GROUPS[0], revision=2, claims=[claim("new", pods("n-0"), surge)]))
    assert free(capacity) == 2000
    assert Ledger.decode(ledger.encode()).families == ledger.families
    fold(Release(claims=["old"]))
    assert free(capacity) == 3000
    (standing,) = ledger.standing[GROUPS[0]].claims
    assert standing.slots == [pods("n-0")] == ledger.claims["new"].claim.slots


def test_what_is_beyond_what_counts() -> None:
    now = {"a": {"cpu": 2000, "pods": 2}, "b": {"cpu": 1000}}
    assert excess(now, now) == {}
    assert excess(now, {}) == now
    after = {"a": {"cpu": 3000, "pods": 2}, "c": {"cpu": 500}}
    assert excess(after, now) == {"a": {"cpu": 1000}, "c": {"cpu": 500}}
