"""Tests that reports of the inside of nodes become parts; parts that make no sense are dropped with those below them."""

from __future__ import annotations

import pytest

from moorage.fleet import ExcerptFleet, Fleet, FleetChange, FleetWriter, copy_of, normalize_node
from moorage.model.part_reports import InventoryReport, ProviderReport, ZoneReport, ZoneReserve
from moorage.model.slots import resource_of_part
from moorage.parts.forest import Take
from moorage.parts.inside import Inside, encode
from moorage.parts.layout import MAX_PARTS, Layout, layout_of
from moorage_testkit.fleets import fleet_of, node, provider, two_zones


def layout(zones: list[ZoneReport] | None = None, *providers: ProviderReport, **amounts: int) -> Layout:
    return layout_of(encode(Inside(zones=zones or [], providers=list(providers), node=amounts)))


def paths(found: Layout) -> list[str]:
    return [part.path for part in found.parts]


def test_zones_and_providers_hang_on_their_node() -> None:
    found = layout(two_zones("4"), provider("numa-1/fpga", "numa-1", FPGA="1"), provider("nic", VF="8"), cpu=8000)
    assert paths(found) == ["", "/numa-0", "/numa-1", "/numa-1/fpga", "/any", "/nic"]
    assert [part.parent for part in found.parts] == [-1, 0, 0, 2, 0, 0]
    zone, free = found.parts[1], found.parts[4]
    assert (zone.kind, set(zone.traits), zone.consumes["cpu"]) == ("zone", {"HW_NUMA_ROOT"}, (Take(0, "cpu"),))
    assert (free.kind, free.inventories["cpu"].capacity, free.consumes) == ("any", 8000, {"cpu": (Take(0, "cpu"),)})
    assert found.parts[3].consumes == {}, "only Kubernetes resources are of the node, too"
    assert not found.dropped


def test_a_part_takes_of_all_ancestors_with_the_same_kubernetes_resource() -> None:
    sockets = [
        ZoneReport(id="socket-0", kind="socket", inventories={"cpu": "8"}),
        ZoneReport(id=0, parent="socket-0", inventories={"cpu": "4"}),
    ]
    found = layout(sockets, provider("card", "numa-0", VCPU="2", FPGA="1"), cpu=8000)
    assert found.parts[found.at["/card"]].consumes == {"cpu": tuple(Take(above, "cpu") for above in (2, 1, 0))}
    assert found.parts[found.at["/card"]].inventories["cpu"].capacity == 2000


def test_amounts_are_kept_as_kubernetes_has_them() -> None:
    zone = ZoneReport(id="a", cpus="0-3,8", memory="8Gi", reserved=ZoneReserve(cpus=1, memory="1Gi"))
    units = InventoryReport(total="8", min_unit=2, max_unit=4, step_size=2, allocation_ratio=1.5)
    card = ProviderReport(id="c", inventories={"VCPU": units, "MEMORY_MB": "2", "CUSTOM_VF": units})
    found = layout([zone], card, cpu=16000)
    assert {n: i.capacity for n, i in found.parts[1].inventories.items()} == {"cpu": 4000, "memory": 7 << 30}
    cpu, vf = found.parts[-1].inventories["cpu"], found.parts[-1].inventories["VF"]
    assert (cpu.capacity, cpu.min_unit, cpu.max_unit, cpu.step_size) == (12000, 2000, 4000, 2000)
    assert (vf.capacity, vf.min_unit, vf.max_unit, vf.step_size) == (12, 2, 4, 2)
    assert found.parts[-1].inventories["memory"].capacity == 2 << 20


@pytest.mark.parametrize(
    ("bad", "dropped", "told"),
    [
        (provider("x", "nowhere", A="1"), {"/x", "/x/below"}, "unknown"),
        (provider("x", "x/below", A="1"), {"/x", "/x/below"}, "cycle"),
        (provider("x", A="-1"), {"/x", "/x/below"}, "negative"),
        (provider("x", A="many"), {"/x", "/x/below"}, "quantity"),
        (provider("numa-0", A="1"), {"/x", "/x/below"}, "another part"),
        (provider("any", A="1"), {"/x", "/x/below"}, "another part"),
        (provider("", A="1"), {"/x", "/x/below"}, "no id"),
        (ProviderReport(id="x", inventories={"A": InventoryReport(total="1", reserved="2")}), {"/x/below"}, "reserved"),
        (ProviderReport(id="x", inventories={"A": InventoryReport(total="1", step_size=0)}), {"/x/below"}, "stepSize"),
        (ProviderReport(id="x", inventories={"A": InventoryReport(total="1", allocation_ratio=-1)}), {"/x"}, "ratio"),
    ],
)
def test_nonsense_is_dropped_with_its_descendants(bad: ProviderReport, dropped: set[str], told: str) -> None:
    below = provider("x/below", "x", A="1")
    found = layout(two_zones("4"), provider("fine", A="1"), bad, below, cpu=8000)
    assert {"/numa-0", "/numa-1", "/any", "/fine"} <= set(paths(found))
    assert not dropped & set(paths(found))
    assert told in " ".join(map(str, found.dropped))


def test_no_more_parts_than_a_node_may_have() -> None:
    found = layout(None, *(provider(f"p{i}", f"p{i - 1}" if i % 9 else "", A="1") for i in range(MAX_PARTS + 50)))
    assert len(found.parts) == MAX_PARTS and found.parts[-1].path == f"/p{MAX_PARTS - 2}"
    assert len(found.dropped) == 1


def test_a_chain_is_not_deeper_than_what_can_be_walked() -> None:
    found = layout(None, *(provider(f"p{i}", f"p{i - 1}" if i else "", A="1") for i in range(2000)))
    assert 1 < len(found.parts) < 50 and "deeper" in found.dropped[0].why


def test_a_node_tells_what_is_wrong_inside_and_keeps_the_rest() -> None:
    report = node(
        "n", cpu="8", zones=two_zones("4"), providers=[provider("x", "y", A="1")], in_use={"numa-0": {"cpu": "-1"}}
    )
    row, problem = normalize_node(report)
    assert row.inside and row.allocatable["cpu"] == 8000
    assert "n: part 'x'" in problem and "negative" in problem


def test_columns_of_parts() -> None:
    cards = [provider("numa-1/fpga", "numa-1", FPGA="2", traits=["CUSTOM_FAST"])]
    use = {"numa-0": {"cpu": "1"}, "gone": {"cpu": "1"}}
    fleet = fleet_of({
        "lab/plain": [node(cpu="8")],
        "lab/parts": [node(cpu="8"), node(cpu="8", zones=two_zones("4"), providers=cards, in_use=use)],
    })  # fmt: skip
    row = fleet.row_of(1, "n-1")
    assert row is not None
    columns = fleet.parts.classes["cpu"]
    at = [columns.position(1, int(fleet.part_row(row, f"n-1/{zone}") or -1)) for zone in ("numa-0", "numa-1", "any")]
    assert [int(columns.capacity[i or 0]) for i in at] == [4000, 4000, 8000]
    assert [int(columns.used[i or 0]) for i in at] == [1000, 0, 0]
    assert columns.of_node[: columns.n][columns.row[: columns.n] >= 0].all()
    assert [fleet.part_id(part) for part in columns.with_room(3500).tolist()] == ["n-1/numa-1", "n-1/any"]
    assert fleet.inside(fleet.row_of(0, "n-0") or 0)[0] == -1


def improved(fleet: Fleet, tick: int) -> list[int]:
    found = fleet.improved_since(tick)
    assert found is not None
    return [int(row) for row in found]


def test_what_is_claimed_of_parts_is_not_free_and_what_becomes_free_improves_the_node() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="8", zones=two_zones("4"))]})
    row = fleet.row_of(0, "n-0")
    assert row is not None
    assert fleet.take_parts(row, {"n-0/numa-0": {"cpu": 3000}})
    assert fleet.parts_taken(row) == {"n-0/numa-0": {"cpu": 3000}}
    assert [fleet.part_id(p) for p in fleet.parts.classes["cpu"].with_room(2000).tolist()] == ["n-0/numa-1", "n-0/any"]
    tick = fleet.tick
    assert not fleet.take_parts(row, {"n-0/numa-7": {"cpu": 1}, "n-0/numa-0": {"FPGA": 1}})
    assert improved(fleet, tick) == []
    assert fleet.taken(row) == {resource_of_part("n-0/numa-0", "cpu"): 3000}
    fleet.take(row, fleet.taken(row), -1)
    assert improved(fleet, tick) == [row] and not fleet.parts_taken(row)


def test_less_use_improves_the_node_and_another_inside_lets_all_claims_be_taken_again() -> None:
    writer = FleetWriter()
    changes: list[FleetChange] = []
    writer.fleet.on_change.append(changes.append)

    def report(cpu: str, *, zones: int = 2) -> None:
        made, _ = normalize_node(node("n", cpu="8", zones=two_zones("4")[:zones], in_use={"numa-0": {"cpu": cpu}}))
        writer.put(0, "lab/a", [made], as_of=1.0)

    report("3")
    row = writer.fleet.row_of(0, "n")
    assert row is not None and changes[-1].part_sets.tolist() == [0]
    writer.fleet.take_parts(row, {"n/numa-0": {"cpu": 500}})
    tick = writer.fleet.tick
    report("3500m")
    assert improved(writer.fleet, tick) == [] and not changes[-1].part_sets.tolist()
    report("2")
    assert improved(writer.fleet, tick) == [row]
    assert writer.fleet.parts_taken(row) == {"n/numa-0": {"cpu": 500}}
    report("2", zones=1)
    assert changes[-1].part_sets.tolist() == [0] and not writer.fleet.parts_taken(row)


def test_layouts_that_no_node_has_any_more_are_dropped() -> None:
    writer = FleetWriter()
    for i in range(20):
        rows = [
            normalize_node(
                node(f"n-{j}", cpu="8", providers=[provider("p", A=str(i + j + 1))], in_use={"p": {"A": "1"}})
            )[0]
            for j in range(3)
        ]
        writer.put(0, "lab/a", rows, as_of=1.0)
    assert writer.entries.layouts == 23
    writer.compact()
    assert writer.entries.layouts == 4
    for j in range(3):
        row = writer.row(0, f"n-{j}")
        assert row is not None and row.in_use == (1,)
        assert layout_of(row.inside).parts[1].inventories["A"].total == 20 + j
    made, _ = normalize_node(node("n-0", cpu="8", providers=[provider("p", A="20")]))
    assert writer.put(0, "lab/a", [made], as_of=2.0) and writer.entries.layouts == 4


def test_a_copy_of_a_fleet_for_records_has_what_is_free_of_parts() -> None:
    cards = [provider("numa-0/card", "numa-0", FPGA="3", traits=["FAST"])]
    fleet = fleet_of({
        "lab/a": [node(cpu="8")],
        "lab/b": [node(cpu="8"), node(cpu="8", zones=two_zones("4"), providers=cards, in_use={"numa-0/card": {"FPGA": "1"}})],
        "lab/c": [node(cpu="8", providers=[provider("other", VF="1")])],
    })  # fmt: skip
    row = fleet.row_of(1, "n-1")
    assert row is not None
    fleet.take_parts(row, {"n-1/numa-0/card": {"FPGA": 1}})
    copied = copy_of(fleet, rows_of=[0, 1], resources=["cpu"], sums=[], claims=[], epochs=[])
    again = ExcerptFleet(copied.encode([], [], b""))
    assert fleet.parts.classes.keys() - again.parts.classes.keys() == {"VF"}
    for amount in range(5):
        for name in ("FPGA", "cpu"):
            here, there = fleet.parts.classes[name].with_room(amount), again.parts.classes[name].with_room(amount)
            assert [fleet.part_id(p) for p in here.tolist()] == [again.part_id(p) for p in there.tolist()]
    plain = copy_of(fleet, rows_of=[0], resources=["cpu"], sums=[], claims=[], epochs=[]).encode([], [], b"")
    assert ExcerptFleet(plain).parts.n == 0


def test_nodes_that_are_all_different_inside_cost_no_more_than_their_columns() -> None:
    """Learning layouts one by one is linear: ten times as many take about ten times as long, not a hundred times."""
    parts = FleetWriter().fleet.parts
    sources = [encode(Inside(providers=[provider("card", FPGA=str(i + 1))])) for i in range(2000)]
    for source in sources:
        parts.learn([source])
    assert len(parts.layouts.part["parent"]) < 3 * parts.layouts.part.n  # grown by doubling
    assert parts.layouts.found[1500].parts[1].inventories["FPGA"].total == 1500
    assert parts.layouts.entry["capacity"][parts.layouts.first_entry[1500]] == 1500
