"""Fitting pods into nodes by what is inside of them, against an exhaustive search."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from moorage.fit import Assigned, FitCache, Unassigned, assign
from moorage.fit.asked_parts import Asked
from moorage.fit.node_state import NodeState
from moorage.fleet import Fleet
from moorage.model.part_reports import ProviderReport, TopologyManager, ZoneReport
from moorage.model.part_requests import OneZone, PartGroup, PodContainer, SameSubtree
from moorage.model.reports import NodeReport
from moorage.model.shapes import OptionalNeed, PodRule, Requirement, Shape
from moorage_testkit.fleets import fleet_of

BELOW_ONE = [SameSubtree(groups=("_C", "_A"))]


def zoned(name: str, *zones: tuple[int, int], **fields: Any) -> NodeReport:
    """A node with zones of so many cores and FPGAs."""
    return NodeReport(
        name=name,
        uid=name,
        ready=True,
        allocatable={"cpu": str(sum(cores for cores, _ in zones)), "memory": "64Gi", "pods": "110"},
        zones=[ZoneReport(id=z, inventories={"cpu": str(cores)}) for z, (cores, _) in enumerate(zones)],
        providers=[
            ProviderReport(id=f"numa-{z}/fpga{n}", parent=f"numa-{z}", inventories={"FPGA": "1"})
            for z, (_, cards) in enumerate(zones)
            for n in range(cards)
        ],
        **fields,
    )


def pair(cores: int = 2, count: int = 1, **fields: Any) -> Shape:
    """A pod that needs cores and a card of one zone."""
    values: dict[str, Any] = {
        "key": f"pair{cores}x{count}{sorted(fields)}",
        "object": "StatefulSet/s",
        "count": count,
        "resources": {"cpu": cores * 1000, "pods": 1},
        "groups": [
            PartGroup(suffix="_C", resources={"cpu": cores * 1000}),
            PartGroup(suffix="_A", resources={"FPGA": 1}),
        ],
        "relations": BELOW_ONE,
    }
    return Shape(**values | fields)


def assigned(fleet: Fleet, *shapes: Shape, cluster: str = "lab/a") -> Assigned | Unassigned:
    cid = fleet.ids[cluster]
    return assign(fleet, fleet.rows_of(cid), shapes)


def test_clusters_are_chosen_by_what_is_inside_of_their_nodes() -> None:
    fleet = fleet_of(
        {
            "lab/a": [zoned("n-0", (4, 1), (4, 1))],
            "lab/b": [zoned("n-0", (4, 1), (1, 1))],
            "lab/c": [zoned("n-0", (4, 0), (4, 0)), zoned("n-1", (1, 1), (1, 1))],
            "lab/d": [NodeReport(name="n-0", uid="u", ready=True, allocatable={"cpu": "8", "pods": "9"})],
            "lab/e": [zoned("n-0", (2, 1)), zoned("n-1", (1, 3), (9, 1))],
        }
    )
    cache = FitCache(fleet)

    def fitting(shape: Shape) -> list[str]:
        return [fleet.names[c] for c in np.flatnonzero(cache.get(shape).fits)]

    assert fitting(pair()) == ["lab/a", "lab/b", "lab/e"]
    assert fitting(pair(count=2)) == ["lab/a", "lab/e"]
    assert fitting(pair(count=3)) == []


def test_slots_name_the_parts_of_their_pods() -> None:
    fleet = fleet_of({"lab/a": [zoned("n-0", (4, 1), (4, 1))]})
    found = assigned(fleet, pair(count=2))
    assert isinstance(found, Assigned)
    assert [(slot.node, slot.count, slot.parts) for slot in found.slots[0]] == [
        ("n-0", 1, {"n-0/numa-0": {"cpu": 2000}, "n-0/numa-0/fpga0": {"FPGA": 1}}),
        ("n-0", 1, {"n-0/numa-1": {"cpu": 2000}, "n-0/numa-1/fpga0": {"FPGA": 1}}),
    ]
    assert all(slot.resources == {"cpu": 2000, "pods": 1} for slot in found.slots[0])
    refused = assigned(fleet, pair(count=3))
    assert isinstance(refused, Unassigned) and (refused.code, refused.needed, refused.best) == ("PartShort", 3, 2)


def test_what_is_claimed_or_in_use_is_not_given_again() -> None:
    report = zoned("n-0", (4, 1), (4, 1), in_use={"numa-0": {"cpu": "3"}})
    fleet = fleet_of({"lab/a": [report]})
    row = int(fleet.rows_of(fleet.ids["lab/a"])[0])
    found = assigned(fleet, pair())
    assert isinstance(found, Assigned) and "n-0/numa-1" in found.slots[0][0].parts
    cache = FitCache(fleet)
    assert cache.get(pair()).fits.any()
    fleet.take_parts(row, found.slots[0][0].parts)
    assert not cache.get(pair()).fits.any() and isinstance(assigned(fleet, pair()), Unassigned)
    fleet.take_parts(row, found.slots[0][0].parts, -1)
    assert cache.get(pair()).fits.any()


def test_optional_amounts_of_parts_are_granted_where_they_fit() -> None:
    need = OptionalNeed(consumer="c", name="FPGA", group="_A", part_resources={"FPGA": 1})
    groups = [PartGroup(suffix="_C", resources={"cpu": 2000}), PartGroup(suffix="_A", optional=True)]
    wish = pair(groups=groups, optional=[need])
    fleet = fleet_of({"lab/a": [zoned("n-0", (4, 1))], "lab/b": [zoned("n-0", (4, 0))]})
    fit = FitCache(fleet).get(wish)
    assert fit.fits.all() and fit.granted(1).tolist() == [True, False]
    with_card, without = assigned(fleet, wish), assigned(fleet, wish, cluster="lab/b")
    assert isinstance(with_card, Assigned) and with_card.met == [[0]]
    assert with_card.slots[0][0].parts == {"n-0/numa-0": {"cpu": 2000}, "n-0/numa-0/fpga0": {"FPGA": 1}}
    assert isinstance(without, Assigned) and without.met == [[]]


def test_a_pod_for_every_node_needs_parts_on_every_node() -> None:
    everywhere = pair(per_node=True)
    fleet = fleet_of(
        {
            "lab/a": [zoned("n-0", (4, 1)), zoned("n-1", (4, 1))],
            "lab/b": [zoned("n-0", (4, 1)), zoned("n-1", (4, 0))],
        }
    )
    assert FitCache(fleet).get(everywhere).fits.tolist() == [True, False]
    found = assigned(fleet, everywhere)
    assert isinstance(found, Assigned) and [slot.node for slot in found.slots[0]] == ["n-0", "n-1"]
    assert all(slot.parts for slot in found.slots[0])
    assert isinstance(assigned(fleet, everywhere, cluster="lab/b"), Unassigned)


def test_pods_are_apart_and_have_parts_at_once() -> None:
    rule = PodRule(kind="apart", key="kubernetes.io/hostname", pods="s")
    apart = pair(count=2, rules=[rule], marks=["s"])
    nodes = [zoned("n-0", (4, 1), (4, 1)), zoned("n-1", (4, 0)), zoned("n-2", (4, 1))]
    labels = [node.labels.update({"kubernetes.io/hostname": node.name}) for node in nodes]
    assert len(labels) == 3
    found = assigned(fleet_of({"lab/a": nodes}), apart)
    assert isinstance(found, Assigned) and sorted(slot.node for slot in found.slots[0]) == ["n-0", "n-2"]
    assert isinstance(assigned(fleet_of({"lab/a": nodes[:2]}), apart), Unassigned)


def test_groups_may_name_the_tree() -> None:
    named = pair(
        groups=[
            PartGroup(suffix="_C", resources={"cpu": 2000}),
            PartGroup(suffix="_A", resources={"FPGA": 1}, in_tree="n-1"),
        ]
    )
    fleet = fleet_of({"lab/a": [zoned("n-0", (4, 1)), zoned("n-1", (4, 1))], "lab/b": [zoned("n-0", (4, 1))]})
    assert FitCache(fleet).get(named).fits.tolist() == [True, False]
    found = assigned(fleet, named)
    assert isinstance(found, Assigned) and [slot.node for slot in found.slots[0]] == ["n-1"]


def test_where_a_kubelet_would_reject_pods_are_placed_only_if_it_admits_them() -> None:
    strict = TopologyManager(policy="single-numa-node")
    container = PodContainer(name="main", requests={"cpu": 3000})
    shape = Shape(
        key="g",
        object="Deployment/d",
        count=2,
        resources={"cpu": 3000, "pods": 1},
        guaranteed=True,
        containers=[container],
    )
    fleet = fleet_of(
        {
            "lab/a": [zoned("n-0", (4, 0), (4, 0), topology_manager=strict)],
            "lab/b": [zoned("n-0", (2, 0), (2, 0), (2, 0), (2, 0), topology_manager=strict)],
            "lab/c": [zoned("n-0", (2, 0), (2, 0), (2, 0), (2, 0))],
        }
    )
    assert FitCache(fleet).get(shape).fits.tolist() == [True, False, True]
    found = assigned(fleet, shape)
    assert isinstance(found, Assigned)
    assert [slot.parts for slot in found.slots[0]] == [{"n-0/numa-0": {"cpu": 3000}}, {"n-0/numa-1": {"cpu": 3000}}]
    assert all(slot.aligned == slot.parts for slot in found.slots[0]), "reports of the zones will include the pods"
    assert isinstance(assigned(fleet, shape, cluster="lab/b"), Unassigned)


def brute_force(nodes: list[NodeReport], shapes: list[Shape]) -> bool:
    """Tries every way to put the pods on nodes, and asks the solver of one node for the parts."""
    fleet = fleet_of({"lab/a": nodes})
    rows = fleet.rows_of(0)
    pods = [number for number, shape in enumerate(shapes) for _ in range(shape.count)]
    for places in product(range(len(nodes)), repeat=len(pods)):
        fits = True
        for at, row in enumerate(rows.tolist()):
            counts = [
                sum(1 for pod, place in zip(pods, places, strict=True) if pod == n and place == at)
                for n in range(len(shapes))
            ]
            for name in {name for shape in shapes for name in shape.resources}:
                free = fleet.free(name)
                needed = sum(s.resources.get(name, 0) * c for s, c in zip(shapes, counts, strict=True))
                fits &= not needed or (free is not None and needed <= int(free[row]))
            first, layout = fleet.inside(row)
            free_parts = tuple(
                int(c.capacity[i] - c.used[i] - c.claimed[i])
                for part, name in layout.entries
                for c in (fleet.parts.classes[name],)
                for i in (c.position(0, first + part),)
            )
            asked = [(Asked(shape), count) for shape, count in zip(shapes, counts, strict=True)]
            fits = fits and NodeState(layout, free_parts).assign(asked) is not None
            if not fits:
                break
        if fits:
            return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_joint_assignments_against_brute_force(seed: int) -> None:
    rng = Random(seed)
    outcomes = []
    for _ in range(40):
        nodes = [
            zoned(f"n-{i}", *((rng.randint(1, 4), rng.randint(0, 2)) for _ in range(rng.randint(1, 2))))
            for i in range(rng.randint(1, 3))
        ]
        plain = Shape(key="p", object="Pod/p", count=rng.randint(0, 1), resources={"cpu": 1000, "pods": 1})
        zone = pair(rng.randint(1, 2), rng.randint(0, 1), key="z", groups=[plain_card()], relations=[OneZone()])
        shapes = [pair(rng.randint(1, 3), rng.randint(1, 3)), zone, plain]
        found = assigned(fleet_of({"lab/a": nodes}), *shapes)
        expected = brute_force(nodes, shapes)
        assert isinstance(found, Assigned) == expected
        outcomes.append(expected)
        if isinstance(found, Assigned):
            fleet = fleet_of({"lab/a": nodes})
            for slots in found.slots:
                for slot in slots:
                    row = fleet.row_of(0, slot.node)
                    assert row is not None
                    fleet.take(row, {n: a * slot.count for n, a in slot.resources.items()})
                    for _ in range(slot.count):
                        assert fleet.take_parts(row, slot.parts)
            assert all((c.used + c.claimed <= c.capacity)[c.row >= 0].all() for c in fleet.parts.classes.values())
    assert True in outcomes and False in outcomes


def plain_card() -> PartGroup:
    return PartGroup(suffix="_F", resources={"FPGA": 1})


def test_terms_and_parts_at_once() -> None:
    labelled = pair(terms=[[Requirement(key="disk", operator="In", values=("ssd",))]])
    nodes = [zoned("n-0", (4, 1), labels={"disk": "ssd"}), zoned("n-1", (9, 9))]
    found = assigned(fleet_of({"lab/a": nodes}), labelled)
    assert isinstance(found, Assigned) and found.slots[0][0].node == "n-0"
