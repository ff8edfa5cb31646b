"""A cluster that is cut off gives out its offline slots alone, and the mesh promises others meanwhile: together never more than there are,
whatever is lost, late or started again."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fleet import normalize_node
from moorage.ledger import Capacity, Ledger
from moorage.machine_groups.names import GIVEN_ALONE, MACHINE_GROUP, MACHINE_TYPE
from moorage.machine_groups.reports import MeshReports
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
from moorage.model.machine_slots import reservation_claim, slot_resource
from moorage.model.machines import MachinesSync, MachinesSynced
from moorage.model.object_names import CLAIM
from moorage.model.slots import Slot
from moorage.podspec import pinned_node
from moorage.slots.core.answers import Told
from moorage.slots.core.planner import Planner
from moorage.slots.core.state import ClusterMachines
from moorage_testkit.fleets import node, writer_of
from moorage_testkit.machine_world import World
from moorage_testkit.machines import machine

CLUSTER = "lab/one"
#: What the halves of slots of the type `a` are.
HALF = {"spec": {"dependence": {"machineType": "a", "availableRatio": 0.5}}}


def reservation(kind: str) -> str:
    return reservation_claim(f"g/{kind}", CLUSTER)


class Mesh:
    """The ledger, the fleet as agents report it, and the worker `slots`."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.nodes = nodes
        rows = [node(name, cpu=str(cores), memory="64Gi") for name, cores in nodes.items()]
        self.writer = writer_of({CLUSTER: rows})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.generation = 0
        self.start()

    def start(self) -> None:
        """Starts `slots`, again: it knows what the log has."""
        self.generation += 1
        self.ledger = Ledger.decode(self.ledger.encode())
        self.capacity.reload(self.ledger)
        self.cluster, self.told = ClusterMachines(CLUSTER), Told(self.generation)

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        held = [r.id for r in commit.entries_of(SlotReservations)] + [g.id for g in commit.entries_of(SlotGrants)]
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision), held)

    def sync(self, report: MachinesSync, now: float) -> MachinesSynced:
        if self.cluster.refusal(report):
            return MachinesSynced(generation=self.generation, revision=0, resync=True)
        self.cluster.take(report)
        for _ in range(8):
            planner = Planner(self.writer.fleet, self.ledger, self.cluster, now)
            grants, ident = planner.grants(), f"g{self.ledger.seq}"
            if grants.withdrawn or grants.observed:
                self._commit(SlotGrants(id=ident, generation=self.generation, granted=grants.observed, withdrawn=grants.withdrawn, observed=True))  # fmt: skip
                continue
            reservations = planner.reservations()
            if reservations.changed:
                self._commit(
                    SlotReservations(
                        id=f"r{self.ledger.seq}", generation=self.generation, reserved=reservations.changed
                    )
                )
                continue
            if not grants.granted:
                return self.told.reply(report, planner.answer(reservations, grants.waiting))
            self._commit(SlotGrants(id=ident, generation=self.generation, granted=grants.granted))
        raise AssertionError("it finds no end")

    def _commit(self, entry: SlotReservations | SlotGrants) -> None:
        if isinstance(entry, SlotReservations):
            self.capacity.hold_reservations(entry)
            fits = self.capacity.holds_room(entry.id) and self.capacity.keeps_slots(entry)
        else:
            self.capacity.hold_grants(entry)
            fits = entry.observed or self.capacity.holds_room(entry.id)
        if fits:
            self.fold(entry)
        self.capacity.give_back_entry(entry.id)

    def decide(self, name: str, kind: str, rng: random.Random) -> bool:
        """Decides an application of one pod on a node with a free slot of a type."""
        resource = slot_resource(f"g/{kind}")
        free = [n for n in self.nodes if self.free(n, resource) > 0]
        if not free:
            return False
        claim = Claim(
            id=f"claim-{name}",
            decision=name,
            intent=IntentRef(kind="Application", name=name, revision=1),
            tenant="t",
            app="a",
            object="Deployment/d",
            cluster=CLUSTER,
            within=reservation(kind),
            slots=[Slot(node=rng.choice(free), resources={resource: 1})],
        )
        decision = Decision(id=name, group=name, revision=1, claims=[claim])
        self.capacity.hold(decision)
        assert self.capacity.fits(name)
        self.fold(decision)
        return True

    def end(self, name: str) -> None:
        self.fold(Withdrawal(group=name, revision=1), Release(claims=[f"claim-{name}"]))

    def free(self, name: str, resource: str) -> int:
        row, column = self.writer.fleet.row_of(0, name), self.writer.fleet.free(resource)
        return 0 if column is None or row is None else int(column[row])

    def observe(self, pods: list[dict[str, Any]]) -> None:
        """Takes a report of the agent."""
        claims: dict[str, dict[str, int]] = {}
        bound = Counter(p["spec"]["nodeName"] for p in pods)
        for pod in pods:
            if claim := pod["metadata"]["labels"].get(CLAIM):
                live = claims.setdefault(claim, {})
                live[pod["spec"]["nodeName"]] = live.get(pod["spec"]["nodeName"], 0) + 1
        rows = []
        for name, cores in self.nodes.items():
            halves = sum(p["spec"]["nodeName"] == name and _type_of(p) == "half" for p in pods)
            units = 2 * bound[name] - halves
            requested = {"cpu": str(units), "memory": f"{512 * units}Mi"}
            found = node(name, cpu=str(cores), memory="64Gi", requested=requested, pod_count=bound[name])
            rows.append(normalize_node(found)[0])
        self.writer.put(0, CLUSTER, rows, whole=True, claims=claims)


def _type_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get(MACHINE_TYPE, ""))


class Site:
    """A cluster and its mesh. `halves`: with a type of which two share a slot, and of which there are only so many."""

    def __init__(self, seed: int, *, halves: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.nodes = {f"n{i}": 2 * rng.randint(1, 2) for i in range(rng.randint(1, 3))}
        self.room = sum(cores // 2 for cores in self.nodes.values())
        self.available = rng.randint(1, self.room)
        self.offline = rng.randint(1, self.available)
        kind = {"spec": {"cpu": "2", "memory": "1Gi"}, "available": self.available, "offlineSlots": self.offline}
        kinds = {"a": kind}
        if halves:
            self.halves = rng.randint(1, 2 * self.available)
            kinds["half"] = HALF | {"available": self.halves, "offlineSlots": rng.randint(0, self.halves)}
        self.types = list(kinds)
        document = machine("g", kinds, {name: ["a"] for name in self.nodes})
        self.world = World(document, {n: {"cpu": str(c), "memory": "64Gi"} for n, c in self.nodes.items()}, rng)
        self.mesh, self.cut, self.made = Mesh(self.nodes), False, 0
        self.apps, self.kinds = dict[str, int](), dict[str, str]()
        self.session = 0
        self.begin_session()

    def begin_session(self) -> None:
        self.session += 1
        self.world.core.expects_mesh = True
        self.reports = MeshReports(self.world.core, CLUSTER, f"s{self.session}", self.session)

    def restart(self) -> None:
        """Starts the process again. What the mesh told it last is stored: see docs/limits.md."""
        for _ in range(20):
            self.world.plan()
            while self.world.pending:
                self.world.answer()
            while self.world.events:
                self.world.observe()
            self.world.now += 1
        self.world.start()
        self.begin_session()

    def set_cut(self, cut: bool) -> None:
        self.cut = cut
        if cut:
            self.reports.begin_again()
            self.world.core.set_connected(False)

    def sync(self) -> None:
        if self.cut:
            return
        self.mesh.observe(self.live())
        for _ in range(2):
            answer = self.mesh.sync(self.reports.report(), self.world.now)
            self.reports.take(answer, self.world.now)
            if not answer.resync:
                break
        self.world.core.set_connected(True)

    def live(self) -> list[dict[str, Any]]:
        return [p for p in self.world.pods() if p["spec"].get("nodeName") and p["status"].get("phase") != "Succeeded"]

    def guest(self, app: str = "") -> None:
        labels = {CLAIM: f"claim-{app}"} if app else {}
        kind = self.kinds[app] if app else self.rng.choice(self.types)
        self.world.guest(f"g{self.made}", kind, labels={MACHINE_GROUP: "g", **labels})
        self.made += 1

    def step(self) -> None:
        rng, world = self.rng, self.world
        match rng.randrange(100):
            case n if n < 6 and self.made < 12:
                self.guest()
            case n if n < 10:
                kind = rng.choice(self.types)
                if self.mesh.decide(name := f"app{self.made}-{n}-{len(self.apps)}", kind, rng):
                    self.apps[name], self.kinds[name] = 0, kind
            case n if n < 13 and self.apps and self.made < 16:
                name = rng.choice(sorted(self.apps))
                if not self.apps[name]:
                    self.apps[name] = 1
                    self.guest(name)
            case n if n < 18 and (bound := [p for p in world.guests() if p["spec"].get("nodeName")]):
                pod = rng.choice(bound)
                world.finish(pod) if rng.random() < 0.5 else world.delete_pod(pod)
            case 18 | 19:
                self.set_cut(not self.cut)
            case 20:
                self.restart()
            case 21 if not self.cut:
                self.mesh.start()
            case 22 | 23 | 24:
                self.change(rng.choice(("ready", "maintenance")), rng.randint(1, self.available))
            case n if n < 40:
                self.sync()
            case _:
                world.step()

    def change(self, mode: str, offline: int) -> None:
        """Changes the Machine: the mode of a node, and how many slots the cluster gives out alone."""
        found = self.world.machine("g")
        found["spec"]["nodePool"][self.rng.randrange(len(self.nodes))]["mode"] = mode
        found["spec"]["machineTypes"][0]["offlineSlots"] = self.offline = offline
        found["metadata"]["generation"] += 1
        self.world.change("Machine", found)

    def check(self) -> None:
        """Counts whoever was let onto a node, and whoever was promised a slot there and was not let in elsewhere."""
        let_in: dict[str, tuple[str, str]] = {}
        of_app: Counter[tuple[str, str]] = Counter()
        for pod in self.world.guests():
            where = pod["spec"].get("nodeName") or pinned_node(pod["spec"])
            if not pod["spec"].get("schedulingGates") and where and pod["status"].get("phase") != "Succeeded":
                let_in[pod["metadata"]["uid"]] = where, _type_of(pod)
                if GIVEN_ALONE not in pod["metadata"].get("annotations", {}):
                    of_app[pod["metadata"]["labels"][CLAIM], where] += 1
        total = Counter(let_in.values())
        for uid, granted in self.mesh.ledger.machines.granted.items():
            kind = granted.machine.partition("/")[2]
            if uid not in let_in and not granted.alone and granted.claim == reservation(kind):
                total[granted.node, kind] += 1
        for ident, active in self.mesh.ledger.claims.items():
            kind = self.kinds[active.group]
            for slot in active.claim.slots:
                total[slot.node, kind] += max(0, slot.count - of_app[ident, slot.node])
        for name, cores in self.nodes.items():
            assert total[name, "a"] - (-total[name, "half"] // 2) <= cores // 2, (name, total, let_in)
        if "half" in self.types:
            assert sum(count for (_, kind), count in total.items() if kind == "half") <= self.halves, (total, let_in)

    def end_apps(self) -> None:
        """Ends the applications: their pods go first."""
        for pod in self.world.guests():
            if pod["metadata"]["labels"].get(CLAIM, "").startswith("claim-"):
                self.world.finish(pod)
        self.rest()
        for name in self.apps:
            self.mesh.end(name)

    def rest(self) -> None:
        self.set_cut(False)
        for _ in range(12):
            self.sync()
            self.world.rest()
            self.world.now += 61


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30))
def test_of_a_type_that_shares_slots_never_more_are_given_out_than_there_are(seed: int) -> None:
    site = Site(seed, halves=True)
    site.rest()
    for _ in range(site.rng.randint(50, 300)):
        site.step()
        site.check()
    site.end_apps()
    site.rest()
    site.check()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_cluster_that_is_cut_off_and_the_mesh_never_give_out_more_than_there_is(seed: int) -> None:
    site = Site(seed)
    site.rest()
    for _ in range(site.rng.randint(50, 300)):
        site.step()
        site.check()
    site.end_apps()
    for entry in site.world.machine("g")["spec"]["nodePool"]:
        entry["mode"] = "ready"
    site.change("ready", site.offline)
    site.rest()
    site.check()
    usage = site.world.usage("g")["a"]
    assert usage["reserved"] + usage["used"] == site.available, usage
    alone = sum(GIVEN_ALONE in p["metadata"].get("annotations", {}) for p in site.live())
    left = usage["reserved"] - max(0, site.offline - alone)
    assert not usage["waiting"] or left <= 0, (usage, site.offline, alone)
