"""Devices of drivers as parts: what they offer, what they take of counters, what is in use, and what makes no sense."""

from __future__ import annotations

from typing import Any

import numpy as np

from moorage.controllers.topology.core.answers import TopologyAnswers
from moorage.fit import Assigned, FitCache, Unassigned, assign
from moorage.fleet import Fleet, normalize_node
from moorage.ledger.room import free_of
from moorage.model.candidates import Ask
from moorage.model.part_reports import CounterSetReport, DeviceReport, DeviceTaint, ProviderReport, Typed
from moorage.model.part_requests import PartGroup, PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import resource_of_part
from moorage.parts.layout import layout_of, part_id
from moorage_testkit.fleets import fleet_of, two_zones

DRIVER, CLASS = "gpu.example.com", "GPU_EXAMPLE_COM"


def node(name: str, **fields: Any) -> NodeReport:
    return NodeReport(name=name, uid=name, ready=True, allocatable={"cpu": "8", "pods": "110"}, **fields)


def device(name: str, pool: str = "n", **fields: Any) -> DeviceReport:
    return DeviceReport(id=f"{DRIVER}/{pool}/{name}", driver=DRIVER, pool=pool, name=name, **fields)


def card(index: int, pool: str = "n") -> tuple[list[DeviceReport], CounterSetReport]:
    """A card of 40Gi that is given whole or as slices of 10Gi and 20Gi."""
    name = f"gpu-{index}"
    sizes = {name: "40Gi", f"{name}-a": "10Gi", f"{name}-b": "10Gi", f"{name}-c": "20Gi", f"{name}-d": "20Gi"}
    devices = [
        device(
            slice_,
            pool,
            capacity={"memory": size},
            attributes={"index": index, "whole": slice_ == name},
            consumes={name: {"memory": size}},
        )
        for slice_, size in sizes.items()
    ]
    return devices, CounterSetReport(driver=DRIVER, pool=pool, name=name, counters={"memory": "40Gi"})


def gpu_node(cards: int = 1, name: str = "n", **fields: Any) -> NodeReport:
    made = [card(i, name) for i in range(cards)]
    return node(name, devices=[d for devices, _ in made for d in devices], counters=[c for _, c in made], **fields)


def wanting(memory: str, pods: int = 1) -> Shape:
    exactly = ((PropertyCondition(key="memory", operator="Eq", values=(memory,)),),)
    group = PartGroup(suffix="_G", resources={CLASS: 1}, properties=exactly)
    return Shape(
        key=f"{memory}x{pods}", object=f"Deployment/{memory}", count=pods, resources={"pods": 1}, groups=[group]
    )


def assigned(fleet: Fleet, *shapes: Shape) -> Assigned | Unassigned:
    return assign(fleet, fleet.rows_of(0), shapes)


def fits(fleet: Fleet, shape: Shape) -> bool:
    return bool(FitCache(fleet).get(shape).fits[0])


def parts_of(fleet: Fleet) -> dict[str, str]:
    """Returns the kind of each part by its id."""
    parts = fleet.parts
    rows = np.flatnonzero(parts.node[: parts.n] >= 0).tolist()
    return {fleet.part_id(row): parts.kinds[int(parts.kind[row])] for row in rows}


def test_devices_are_parts_with_the_ids_and_properties_of_their_driver() -> None:
    attributes: dict[str, Any] = {"model": "x", "fw": Typed(version="1.2.0"), "resource.kubernetes.io/numaNode": 1}
    one = device("gpu-0", attributes=attributes, capacity={"memory": "80Gi"})
    other = device("gpu-1", "rack/7", taints=[DeviceTaint(key="broken", effect="NoSchedule")])
    report = node("n", zones=two_zones("4"), devices=[one, other, device("nic", shared=True)])
    fleet = fleet_of({"lab/a": [report]})
    ids = f"{DRIVER}/n/gpu-0", f"{DRIVER}/rack/7/gpu-1"
    assert parts_of(fleet) == {
        "n": "node",
        "n/numa-0": "zone",
        "n/numa-1": "zone",
        "n/any": "any",
        ids[0]: DRIVER,
        ids[1]: DRIVER,
        f"{DRIVER}/n/nic": DRIVER,
    }
    rows = [row for ident in ids if (row := fleet.part_row(0, ident)) is not None]
    assert fleet.part_id(int(fleet.parts.parent[rows[0]])) == "n/numa-1", "an attribute tells the zone"
    assert fleet.parts.healthy[rows].tolist() == [True, False]
    assert dict(fleet.parts.properties.sets[fleet.parts.property_set[rows[0]]]) == {
        "Kind": DRIVER,
        "Driver": DRIVER,
        "numa": 1,
        "model": "x",
        f"{DRIVER}/model": "x",
        "fw": Typed(version="1.2.0"),
        f"{DRIVER}/fw": Typed(version="1.2.0"),
        "numaNode": 1,
        "resource.kubernetes.io/numaNode": 1,
        "memory": Typed(quantity="80Gi"),
        f"{DRIVER}/memory": Typed(quantity="80Gi"),
    }
    (shared,) = fleet.parts.shared_in(0)[f"{DRIVER}/n/nic"].tolist()
    assert fleet.parts.classes[CLASS].with_room(1).tolist() == [*rows, shared]


def test_equal_nodes_have_one_layout_though_ids_differ() -> None:
    fleet = fleet_of({"lab/a": [gpu_node(name="n-0"), gpu_node(name="n-1")]})
    assert fleet.layout is not None and len(set(fleet.layout[:2].tolist())) == 1
    assert {f"{DRIVER}/n-0/gpu-0", f"{DRIVER}/n-1/gpu-0"} <= parts_of(fleet).keys()


def test_a_card_and_its_slices_are_not_given_together() -> None:
    fleet = fleet_of({"lab/a": [gpu_node()]})
    assert fits(fleet, wanting("40Gi")) and fits(fleet, wanting("20Gi", 2)) and not fits(fleet, wanting("20Gi", 3))
    assert isinstance(assigned(fleet, wanting("20Gi"), wanting("10Gi", 2)), Assigned)
    assert isinstance(assigned(fleet, wanting("40Gi"), wanting("10Gi")), Unassigned)
    assert isinstance(assigned(fleet, wanting("20Gi", 2), wanting("10Gi")), Unassigned)

    found = assigned(fleet, wanting("10Gi"))
    assert isinstance(found, Assigned)
    parts = found.slots[0][0].parts
    assert parts == {f"{DRIVER}/n/gpu-0-a": {CLASS: 1}}
    fleet.take_parts(0, parts)
    assert not fits(fleet, wanting("40Gi")) and not fits(fleet, wanting("20Gi", 2)) and fits(fleet, wanting("20Gi"))
    # Who held the whole card at the same time would see that something lacks.
    fleet.take_parts(0, {f"{DRIVER}/n/gpu-0": {CLASS: 1}})
    assert (free_of(fleet, 0, resource_of_part(f"{DRIVER}/n/gpu-0", CLASS)) or 0) < 0
    fleet.take_parts(0, {f"{DRIVER}/n/gpu-0": {CLASS: 1}} | parts, -1)
    assert fits(fleet, wanting("40Gi"))


def test_why_a_card_is_exhausted_is_told_with_numbers() -> None:
    fleet = fleet_of({"lab/a": [gpu_node()]})
    fleet.take_parts(0, {f"{DRIVER}/n/gpu-0-c": {CLASS: 1}})
    app = ShapedApp(name="web", shapes=[wanting("40Gi")])
    ask = Ask(group="p/a/v1/g", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=[app], explain=True)
    (reason,) = TopologyAnswers(fleet).answer(ask).apps["web"].reasons
    assert (reason.code, reason.group, reason.need) == ("PartShort", "_G", "MEMORY")
    assert (reason.needed, reason.free) == ("40Gi", "20Gi")
    assert f"nearest is lab/a {DRIVER}/n/counters:gpu-0 with" in reason.message


def test_several_cards_serve_what_one_cannot() -> None:
    fleet = fleet_of({"lab/a": [gpu_node(3)]})
    assert fits(fleet, wanting("40Gi", 3)) and not fits(fleet, wanting("40Gi", 4))
    found = assigned(fleet, wanting("40Gi", 2), wanting("20Gi", 1), wanting("10Gi", 2))
    assert isinstance(found, Assigned)
    taken = {part for slots in found.slots for slot in slots for part in slot.parts}
    assert len({part.partition("gpu-")[2][0] for part in taken}) == 3
    assert isinstance(assigned(fleet, wanting("40Gi", 2), wanting("20Gi", 2), wanting("10Gi")), Unassigned)


def test_devices_in_use_take_of_their_counters() -> None:
    used = {f"{DRIVER}/n/gpu-0-c": {CLASS: "1"}}
    fleet = fleet_of({"lab/a": [gpu_node(in_use=used)]})
    assert fits(fleet, wanting("20Gi")) and not fits(fleet, wanting("40Gi")) and not fits(fleet, wanting("20Gi", 2))


def test_counters_may_be_fractions_and_of_several_sets() -> None:
    sets = [
        CounterSetReport(driver=DRIVER, pool="n", name=name, counters={"share": "1500m"}) for name in ("left", "right")
    ]
    both = {"left": {"share": "500m"}, "right": {"share": "1"}}
    devices = [device(f"d{i}", consumes=both, capacity={"memory": "1Gi"}) for i in range(4)]
    devices += [device("e", consumes={"left": {"share": "1"}}, capacity={"memory": "2Gi"})]
    fleet = fleet_of({"lab/a": [node("n", devices=devices, counters=sets)]})
    assert fits(fleet, wanting("1Gi")) and not fits(fleet, wanting("1Gi", 2)), "the right set holds one"
    assert isinstance(assigned(fleet, wanting("1Gi"), wanting("2Gi")), Assigned)


def test_a_device_that_can_be_divided_offers_its_capacity() -> None:
    nic = device("nic", divisible=True, capacity={"bandwidth": "10G"})
    fleet = fleet_of({"lab/a": [node("n", devices=[nic], in_use={nic.id: {"BANDWIDTH": "4G"}})]})
    group = PartGroup(suffix="_N", resources={"BANDWIDTH": 3 * 10**9})
    two = Shape(key="n", object="Deployment/d", count=2, resources={"pods": 1}, groups=[group])
    assert fits(fleet, two) and not fits(fleet, Shape(key="m", object="Deployment/d", count=3, resources={"pods": 1}, groups=[group]))  # fmt: skip


def test_devices_that_make_no_sense_are_dropped_and_told() -> None:
    devices = [
        device("fine"),
        device("fine"),
        device("lost", consumes={"nowhere": {"memory": "1Gi"}}),
        device("unread", consumes={"set": {"memory": "much"}}),
        device("less", consumes={"set": {"memory": "-1"}}),
        device("both", divisible=True, capacity={"memory": "1Gi"}, consumes={"set": {"memory": "1"}}),
        device("bad", divisible=True, capacity={"memory": "-1"}),
    ]
    counters = [
        CounterSetReport(driver=DRIVER, pool="n", name="set", counters={"memory": "1Gi"}),
        CounterSetReport(driver=DRIVER, pool="n", name="set", counters={"memory": "2Gi"}),
        CounterSetReport(driver=DRIVER, pool="n", name="huge", counters={"memory": "1e99"}),
    ]
    clash = ProviderReport(id=f"={DRIVER}//fine", inventories={"VF": "1"})
    report = node("n", devices=devices, counters=counters, providers=[clash])
    row, problem = normalize_node(report)
    assert problem.startswith("node n: part 'gpu.example.com/fine': this is no id of a part; ") and problem.endswith(
        "more)"
    )
    layout = layout_of(row.inside)
    assert [part_id("n", path) for path in layout.at] == [
        "n",
        f"{DRIVER}/n/counters:set",
        f"{DRIVER}/n/both",
        f"{DRIVER}/n/fine",
    ]
    assert [(found.id.rpartition("/")[2], found.why.partition(":")[0]) for found in layout.dropped] == [
        ("fine", "this is no id of a part"),
        ("counters:set", "another set of counters has this name"),
        ("counters:huge", "memory"),
        ("fine", "another part has this id"),
        ("lost", "it takes of the counter nowhere/memory, which is not there"),
        ("unread", "memory"),
        ("less", "memory"),
        ("bad", "memory"),
    ]
