"""Pods of a group get devices beside CPUs, zones and slots of machines whenever there is a way, whatever the algorithm prefers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.device_algorithms import algorithm_names
from moorage.fit import Assigned, PackingSolutions, Unassigned, assign
from moorage.fit.device_rows import DeviceRows
from moorage.fleet import Fleet
from moorage.model.part_reports import DeviceReport, ZoneReport
from moorage.model.part_requests import (
    AttributeRelation,
    DeviceAsk,
    PartGroup,
    PropertyCondition,
    Relation,
    SameSubtree,
)
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage_testkit.fleets import fleet_of, node

SLOT = "example.com/machine-slot"


class Device(NamedTuple):
    model: str
    zone: int
    root: int


class Node(NamedTuple):
    cpu: int
    slots: int
    zones: tuple[int, ...]  # CPUs of each
    devices: tuple[Device, ...]


class Pods(NamedTuple):
    """Equal pods. `close`: one CPU is of the zone of all devices; `relation`: of the roots of the devices."""

    number: int
    cpu: int
    slots: int
    model: str
    devices: int
    close: bool
    relation: str


devices = st.builds(Device, st.sampled_from("AB"), st.integers(0, 1), st.integers(0, 1))
nodes = st.builds(
    Node,
    st.integers(1, 3),
    st.integers(0, 2),
    st.tuples(st.integers(0, 2), st.integers(1, 2)),  # zones that have no CPU at all leave them to the node
    st.lists(devices, max_size=3).map(tuple),
)
pods = st.builds(
    Pods,
    st.integers(1, 2),
    st.just(1),
    st.integers(0, 1),
    st.sampled_from(["A", "B", "AB"]),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(["", "", "match", "distinct"]),
)


def report(name: str, given_: Node) -> NodeReport:
    found = node(name, cpu=str(given_.cpu), memory="8Gi", resources={SLOT: str(given_.slots)})
    return msgspec.structs.replace(
        found,
        zones=[ZoneReport(id=i, cpus=f"0-{cpus - 1}" if cpus else "") for i, cpus in enumerate(given_.zones)],
        devices=[
            DeviceReport(
                id=f"gpu.d/{name}/g{i}",
                driver="gpu.d",
                pool=name,
                name=f"g{i}",
                zone=f"numa-{one.zone}",
                attributes={"model": one.model, "root": one.root},
            )
            for i, one in enumerate(given_.devices)
        ],
    )


def shape(number: int, wanted: Pods) -> Shape:
    models = PropertyCondition(key="model", operator="In", values=tuple(wanted.model))
    ask = DeviceAsk(resource_class="c", properties=((models,),), count=wanted.devices)
    groups, relations = [PartGroup(suffix="gpu", devices=(ask,))], list[Relation]()
    if wanted.close:
        groups.append(PartGroup(suffix="_N", resources={"cpu": 1000}))
        relations.append(SameSubtree(groups=("_N", "gpu")))
    if wanted.relation:
        distinct = wanted.relation == "distinct"
        relations.append(AttributeRelation(groups=("gpu",), attribute="root", distinct=distinct))
    return Shape(
        key=repr((number, wanted)),
        object=f"Deployment/d{number}",
        count=wanted.number,
        resources={"cpu": 1000 * wanted.cpu, "pods": 1} | ({SLOT: wanted.slots} if wanted.slots else {}),
        groups=groups,
        relations=relations,
    )


def ways(there: Node, wanted: Pods) -> list[tuple[frozenset[int], int]]:
    """Returns the devices that one pod may have of a node, each with the zone of its CPU, or -1."""
    found = []
    for some in itertools.combinations(range(len(there.devices)), wanted.devices):
        of = [there.devices[i] for i in some]
        roots = {one.root for one in of}
        if any(one.model not in wanted.model for one in of):
            continue
        if wanted.relation and len(roots) != (1 if wanted.relation == "match" else len(of)):
            continue
        zones = {one.zone for one in of}
        if not wanted.close or len(zones) == 1:
            found.append((frozenset(some), zones.pop() if wanted.close else -1))
    return found


def exists(there: Sequence[Node], asked: Sequence[Pods]) -> bool:
    """Returns whether all pods have room together, by trying all ways."""
    all_pods = [one for one in asked for _ in range(one.number)]

    def place(at: int, taken: frozenset[tuple[int, int]], used: Counter[tuple[int, str | int]]) -> bool:
        if at == len(all_pods):
            return True
        pod = all_pods[at]
        for n, one in enumerate(there):
            if used[n, "cpu"] + pod.cpu > one.cpu or used[n, "slots"] + pod.slots > one.slots:
                continue
            for some, zone in ways(one, pod):
                mine = {(n, device) for device in some}
                if mine & taken or (zone >= 0 and used[n, zone] + 1 > one.zones[zone]):
                    continue
                more = used + Counter({(n, "cpu"): pod.cpu, (n, "slots"): pod.slots})
                if zone >= 0:
                    more[n, zone] += 1
                if place(at + 1, taken | mine, more):
                    return True
        return False

    return place(0, frozenset(), Counter())


def check(found: Assigned, there: Sequence[Node], asked: Sequence[Pods]) -> None:
    """Fails if pods have what is not there, or not what they ask."""
    taken: Counter[str] = Counter()
    used: Counter[tuple[str, str]] = Counter()
    zones: Counter[tuple[str, str]] = Counter()
    for wanted, slots in zip(asked, found.slots, strict=True):
        assert sum(slot.count for slot in slots) == wanted.number
        for slot in slots:
            one = there[int(slot.node[1:])]
            used[slot.node, "cpu"] += wanted.cpu * slot.count
            used[slot.node, "slots"] += wanted.slots * slot.count
            some = [int(grant.part.rpartition("/g")[2]) for grant in slot.devices]
            taken.update({grant.part: slot.count for grant in slot.devices})
            of_cpu = [part.rpartition("-")[2] for part, amounts in slot.parts.items() if "cpu" in amounts]
            zone = int(of_cpu[0]) if of_cpu else -1
            assert (frozenset(some), zone) in ways(one, wanted)
            zones.update({(slot.node, str(zone)): slot.count} if zone >= 0 else {})
    assert all(count == 1 for count in taken.values())
    for n, one in enumerate(there):
        assert used[f"n{n}", "cpu"] <= one.cpu and used[f"n{n}", "slots"] <= one.slots
        assert all(zones[f"n{n}", str(zone)] <= cpus for zone, cpus in enumerate(one.zones))


def placed(fleet: Fleet, shapes: Sequence[Shape], algorithm: str) -> Assigned | Unassigned:
    rows = DeviceRows(fleet)
    solutions = PackingSolutions(lambda asked, where, able: rows.choose(asked, where, able, algorithm))
    return assign(fleet, fleet.rows_of(0), shapes, solutions=solutions)


@given(
    st.lists(nodes, min_size=1, max_size=3), st.lists(pods, min_size=1, max_size=2), st.sampled_from(algorithm_names())
)
@settings(deadline=None, max_examples=150)
def test_an_assignment_that_exists_is_found(there: list[Node], asked: list[Pods], algorithm: str) -> None:
    fleet = fleet_of({"lab/a": [report(f"n{i}", one) for i, one in enumerate(there)]})
    found = placed(fleet, [shape(i, one) for i, one in enumerate(asked)], algorithm)
    assert isinstance(found, Assigned) == exists(there, asked)
    if isinstance(found, Assigned):
        check(found, there, asked)
