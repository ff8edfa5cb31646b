"""Decisions one after the other on nodes whose kubelets align pods: whatever arrives when, and in whatever zone it then is, no
pod is rejected."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from moorage.fit import FitCache, Unassigned
from moorage.fleet import Excerpt, ExcerptFleet, FleetWriter, copy_of, normalize_node
from moorage.ledger import Capacity, Ledger, Wanted, assign_beside_own
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Withdrawal
from moorage.model.part_reports import TopologyManager, ZoneReport
from moorage.model.part_requests import PodContainer
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage.parsing import format_amount
from moorage.parts import kubelet
from moorage.parts.kubelet import Alignment, Kubelet, Step, Taken, ZoneAmounts

LAB = "lab/one"
STRICT = TopologyManager(policy="single-numa-node", scope="pod")
MANAGER = kubelet.TopologyManager("single-numa-node", "pod")


def shape(name: str, cores: int, count: int) -> Shape:
    requests = {"cpu": cores * 1000}
    return Shape(
        key=f"{cores}x{count}",
        object=f"Deployment/{name}",
        template=name,
        count=count,
        resources={**requests, "pods": 1},
        guaranteed=True,
        containers=[PodContainer(name="c", requests=requests)],
    )


class World:
    """A node with zones, what is decided for it, and its real kubelet."""

    def __init__(self, *zones: int) -> None:
        self.totals = zones
        self.kubelet = Kubelet(MANAGER, [ZoneAmounts({"cpu": n * 1000}, {"cpu": n * 1000}) for n in zones])
        self.writer = FleetWriter()
        self.waiting: Counter[str] = Counter()  # claim → pods that have not arrived
        self.cores: dict[str, int] = {}
        self.present: list[tuple[str, Taken]] = []
        self.report(counted=0)
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)

    def report(self, counted: int) -> None:
        """Reports the pods that arrived. The zones count only the first ones."""
        in_use: Counter[int] = Counter()
        for _, taken in self.present[:counted]:
            for zone, _, amount in taken.amounts:
                in_use[zone] += amount
        cores = sum(self.cores[claim] for claim, _ in self.present)
        row, problem = normalize_node(
            NodeReport(
                name="n-0",
                allocatable={"cpu": str(sum(self.totals)), "pods": "110"},
                requested={"cpu": str(cores)},
                pod_count=len(self.present),
                zones=[ZoneReport(id=i, inventories={"cpu": str(n)}) for i, n in enumerate(self.totals)],
                topology_manager=STRICT,
                in_use={f"numa-{zone}": {"cpu": format_amount("cpu", amount)} for zone, amount in in_use.items()},
            )
        )
        assert not problem
        there = Counter(claim for claim, _ in self.present)
        in_zones = Counter(claim for claim, _ in self.present[:counted])
        live = {claim: {"n-0": count} if (count := there[claim]) else {} for claim in self.cores}
        of_zones = {claim: {"n-0": count} for claim, count in in_zones.items()}
        self.writer.put(0, LAB, [row], claims=live, counted=of_zones, as_of=1.0)

    def decide(self, name: str, cores: int, count: int) -> bool:
        wanted = shape(name, cores, count)
        fits = bool(FitCache(self.writer.fleet).get(wanted).fits[0])
        found = assign_beside_own(self.writer.fleet, 0, [Wanted(wanted, name)])
        assert fits == (not isinstance(found, Unassigned)), "the quick answer is the exact one"
        assert self.replayed(wanted) == fits
        if isinstance(found, Unassigned):
            return False
        intent = IntentRef(kind="Application", name=name, revision=1)
        claim = Claim(
            id=name, decision=name, intent=intent, tenant="t", slots=found[0].slots, app="a",
            object=wanted.object, cluster=LAB,
        )  # fmt: skip
        decision = Decision(id=name, group=name, revision=1, claims=[claim])
        self.capacity.hold(decision)
        assert self.capacity.fits(name)
        commit = Commit(id=name, entries=[decision])
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), [decision])
        self.waiting[name], self.cores[name] = count, cores
        return True

    def replayed(self, wanted: Shape) -> bool:
        """Returns whether the pods fit on a recorded copy of the fleet."""
        fleet = self.writer.fleet
        copy = copy_of(fleet, rows_of=[0], resources=["cpu", "pods"], sums=[], claims=[], epochs=[])
        recorded = msgspec.json.decode(msgspec.json.encode(copy.encode([0], [LAB], b"")), type=Excerpt)
        placed = assign_beside_own(ExcerptFleet(recorded), 0, [Wanted(wanted, "again")])
        return not isinstance(placed, Unassigned)

    def arrive(self, claim: str) -> bool:
        taken = self.kubelet.admit(pod(self.cores[claim]))
        if taken is None:
            return False
        self.waiting[claim] -= 1
        self.present.append((claim, taken))
        return True

    def every_order_is_admitted(self) -> bool:
        def admitted(waiting: Counter[int]) -> bool:
            for cores in [cores for cores, count in waiting.items() if count]:
                taken = self.kubelet.admit(pod(cores))
                if taken is None:
                    return False
                waiting[cores] -= 1
                later = admitted(waiting)
                waiting[cores] += 1
                self.kubelet.give_back(taken)
                if not later:
                    return False
            return True

        waiting: Counter[int] = Counter()
        for claim, count in self.waiting.items():
            waiting[self.cores[claim]] += count
        return admitted(waiting)


def pod(cores: int) -> Alignment:
    return (Step((("cpu", cores * 1000),)),)


def test_pods_of_an_earlier_decision_may_take_other_zones_than_expected() -> None:
    """Two pods of four cores, one of six: each fits beside what is expected. If the small ones come first they share a zone, the
    six cores take the other one, and another six have none, though the sums and the expected zones have room."""
    world = World(10, 10)
    assert world.decide("a", 6, 1)
    assert world.decide("b", 4, 2)
    assert not world.decide("c", 6, 1)
    assert world.every_order_is_admitted()


def test_equal_pods_of_several_decisions_are_counted_exactly() -> None:
    world = World(10, 10)
    assert [world.decide(f"g{i}", 3, 1) for i in range(7)] == [True] * 6 + [False]
    assert world.every_order_is_admitted()


def test_what_arrived_and_is_counted_is_where_it_is() -> None:
    world = World(10, 10)
    assert world.decide("a", 6, 1)
    assert world.decide("b", 4, 2)
    for claim in ("a", "b", "b"):
        assert world.arrive(claim)
    world.report(counted=0)
    assert not world.decide("c", 5, 1), "nobody knows where the others are"
    world.report(counted=3)
    assert world.decide("c", 5, 1)
    assert not world.decide("d", 5, 1)
    assert world.arrive("c")


def test_what_ends_gives_its_zones_back() -> None:
    world = World(10, 10)
    assert world.decide("a", 6, 2)
    assert not world.decide("b", 6, 1)
    entries: list[Entry] = [Withdrawal(group="a", revision=1), Release(claims=["a"])]
    for entry in entries:
        commit = Commit(id=type(entry).__name__, entries=[entry])
        world.capacity.folded(world.ledger.fold(world.ledger.seq + 1, commit))
    world.waiting.clear()
    assert world.writer.fleet.open_pods == {}
    assert world.decide("b", 6, 2)


def test_decisions_in_flight_count() -> None:
    """Two mergers decide at once; the one whose decision is refused by the other's finds no room."""
    world = World(10, 10)
    found = assign_beside_own(world.writer.fleet, 0, [Wanted(shape("late", 6, 1), "late")])
    assert not isinstance(found, Unassigned)
    intent = IntentRef(kind="Application", name="late", revision=1)
    late = Claim(
        id="late", decision="late", intent=intent, tenant="t", slots=found[0].slots, app="a", object="Deployment/late",
        cluster=LAB,
    )  # fmt: skip
    world.capacity.hold(Decision(id="late", group="late", revision=1, claims=[late]))
    assert world.capacity.fits("late")
    assert world.decide("b", 4, 2)
    assert not world.decide("c", 6, 1)
    world.capacity.give_back("late")
    assert world.decide("c", 6, 1)
    world.capacity.hold(Decision(id="late", group="late", revision=1, claims=[late]))
    assert not world.capacity.fits("late")


def check(seed: int) -> int:
    """Decides, lets pods arrive in any order, and reports late. Returns the number of pods that were placed."""
    rng = Random(seed)
    world = World(*(rng.randint(4, 10) for _ in range(rng.choice((2, 2, 3)))))
    counted = 0
    for number in range(5):
        world.decide(f"g{number}", rng.randint(2, 6), rng.randint(1, 2))
        if sum(world.waiting.values()) < 6:
            assert world.every_order_is_admitted(), seed
        for _ in range(rng.randint(0, 2)):
            if coming := [claim for claim, count in world.waiting.items() if count]:
                assert world.arrive(rng.choice(coming)), seed
        if rng.random() < 0.7:
            counted = rng.randint(counted, len(world.present))
            world.report(counted)
    assert world.every_order_is_admitted(), seed
    return len(world.present) + sum(world.waiting.values())


def test_no_pod_of_random_decisions_is_rejected() -> None:
    assert sum(check(seed) for seed in range(80)) > 150


@pytest.mark.long
def test_no_pod_of_many_random_decisions_is_rejected() -> None:
    for seed in range(1000, 6000):
        check(seed)
