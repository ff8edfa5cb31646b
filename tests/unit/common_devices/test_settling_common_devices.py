"""Settlements where nodes reach the same devices, or devices take of the same counters: what is taken too often at several nodes
together moves, and nothing is given twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

import msgspec
import pytest

from moorage.fit import Assigned, assign
from moorage.fleet import normalize_node
from moorage.ledger.room import free_of
from moorage.merger.core.device_failures import DeviceFailures, Recorded
from moorage.merger.core.settle import Settled, is_unsettled, settle
from moorage.merger.core.settlement_draft import Draft, Progress, Surroundings
from moorage.model.claims import Claim, Decision, IntentRef, Release, claim_id
from moorage.model.groups import Revision
from moorage.model.part_reports import DeviceTaint
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import PartAmounts, Slot, resource_of_part

from .cluster import CLASS, LAB, Cluster, Device, given, is_sound, slots_of, solutions, wanting


class Mesh:
    """One-pod groups on a cluster, none of which ran yet but for what `progress` says."""

    def __init__(self, cpu: Mapping[str, int], devices: Sequence[Device], counters: int = 0) -> None:
        self.cluster = Cluster(cpu, devices, counters)
        self.documents: dict[str, Revision] = {}
        self.failures = DeviceFailures()
        self.shapes: dict[str, Shape] = {}
        self.progress = Progress(reached=False, ran=False, restorable=False)

    def place(self, name: str, count: int = 1, cpu: int = 1, on: str = "") -> bool:
        """Places a group; on a node, if that is named."""
        shape = wanting(count, 1, cpu, "", name)
        fleet = self.cluster.fleet
        rows = fleet.rows_of(0)
        found = assign(fleet, rows if not on else rows[rows == fleet.row_of(0, on)], [shape])
        if not isinstance(found, Assigned):
            return False
        group = f"t/app/v1/{name}"
        self.shapes[group] = shape
        self.documents[group] = Revision(
            group=group, revision=1, tenant="t", instantiated=name, apps=[ShapedApp(name="a", shapes=[shape])]
        )
        claim = Claim(
            id=claim_id(group, "a", shape.object, LAB, "t"),
            decision=f"d-{name}",
            intent=IntentRef(kind="Application", name=name, revision=1),
            tenant="t",
            slots=slots_of(found),
            app="a",
            object=shape.object,
            cluster=LAB,
        )
        self.cluster.fold(Decision(id=f"d-{name}", group=group, revision=1, claims=[claim]))
        return True

    def change(self, devices: Sequence[Device], counters: int, names: Iterable[str]) -> None:
        """The cluster has these devices, counters and nodes from now on."""
        names = list(names)
        cpu = dict.fromkeys(names, 8)
        other = Cluster(cpu, devices, counters)
        before = self.cluster.fleet
        rows = []
        for report in other.reports():
            row = before.row_of(0, report.name)
            assert row is not None
            allocatable = before.allocatable("cpu")
            assert allocatable is not None
            report.allocatable["cpu"] = f"{int(allocatable[row])}m"
            rows.append(report)
        self.cluster.writer.put(0, LAB, [normalize_node(report)[0] for report in rows], whole=True)
        self.cluster.names = names

    def taint(self, devices: Iterable[Device]) -> None:
        """Each slot has a pod, and those with these devices are to end."""
        tainted, rows = {device.name for device in devices}, self.cluster.reports()
        self.watch()
        broken = [DeviceTaint(key="broken", effect="NoExecute")]
        for row in rows:
            row.devices = [
                msgspec.structs.replace(device, taints=broken) if device.name in tainted else device
                for device in row.devices or ()
            ]
            row.in_use = {part: {CLASS: "1"} for node, part in given(self.slots()) if node == row.name}
        live: dict[str, dict[str, int]] = {}
        named: dict[str, dict[str, list[tuple[PartAmounts, int]]]] = {}
        for ident, active in self.cluster.ledger.claims.items():
            for slot in active.claim.slots:
                live.setdefault(ident, {})[slot.node] = slot.count
                named.setdefault(ident, {})[slot.node] = [(slot.parts, slot.count)]
        normal = [normalize_node(row)[0] for row in rows]
        self.cluster.writer.put(0, LAB, normal, whole=True, claims=live, named=named)
        self.watch()

    def watch(self) -> None:
        held = {part: node for node, part in given(self.slots())}
        self.failures.update(0, self.cluster.fleet, held, Recorded(), 1000.0)

    def draft(self) -> Draft:
        around = Surroundings(self.documents, progress=lambda _: self.progress, failures=self.failures.on(0, 1000.0))
        return Draft(0, self.cluster.ledger, self.cluster.fleet, around)

    def settle(self) -> Settled:
        found = settle(self.draft())
        if found.entry is not None:
            self.cluster.fold(found.entry)
        return found

    def release(self) -> None:
        """Nothing of the claims that are withdrawn is in the cluster any more."""
        gone = [ident for ident, active in self.cluster.ledger.claims.items() if active.withdrawn]
        if gone:
            self.cluster.fold(Release(claims=gone))

    def slots(self) -> list[Slot]:
        return [
            slot
            for active in self.cluster.ledger.claims.values()
            if not active.withdrawn
            for slot in active.claim.slots
        ]


def test_counters_that_shrink_below_what_two_nodes_take_of_them_move_the_younger() -> None:
    devices = [Device("d0", ("n0",), 2), Device("d1", ("n1",), 2), Device("spare", ("n2",))]
    mesh = Mesh({"n0": 8, "n1": 8, "n2": 8}, devices, counters=4)
    assert mesh.place("a", on="n0") and mesh.place("b", on="n1")
    assert not is_unsettled(mesh.draft())
    mesh.change(devices, 2, ("n0", "n1", "n2"))
    assert mesh.cluster.capacity.may_be_unsettled(LAB) and is_unsettled(mesh.draft())
    found = mesh.settle()
    assert not found.displaced
    assert given(mesh.slots()) == [("n0", devices[0].ident), ("n2", devices[2].ident)]
    assert not is_unsettled(mesh.draft())


def test_a_slot_of_a_node_that_is_gone_takes_the_common_device_with_it() -> None:
    far = Device("far", ("n0", "n1"))
    mesh = Mesh({"n0": 8, "n1": 8}, [far])
    assert mesh.place("a", on="n0")
    mesh.change([far], 0, ["n1"])
    assert not mesh.settle().displaced
    assert given(mesh.slots()) == [("n1", far.ident)]


def test_slots_that_move_together_get_a_common_device_once() -> None:
    own = [Device(f"own-{i}", (f"n{i}",)) for i in range(2)]
    common = [Device("far", ("n2", "n3"))]
    mesh = Mesh({f"n{i}": 8 for i in range(4)}, own + common)
    assert mesh.place("a", on="n0") and mesh.place("b", on="n1")
    mesh.change(common, 0, ["n2", "n3"])
    found = mesh.settle()
    ((group, lack),) = found.displaced.items()
    assert (group, lack.resource, lack.needed, lack.free) == ("t/app/v1/b", CLASS, 1, 0)
    assert [part for _, part in given(mesh.slots())] == [common[0].ident]


def test_a_device_is_short_where_a_stranger_has_another_that_takes_the_same_counters() -> None:
    devices = [Device("whole", ("n0",), 4), Device("half", ("n0",), 2), Device("spare", ("n1",))]
    mesh = Mesh({"n0": 8, "n1": 8}, devices, counters=4)
    assert mesh.place("a", on="n0")
    (part,) = (part for _, part in given(mesh.slots()))
    taken = next(device for device in devices[:2] if device.ident != part)
    rows = mesh.cluster.reports()
    for row in rows:
        if row.name == "n0":
            row.in_use = {taken.ident: {CLASS: "1"}, "d.io/rack/counters:c": {"M": str(taken.takes)}}
    mesh.cluster.report(rows)
    assert is_unsettled(mesh.draft())
    assert not mesh.settle().displaced
    assert given(mesh.slots()) == [("n1", devices[2].ident)]


def test_slots_that_leave_their_devices_on_two_nodes_get_a_common_device_once() -> None:
    own, far = [Device(f"own-{i}", (f"n{i}",)) for i in range(2)], Device("far", ("n0", "n1"))
    more = [Device(f"more-{i}", ("n2",)) for i in range(6)]  # of which so few fail that slots move
    mesh = Mesh({"n0": 8, "n1": 8, "n2": 0}, [*own, far, *more])
    assert mesh.place("a", on="n0") and mesh.place("b", on="n1")
    assert given(mesh.slots()) == [("n0", own[0].ident), ("n1", own[1].ident)]
    mesh.taint(own)
    found = mesh.settle()
    assert list(found.displaced) == ["t/app/v1/b"]
    assert given(mesh.slots()) == [("n0", far.ident)]


def test_what_a_slot_gets_in_place_of_its_device_no_other_slot_gets() -> None:
    own, spare = [Device(f"own-{i}", ("n0",)) for i in range(2)], Device("spare", ("n0",))
    more = [Device(f"more-{i}", ("n2",)) for i in range(6)]
    mesh = Mesh({"n0": 8, "n1": 8, "n2": 0}, [*own, spare, *more])
    assert mesh.place("a", on="n0") and mesh.place("b", on="n0")
    had = [part for _, part in given(mesh.slots())]
    mesh.taint([device for device in own if device.ident in had] + [spare] * (spare.ident in had))
    found = mesh.settle()
    assert list(found.displaced) == ["t/app/v1/b"]
    assert len(given(mesh.slots())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_slot_has_the_device_of_its_pod_wherever_that_started(seed: int) -> None:
    """Nothing tells devices of equal attributes apart, so each pod may have any, on any node that reaches it. Which one it has may
    be told after where it is."""
    rng, names = Random(seed), [f"n{i}" for i in range(4)]
    devices = [Device("everywhere", tuple(names)), Device("some", ("n2", "n3")), Device("own", ("n1",))]
    mesh = Mesh(dict.fromkeys(names, 8), devices)
    mesh.progress = Progress(reached=True, ran=True, restorable=False)
    assert mesh.place("a") and mesh.place("b") and mesh.place("c")
    has = dict(zip(mesh.cluster.ledger.claims, rng.sample(devices, 3), strict=True))
    node = {ident: rng.choice(device.reach) for ident, device in has.items()}
    told: set[str] = set()

    def report(started: Iterable[str]) -> None:
        rows = mesh.cluster.reports()
        for row in rows:
            there = [ident for ident in started if node[ident] == row.name]
            row.requested, row.pod_count = {"cpu": str(len(there))}, len(there)
            row.in_use = {has[i].ident: {CLASS: "1"} for i in told if row.name in has[i].reach}
        live = {i: {node[i]: 1} for i in started}
        named = {i: {node[i]: [({has[i].ident: {CLASS: 1}}, 1)]} for i in told}
        nodes = [normalize_node(row)[0] for row in rows]
        mesh.cluster.writer.put(0, LAB, nodes, whole=True, claims=live, named=named)
        for _ in range(4):
            if mesh.cluster.capacity.may_be_unsettled(LAB):
                mesh.settle()

    started = rng.sample(list(has), 3)
    for count in range(1, 4):
        told |= {ident for ident in started[:count] if rng.random() < 0.5}
        report(started[:count])
    told |= set(has)
    report(started)
    assert not mesh.cluster.capacity.may_be_unsettled(LAB) and not is_unsettled(mesh.draft())
    assert given(mesh.slots()) == sorted((node[ident], device.ident) for ident, device in has.items())
    assert all(mesh.cluster.free(name, device) == 0 for device in devices for name in device.reach)
    assert {grant.need for slot in mesh.slots() for grant in slot.devices} == {f"claim-{name}/r" for name in "abc"}


def check(seeds: Iterable[int]) -> None:
    outcomes = {True: 0, False: 0}
    for seed in seeds:
        rng = Random(seed)
        names = [f"n{i}" for i in range(rng.randint(2, 4))]
        counters = rng.choice([0, 4, 6])
        devices = [
            Device(
                f"d{i}",
                tuple(sorted(rng.sample(names, rng.randint(1, len(names))))),
                rng.randint(0, 2) * (counters > 0),
            )
            for i in range(rng.randint(2, 5))
        ]
        mesh = Mesh({name: rng.randint(1, 3) for name in names}, devices, counters)
        placed = [n for n in "abcd" if mesh.place(n, rng.choice([1, 1, 2]), rng.randint(1, 2))]
        left = [name for name in names if rng.random() < 0.75] or names[:1]
        reached = ((device, tuple(name for name in device.reach if name in left)) for device in devices)
        devices = [Device(d.name, reach, d.takes) for d, reach in reached if reach and rng.random() < 0.85]
        counters = max(1, counters - rng.choice([0, 0, 1, 2, 4])) if counters else 0
        mesh.change(devices, counters, left)
        # Claims on parts that are gone stay, so all groups whose device is gone from a node that stays are left out.
        gone = {part for _, part in given(mesh.slots())} - {device.ident for device in devices}
        if any(slot.node in left and not gone.isdisjoint(slot.parts) for slot in mesh.slots()):
            continue
        mesh.settle()
        shapes = [mesh.shapes[f"t/app/v1/{name}"] for name in placed]
        possible = _solvable(mesh, devices, counters, shapes)
        standing = [mesh.shapes[group] for group in mesh.cluster.ledger.standing]
        assert is_sound(mesh.slots(), devices, counters, standing), (seed, devices, mesh.slots())
        assert (len(standing) == len(placed)) == possible, (seed, devices, counters, mesh.slots())
        mesh.release()
        assert not is_unsettled(mesh.draft()), seed
        outcomes[possible] += 1
        for slot in mesh.slots():
            row = mesh.cluster.fleet.row_of(0, slot.node)
            assert row is not None
            for part in slot.parts:
                free = free_of(mesh.cluster.fleet, row, resource_of_part(part, CLASS))
                assert free is not None and free >= 0
    assert min(outcomes.values()) > 5, outcomes


def _solvable(mesh: Mesh, devices: Sequence[Device], counters: int, shapes: Sequence[Shape]) -> bool:
    fleet = mesh.cluster.fleet
    allocatable = fleet.allocatable("cpu")
    assert allocatable is not None
    cpu = {}
    for name in mesh.cluster.names:
        row = fleet.row_of(0, name)
        assert row is not None
        cpu[name] = int(allocatable[row]) // 1000
    return solutions(Cluster(cpu, devices, counters), devices, counters, shapes)


def test_settled_clusters_are_sound_and_nothing_leaves_that_fits() -> None:
    check(range(60))


@pytest.mark.long
def test_settled_clusters_are_sound_and_nothing_leaves_that_fits_in_many_worlds() -> None:
    check(range(1000, 3000))
