"""Tests how the requests of a pod become one to the parts of a node."""

from __future__ import annotations

from typing import Any

from moorage.model.part_requests import Isolated, OneZone, PartGroup, RootConditions, SameSubtree
from moorage.model.shapes import OptionalNeed, Shape
from moorage.parts import Budget, Forest, Inventory, Part, candidates, needs_one_zone, pod_request

ZONES = frozenset({"HW_NUMA_ROOT"})


def _host(**free: int) -> Forest:
    """Two zones with the cpu given by `a` and `b` and an FPGA each, beside them the cpu tied to no zone."""
    parts = [Part("n"), Part("n/any", "n", inventories={"cpu": Inventory(sum(free.values()))})]
    for zone, cpu in free.items():
        parts.append(Part(f"n/{zone}", "n", ZONES, inventories={"cpu": Inventory(cpu)}))
        parts.append(Part(f"n/{zone}/fpga", f"n/{zone}", inventories={"FPGA": Inventory(1)}))
    parts.append(Part("n/nic", "n", inventories={"VF": Inventory(2)}))
    forest = Forest()
    forest.write(0, parts)
    return forest


def _found(forest: Forest, shape: Shape, **options: Any) -> list[dict[str, dict[str, int]]]:
    found = candidates(forest, pod_request(shape, **options), Budget(10_000))
    return [{forest.ids[row]: amounts for row, amounts in one.allocations.items() if amounts} for one in found]


def _shape(**fields: Any) -> Shape:
    return Shape(key="k", object="Deployment/d", **fields)


C, A = PartGroup(suffix="_C", resources={"cpu": 4000}), PartGroup(suffix="_A", resources={"FPGA": 1})


def test_groups_of_one_subtree_come_from_one_zone() -> None:
    forest = _host(a=3000, b=5000)
    apart = _found(forest, _shape(resources={"cpu": 4000}, groups=[C, A]))
    assert {"n/any": {"cpu": 4000}, "n/a/fpga": {"FPGA": 1}} in apart
    relation = SameSubtree(groups=("_C", "_A"))
    assert _found(forest, _shape(resources={"cpu": 4000}, groups=[C, A], relations=[relation])) == [
        {"n/b": {"cpu": 4000}, "n/b/fpga": {"FPGA": 1}}
    ]


def test_copies_of_a_group_are_parts_of_their_own_where_they_are_isolated() -> None:
    pair = PartGroup(suffix="_A", resources={"FPGA": 1}, count=2)
    assert _found(_host(a=1), _shape(groups=[pair])) == []
    found = _found(_host(a=1, b=1), _shape(groups=[pair], relations=[Isolated(groups=("_A",))]))
    assert found[0] == {"n/a/fpga": {"FPGA": 1}, "n/b/fpga": {"FPGA": 1}}


def test_optional_needs_count_only_where_they_are_granted() -> None:
    need = OptionalNeed(consumer="c", name="FPGA", group="_A", part_resources={"FPGA": 1})
    conditions = PartGroup(suffix="_A", optional=True)
    relation = SameSubtree(groups=("_C", "_A"))
    shape = _shape(resources={"cpu": 4000}, groups=[C, conditions], relations=[relation], optional=[need])
    plain = pod_request(shape)
    assert set(plain.groups) == {"_C"}
    assert plain.same_subtree[0].together == {"_C"}
    forest = _host(a=3000, b=5000)
    assert {"n/any": {"cpu": 4000}} in _found(forest, shape)
    assert _found(forest, shape, granted=[0]) == [{"n/b": {"cpu": 4000}, "n/b/fpga": {"FPGA": 1}}]


def test_one_zone_gives_all_that_zones_report_and_nothing_else() -> None:
    of_zones = {"cpu", "FPGA"}
    shape = _shape(
        resources={"cpu": 4000, "memory": 1, "pods": 1},
        groups=[PartGroup(resources={"FPGA": 1, "VF": 1})],
        relations=[OneZone()],
    )
    assert needs_one_zone(shape)
    assert _found(_host(a=3000, b=5000), shape, zone_classes=of_zones) == [
        {"n/nic": {"VF": 1}, "n/b/fpga": {"FPGA": 1}, "n/b": {"cpu": 4000}}
    ]
    assert _found(_host(a=3000, b=3000), shape, zone_classes=of_zones) == []


def test_one_zone_counts_the_amounts_of_groups_once() -> None:
    shape = _shape(resources={"cpu": 5000}, groups=[C], relations=[OneZone()])
    assert _found(_host(a=4000, b=5000), shape, zone_classes={"cpu"}) == [{"n/b": {"cpu": 5000}}]
    assert not needs_one_zone(_shape(relations=[OneZone(required=False)]))
    isolated = _shape(resources={"cpu": 5000}, groups=[C, A], relations=[OneZone(), Isolated(groups=("_C",))])
    assert _found(_host(a=4000, b=5000), isolated, zone_classes={"cpu", "FPGA"}) == [
        {"n/b": {"cpu": 5000}, "n/b/fpga": {"FPGA": 1}}
    ]


def test_conditions_of_the_node_and_of_groups() -> None:
    group = PartGroup(
        suffix="_A", required=(("X", "Y"),), forbidden=("Z",), member_of=(("r1",),), not_member_of=("r2",), in_tree="n"
    )
    root = RootConditions(required=(("T", "U"),), forbidden=("V",), member_of=(("r1", "r3"),), not_member_of=("r2",))
    request = pod_request(_shape(groups=[group], relations=[root]))
    found = request.groups["_A"]
    assert found.required == (frozenset("XY"),)
    assert (found.forbidden, found.member_of) == (frozenset("Z"), (frozenset({"r1"}),))
    assert (found.not_member_of, found.in_tree) == (frozenset({"r2"}), "n")
    assert request.root_required == (frozenset("TU"),)
    assert (request.root_forbidden, request.root_member_of) == (frozenset("V"), (frozenset({"r1", "r3"}),))
    assert request.root_not_member_of == {"r2"}
