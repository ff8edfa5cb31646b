"""Random lives of pods on nodes whose agents give them zones and tell it late: what was decided is always admitted in its slot, and
where an agent gives other zones than claimed, slots follow and nothing is given twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.unit.reported_cluster import LAB, ReportedCluster

from moorage.fit import Unassigned
from moorage.ledger import Wanted, assign_beside_own
from moorage.merger.core.settle import settle
from moorage.merger.core.settlement_draft import Draft, Surroundings
from moorage.model.part_reports import ZoneReport
from moorage.model.part_requests import OneZone
from moorage.model.reports import NodeReport, PodReport, Report
from moorage.model.shapes import Shape
from moorage.model.slots import part_resources
from moorage_testkit.seeds import seeds

CORES = 4


def in_one_zone(ident: str, cores: int, count: int) -> Shape:
    resources = {"cpu": cores * 1000, "pods": 1}
    relations: list[Any] = [OneZone(required=True)]
    return Shape(key=ident, object=f"StatefulSet/{ident}", count=count, resources=resources, relations=relations)


class Pod(msgspec.Struct):
    claim: str
    node: str
    zone: str
    cores: int


class World(ReportedCluster):
    """A cluster, and what inventory and ledger know of it. `obedient`: agents give pods the zones of slots."""

    def __init__(self, seed: int, *, obedient: bool) -> None:
        super().__init__(seed)
        self.obedient = obedient
        self.nodes = [f"n-{i}" for i in range(self.rng.choice((1, 1, 2)))]
        self.zones = {f"{node}/numa-{z}" for node in self.nodes for z in range(self.rng.choice((2, 3)))}
        self.pods: dict[str, Pod] = {}
        self.told: dict[str, set[str]] = {}  # node → pods of which its agent told
        self.made = 0
        self.begin(self.nodes)

    # -- the cluster --------------------------------------------------------------------------------------------------

    def in_use(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for pod in self.pods.values():
            used[pod.zone] += pod.cores * 1000
        return used

    def start(self) -> None:
        """Starts one pod that is missing, on the node of a slot that has none, in a zone that its agent has free."""
        waiting = []
        for ident, active in self.ledger.claims.items():
            if ident in self.leaving:
                continue
            seats = Counter(
                (slot.node, next(iter(slot.parts))) for slot in active.claim.slots for _ in range(slot.count)
            )
            have = Counter((pod.node, pod.zone) for pod in self.pods.values() if pod.claim == ident)
            free = sum((seats - have).values())
            if sum(have.values()) < sum(seats.values()) and free:
                waiting.append((ident, seats - have, active.claim.slots[0].resources["cpu"] // 1000))
        if not waiting:
            return
        ident, seats, cores = self.rng.choice(waiting)
        node, zone = self.rng.choice(sorted(seats.elements()))
        used = self.in_use()
        if not self.obedient and self.rng.random() < 0.4:
            others = [z for z in self.zones if z.startswith(f"{node}/") and used[z] + cores * 1000 <= CORES * 1000]
            zone = self.rng.choice(sorted(others)) if others else zone
        has_room = used[zone] + cores * 1000 <= CORES * 1000
        assert has_room or not self.obedient, f"{zone} has no room for {ident}"
        if has_room:
            self.made += 1
            self.pods[f"p{self.made}"] = Pod(ident, node, zone, cores)

    def end(self) -> None:
        if self.pods:
            del self.pods[self.rng.choice(sorted(self.pods))]

    def claimed_pods(self) -> dict[str, Pod]:
        return self.pods

    def remove_pod(self, uid: str) -> None:
        del self.pods[uid]

    # -- reports ------------------------------------------------------------------------------------------------------

    def say(self, source: str, **rows: Any) -> None:
        self.report(source, Report(**self.report_head(source), **rows))

    def report_cluster(self) -> None:
        bodies = [PodReport(uid=uid, node=pod.node, phase="Running", claim=pod.claim) for uid, pod in self.pods.items()]
        nodes = []
        for node in self.nodes:
            here = [pod for pod in self.pods.values() if pod.node == node]
            zones = sum(zone.startswith(f"{node}/") for zone in self.zones)
            requested = {"cpu": str(sum(pod.cores for pod in here))}
            allocatable = {"cpu": str(zones * CORES), "pods": "110"}
            nodes.append(NodeReport(name=node, allocatable=allocatable, requested=requested, pod_count=len(here)))
        self.say("agent", nodes=nodes, pods=bodies, pods_gone=self.pods_gone())

    def report_node(self, node: str) -> None:
        used = self.in_use()
        numbers = sorted(int(zone[-1]) for zone in self.zones if zone.startswith(f"{node}/"))
        zones = [ZoneReport(id=z, inventories={"cpu": str(CORES)}) for z in numbers]
        in_use = {f"numa-{z}": {"cpu": f"{used[f'{node}/numa-{z}']}m"} for z in numbers}
        here = {uid: pod for uid, pod in self.pods.items() if pod.node == node}
        gone = sorted(self.told.get(node, set()) - here.keys())
        self.told[node] = set(here)
        self.say(
            f"node-{node}",
            nodes=[NodeReport(name=node, zones=zones, in_use=in_use)],
            pods=[PodReport(uid=uid, parts={pod.zone: {"cpu": str(pod.cores)}}) for uid, pod in here.items()],
            pods_gone=gone,
        )

    # -- the mesh -----------------------------------------------------------------------------------------------------

    def decide(self) -> None:
        self.made += 1
        ident, cores, count = f"k{self.made}", self.rng.randint(1, 3), self.rng.choice((1, 1, 2))
        found = assign_beside_own(self.fleet, 0, [Wanted(in_one_zone(ident, cores, count), ident)])
        if isinstance(found, Unassigned):
            return
        slots = found[0].slots
        assert all(sum(amounts["cpu"] for amounts in slot.parts.values()) == cores * 1000 for slot in slots)
        self.claim(ident, slots)

    def settle(self) -> None:
        for _ in range(10):
            if not self.capacity.may_be_unsettled(LAB):
                return
            found = settle(Draft(0, self.ledger, self.fleet))
            objects = self.capacity.to_settle(LAB, whole=False)
            assert found == settle(Draft(0, self.ledger, self.fleet, Surroundings(objects=objects)))
            if found.entry is None:
                return
            self.fold(found.entry)
        raise AssertionError("it does not come to rest")

    def rest(self) -> None:
        """Lets everything be told and settled, and compares what is known with what is true."""
        self.report_cluster()
        for node in self.nodes:
            self.report_node(node)
        self.settle()
        used, open_slots = self.in_use(), Counter[str]()
        for ident, active in self.ledger.claims.items():
            pods = [pod for pod in self.pods.values() if pod.claim == ident]
            seats = Counter(
                (slot.node, next(iter(slot.parts))) for slot in active.claim.slots for _ in range(slot.count)
            )
            have = Counter((pod.node, pod.zone) for pod in pods)
            assert not have - seats, f"slots of {ident} follow its pods"
            cores = active.claim.slots[0].resources["cpu"]
            for (_, zone), count in (seats - have).items():
                open_slots[zone] += count * cores
        for node in self.nodes:
            row = self.fleet.row_of(0, node)
            assert row is not None
            taken = part_resources(self.fleet.parts_taken(row))
            wanted = {zone: {"cpu": n} for zone, n in open_slots.items() if zone.startswith(f"{node}/") and n}
            assert taken == part_resources(wanted)
        if self.obedient:
            assert all(used[zone] + open_slots[zone] <= CORES * 1000 for zone in self.zones)

    def run(self, steps: int) -> None:
        actions = [self.decide, self.decide, self.start, self.start, self.start, self.end, self.withdraw]
        actions += [self.release, self.report_cluster, self.settle, self.rest]
        actions += [lambda node=node: self.report_node(node) for node in self.nodes]  # type: ignore[misc]
        for _ in range(steps):
            self.rng.choice(actions)()
        self.rest()


@pytest.mark.parametrize("seed", seeds(15, 2_000))
def test_what_is_decided_is_admitted_in_its_slot(seed: int) -> None:
    World(seed, obedient=True).run(120)


@pytest.mark.parametrize("seed", seeds(15, 2_000))
def test_slots_follow_pods_that_get_other_zones(seed: int) -> None:
    World(seed, obedient=False).run(120)
