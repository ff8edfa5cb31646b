"""Tests that kubelets that align pods admit what is decided for their nodes, while pods come and go in any order, reports of zones are late,
two mergers decide on one view, and slots are given back."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from moorage.fit import Unassigned
from moorage.fleet import normalize_node
from moorage.ledger import Capacity, Ledger, Wanted, assign_beside_own
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Withdrawal
from moorage.model.part_reports import TopologyManager as ReportedManager
from moorage.model.part_reports import ZoneReport
from moorage.model.part_requests import OneZone, PodContainer
from moorage.model.reports import CpuManager, NodeReport
from moorage.model.shapes import Shape
from moorage.model.slots import Slot
from moorage.parsing import format_amount
from moorage.parts.kubelet import Kubelet, Taken, TopologyManager, ZoneAmounts, alignment
from moorage.podspec import ContainerResources, pod_requests
from moorage_testkit.fleets import writer_of
from moorage_testkit.seeds import seeds

A = "lab/one"
GPU = "nvidia.com/gpu"


class Pod(NamedTuple):
    claim: str
    number: int
    node: str


class Machine:
    """A node as it is: what its kubelet gave to whom."""

    def __init__(self, rng: Random, name: str) -> None:
        self.name = name
        policy = rng.choice(("single-numa-node", "single-numa-node", "restricted"))
        self.manager = TopologyManager(policy, rng.choice(("container", "pod")))  # type: ignore[arg-type]
        total = {"cpu": rng.randint(4, 8) * 1000, "memory": rng.choice((8, 64)) << 30, GPU: rng.choice((0, 0, 2, 3))}
        self.totals = [dict(total) for _ in range(rng.choice((2, 2, 2, 3)))]
        self.strangers = [{"cpu": rng.choice((0, 0, 0, 1, 2)) * 1000} for _ in self.totals]
        free = [
            {name: amount - used.get(name, 0) for name, amount in zone.items()}
            for zone, used in zip(self.totals, self.strangers, strict=True)
        ]
        self.kubelet = Kubelet(self.manager, [ZoneAmounts(t, f) for t, f in zip(self.totals, free, strict=True)])
        self.running: dict[Pod, tuple[Taken, Shape]] = {}
        self.seen: tuple[dict[str, dict[str, str]], frozenset[Pod]] = ({}, frozenset())
        # Pods that ended: all, those that the exporter has seen, and those that the mesh knows.
        self.ends = self.ends_seen = self.ends_told = 0
        self.look()

    def admit(self, pod: Pod, shape: Shape) -> bool:
        steps = alignment(shape.containers, shape.guaranteed, self.manager, self.kubelet.reported)
        taken = self.kubelet.admit(steps)
        if taken is not None:
            self.running[pod] = taken, shape
        return taken is not None

    def end(self, pod: Pod) -> None:
        self.kubelet.give_back(self.running.pop(pod)[0])
        self.ends += 1

    def look(self) -> None:
        """Returns the next report of the exporter."""
        used = {
            f"numa-{i}": {
                name: format_amount(name, amount - zone.free[name])
                for name, amount in zone.total.items()
                if amount > zone.free[name]
            }
            for i, zone in enumerate(self.kubelet.zones)
        }
        self.seen, self.ends_seen = (used, frozenset(self.running)), self.ends

    @property
    def misses_ends(self) -> bool:
        return self.ends_told < self.ends

    def report(self) -> NodeReport:
        """The row of the node: pods as they are, zones as they were when the exporter looked."""
        requested: dict[str, int] = {"cpu": sum(used["cpu"] for used in self.strangers)}
        for _, shape in self.running.values():
            for name, amount in shape.resources.items():
                requested[name] = requested.get(name, 0) + amount
        everything: dict[str, int] = {}
        for zone in self.totals:
            for name, amount in zone.items():
                everything[name] = everything.get(name, 0) + amount
        return NodeReport(
            name=self.name,
            uid=self.name,
            allocatable={n: format_amount(n, a) for n, a in everything.items()} | {"pods": "100"},
            requested={n: format_amount(n, a) for n, a in requested.items() if n != "pods"},
            pod_count=len(self.running),
            cpu_manager=CpuManager(policy="static", exclusive_free=everything["cpu"] // 1000),
            topology_manager=ReportedManager(policy=self.manager.policy, scope=self.manager.scope),
            zones=[
                ZoneReport(id=i, inventories={n: format_amount(n, a) for n, a in zone.items() if a})
                for i, zone in enumerate(self.totals)
            ],
            in_use=self.seen[0],
        )


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.machines = {f"n-{i}": Machine(rng, f"n-{i}") for i in range(rng.choice((1, 1, 2)))}
        self.writer = writer_of({A: [machine.report() for machine in self.machines.values()]})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.shapes: dict[str, Shape] = {}
        self.starting: list[Pod] = []
        self.surprised: set[Pod] = set()  # zones had become free, but no report said so when these were decided
        self.placed = self.arrived = self.refused = 0

    # -- the mesh

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def shape(self, name: str) -> Shape:
        rng = self.rng
        guaranteed = rng.random() < 0.85
        containers = [self.container(f"c{i}") for i in range(rng.choice((1, 1, 1, 2)))]
        if rng.random() < 0.3:
            containers.insert(0, self.container("i", init=True, sidecar=rng.random() < 0.3))
        asked = [ContainerResources(c.name, c.requests, {}, c.init, c.sidecar) for c in containers]
        return Shape(
            key=name,
            object=f"StatefulSet/{name}",
            template=name,
            count=rng.choice((1, 1, 1, 2, 3)),
            resources=dict(pod_requests(asked)) | {"pods": 1},
            containers=containers,
            guaranteed=guaranteed,
            relations=[OneZone(required=True)] if rng.random() < 0.15 else [],
        )

    def container(self, name: str, **fields: bool) -> PodContainer:
        requests = {"cpu": self.rng.randint(1, 4) * 1000, "memory": self.rng.randint(1, 3) << 30}
        if self.rng.random() < 0.2:
            requests[GPU] = 1
        return PodContainer(name=name, requests=requests, **fields)

    def decide(self) -> None:
        """One merger decides one or two objects at once; another one decides on the same view and comes second."""
        made: list[Decision] = []
        for _ in range(self.rng.choice((1, 1, 2))):
            self.placed += 1
            names = [f"{self.placed}-{i}" for i in range(self.rng.choice((1, 1, 2)))]
            shapes = [self.shape(name) for name in names]
            found = assign_beside_own(self.writer.fleet, 0, [Wanted(s, f"k-{s.key}") for s in shapes])
            if isinstance(found, Unassigned):
                continue
            made.append(self.decision(str(self.placed), shapes, [list(one.slots) for one in found]))
        self.commit(made)

    def decision(self, ident: str, shapes: list[Shape], slots: list[list[Slot]]) -> Decision:
        self.shapes |= {f"k-{shape.key}": shape for shape in shapes}
        intent = IntentRef(kind="Application", name="g", revision=1)
        claims = [
            Claim(
                id=f"k-{shape.key}",
                decision=ident,
                intent=intent,
                tenant="t",
                slots=of_shape,
                app="a",
                object=shape.object,
                cluster=A,
            )
            for shape, of_shape in zip(shapes, slots, strict=True)
        ]
        return Decision(id=ident, group=f"g-{ident}", revision=1, claims=claims)

    def claim(self, shape: Shape) -> bool:
        """Decides one object alone. Returns whether it is placed."""
        found = assign_beside_own(self.writer.fleet, 0, [Wanted(shape, f"k-{shape.key}")])
        if isinstance(found, Unassigned):
            return False
        self.commit([self.decision(shape.key, [shape], [list(one.slots) for one in found])])
        return True

    def commit(self, made: list[Decision]) -> None:
        for decision in made:
            self.capacity.hold(decision)
            if not self.capacity.fits(decision.id):
                self.capacity.give_back(decision.id)
                continue
            self.fold(decision)
            for claim in decision.claims:
                places = [slot.node for slot in claim.slots for _ in range(slot.count)]
                pods = [Pod(claim.id, i, node) for i, node in enumerate(places)]
                self.starting += pods
                self.surprised.update(pod for pod in pods if self.machines[pod.node].misses_ends)

    # -- the cluster

    def arrive(self) -> None:
        if not self.starting:
            return
        pod = self.starting.pop(self.rng.randrange(len(self.starting)))
        shape, machine = self.shapes[pod.claim], self.machines[pod.node]
        if not machine.admit(pod, shape):
            # What became free may have drawn an init container to a zone without room for the rest.
            assert pod in self.surprised and any(c.init for c in shape.containers), (
                pod,
                shape.containers,
                machine.manager,
            )
            self.refused += 1
            return
        self.arrived += 1

    def arrive_last_first(self) -> None:
        while self.starting:
            pod = self.starting.pop()
            assert self.machines[pod.node].admit(pod, self.shapes[pod.claim])

    def evict(self) -> None:
        """A pod ends, and its controller makes another one for the same slot."""
        running = [pod for machine in self.machines.values() for pod in machine.running]
        if running:
            pod = self.rng.choice(running)
            self.machines[pod.node].end(pod)
            self.starting.append(pod)

    def end(self) -> None:
        if not self.ledger.standing:
            return
        group = self.rng.choice(sorted(self.ledger.standing))
        claims = [claim.id for claim in self.ledger.standing[group].claims]
        self.fold(Withdrawal(group=group, revision=1))
        self.starting = [pod for pod in self.starting if pod.claim not in claims]
        self.surprised.update(self.starting)
        for machine in self.machines.values():
            for pod in [pod for pod in machine.running if pod.claim in claims]:
                machine.end(pod)
        self.report()
        self.fold(Release(claims=claims))

    def report(self) -> None:
        live: dict[str, dict[str, int]] = {claim: {} for claim in self.shapes}
        counted: dict[str, dict[str, int]] = {claim: {} for claim in self.shapes}
        for machine in self.machines.values():
            for pod in machine.running:
                live[pod.claim][machine.name] = live[pod.claim].get(machine.name, 0) + 1
                if pod in machine.seen[1]:
                    counted[pod.claim][machine.name] = counted[pod.claim].get(machine.name, 0) + 1
        rows = [normalize_node(machine.report())[0] for machine in self.machines.values()]
        self.writer.put(0, A, rows, claims=live, counted=counted)
        for machine in self.machines.values():
            machine.ends_told = machine.ends_seen

    def look(self) -> None:
        self.rng.choice(sorted(self.machines.values(), key=lambda machine: machine.name)).look()

    def run(self, steps: int, evictions: int = 0) -> None:
        actions = [*[self.decide] * 6, *[self.arrive] * 3, *[self.evict] * evictions, self.end, self.report, self.look]
        for _ in range(steps):
            self.rng.choice(actions)()
        while self.starting:
            self.arrive()


@pytest.mark.parametrize("seed", seeds(12, 3_000))
def test_what_is_decided_is_admitted_in_whatever_order_it_arrives(seed: int) -> None:
    World(seed).run(60)


def test_the_worlds_are_not_empty() -> None:
    arrived = refused = 0
    for seed in range(10):
        world = World(seed)
        world.run(60)
        arrived, refused = arrived + world.arrived, refused + world.refused
    assert arrived > 60 and refused < arrived / 50


class Plain(Machine):
    """A node with two zones of seven cores."""

    def __init__(self) -> None:
        self.name = "n-0"
        self.manager = TopologyManager("single-numa-node", "container")
        self.totals, self.strangers = [{"cpu": 7000}, {"cpu": 7000}], [{"cpu": 0}, {"cpu": 0}]
        self.kubelet = Kubelet(self.manager, [ZoneAmounts(zone, dict(zone)) for zone in self.totals])
        self.running = {}
        self.ends = self.ends_told = 0
        self.look()


def pod(name: str, *cores: int) -> Shape:
    """A pod of one container with such init containers before it."""
    containers = [
        PodContainer(name=f"c{i}", init=i < len(cores) - 1, requests={"cpu": n * 1000}) for i, n in enumerate(cores)
    ]
    most = {"cpu": max(cores) * 1000, "pods": 1}
    return Shape(
        key=name, object=f"StatefulSet/{name}", template=name, resources=most, containers=containers, guaranteed=True
    )


def test_an_init_container_of_a_pod_that_has_not_arrived_is_not_forgotten() -> None:
    """It may bind its pod to the zone that the other pod leaves one core of."""
    for later, fits in ((6, False), (3, True)):
        world = World(0)
        world.machines = {"n-0": Plain()}
        world.writer = writer_of({A: [world.machines["n-0"].report()]})
        world.ledger = Ledger()
        world.capacity = Capacity(world.writer.fleet, world.ledger)
        assert world.claim(pod("init", 1, 3))
        assert world.claim(pod("later", later)) is fits
        world.arrive_last_first()
        if not fits:
            world.report()
            assert not world.claim(pod("other", later)), "no report of zones includes the first one"
            world.look()
            world.report()
            assert world.claim(pod("another", later))
        while world.starting:
            world.arrive()
