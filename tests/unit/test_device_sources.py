"""Devices get kind, vendor and properties from sources; extended resources and huge pages of nodes become parts."""

from __future__ import annotations

import numpy as np
import pytest

from moorage.classes import (
    BUILT_IN_ONLY,
    BUILT_IN_SOURCES,
    compile_class,
    read_value,
    source_problems,
    with_built_in,
)
from moorage.fit import Assigned, Unassigned, assign
from moorage.fleet import Fleet, FleetWriter, normalize_node, with_devices
from moorage.model.part_reports import DeviceReport, PropertyValue, Typed
from moorage.model.part_requests import DeviceAsk, PartGroup
from moorage.model.reports import NodeReport
from moorage.model.resource_classes import (
    DeviceSourceSpec,
    PropertyRequirement,
    PropertySelectorTerm,
    PropertySource,
    ResourceClassSpec,
    SourceMatch,
)
from moorage.model.shapes import Shape
from moorage.model.slots import taken_by
from moorage.parts.layout import InnerPart, layout_of

GI = 1 << 30


def of(*requirements: tuple[str, ...]) -> ResourceClassSpec:
    found = [PropertyRequirement(key=k, operator=o, values=list(v)) for k, o, *v in requirements]
    return ResourceClassSpec(resource_selector=[PropertySelectorTerm(match_expressions=found)])


def node(name: str, devices: list[DeviceReport] | None = None, used: str = "0", **amounts: str) -> NodeReport:
    """Returns a node with CPUs and these amounts; `_` in a name stands for what no keyword has: see `NAMES`."""
    allocatable = {"cpu": "8", "pods": "110"} | {NAMES[key]: amount for key, amount in amounts.items()}
    requested = {"nvidia.com/gpu": used}
    return NodeReport(name=name, ready=True, allocatable=allocatable, requested=requested, devices=devices or [])


NAMES = {
    "gpu": "nvidia.com/gpu",
    "gi": "hugepages-1Gi",
    "mi": "hugepages-2Mi",
    "fpga": "pod.alpha.kubernetes.io/opaque-int-resource-fpga",
    "licence": "example.com/lic",
}


def parts_of(report: NodeReport) -> dict[str, InnerPart]:
    row = with_devices(normalize_node(report)[0], BUILT_IN_ONLY)
    return {part.path: part for part in layout_of(row.inside).parts[1:]} if row.inside else {}


def fleet_with(*reports: NodeReport) -> Fleet:
    writer = FleetWriter()
    rows = [with_devices(normalize_node(report)[0], BUILT_IN_ONLY) for report in reports]
    writer.put(0, "lab/a", rows, whole=True, as_of=1.0)
    return writer.fleet


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("8", 8),
        ("80Gi", Typed(quantity="80Gi")),
        ("1500m", Typed(quantity="1500m")),
        ("40Gbps", Typed(bandwidth="40Gbps")),
        ("A100", "A100"),
        ("1.2.3", "1.2.3"),
        ("", ""),
    ],
)
def test_a_value_is_what_it_reads_as(text: str, value: PropertyValue) -> None:
    assert read_value(text) == value


def test_an_extended_resource_is_a_group_of_equal_devices() -> None:
    gpus = node("n-0", gpu="4")
    gpus.labels |= {"nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.product": "NVIDIA-H100"}
    part = parts_of(gpus)["/nvidia.com/gpu"]
    found = dict(part.properties)
    assert (part.kind, found["Kind"], found["Vendor"], found["model"]) == (
        "nvidia-gpu",
        "nvidia-gpu",
        "nvidia",
        "NVIDIA-H100",
    )
    assert part.inventories["nvidia.com/gpu"].capacity == 4 and part.unit == ("nvidia.com/gpu", 1)
    eighty = compile_class(of(("Kind", "In", "nvidia-gpu"), ("memory", "Eq", "80Gi")))
    assert eighty.matches(found)


def test_huge_pages_are_devices_of_their_size() -> None:
    pages = parts_of(node("n-0", gi="4Gi", mi="0"))
    part = pages["/hugepages-1Gi"]
    assert pages.keys() == {"/hugepages-1Gi"}
    assert (part.kind, dict(part.properties)["size"]) == ("huge-pages", Typed(quantity="1Gi"))
    assert part.inventories["hugepages-1Gi"].capacity == 4 * GI and part.unit == ("hugepages-1Gi", GI)
    assert compile_class(of(("Kind", "In", "huge-pages"), ("size", "GtEq", "1G"))).matches(dict(part.properties))


def test_old_opaque_resources_are_kinds_and_others_are_no_devices() -> None:
    parts = parts_of(node("n-0", fpga="2", licence="3"))
    assert [part.kind for part in parts.values()] == ["fpga"]


def test_what_is_taken_of_the_part_is_taken_of_the_node() -> None:
    """Three of four are requested by strangers, who name no part: one is left."""
    fleet = fleet_with(node("n-0", used="3", gpu="4"))
    group = PartGroup(
        suffix="_G",
        resources={"nvidia.com/gpu": 1},
        properties=compile_class(of(("Kind", "Eq", "nvidia-gpu"))).of_group,
    )

    def asking(pods: int) -> Shape:
        resources = {"pods": 1, "nvidia.com/gpu": 1}
        return Shape(key=str(pods), object="Deployment/d", count=pods, resources=resources, groups=[group])

    found = assign(fleet, fleet.rows_of(0), [asking(1)])
    assert isinstance(found, Assigned)
    assert found.slots[0][0].parts == {"n-0/nvidia.com/gpu": {"nvidia.com/gpu": 1}}
    assert isinstance(assign(fleet, fleet.rows_of(0), [asking(2)]), Unassigned)


def test_what_others_have_of_the_resource_is_no_device_for_a_class() -> None:
    """Strangers hold two of four, a claim for the plain resource one: a pod that asks for the class gets the last one."""
    fleet = fleet_with(node("n-0", used="2", gpu="4"))
    row = int(fleet.rows_of(0)[0])
    fleet.take(row, {"nvidia.com/gpu": 1})
    selector = compile_class(of(("Kind", "Eq", "nvidia-gpu"))).of_group

    def asking(count: int) -> Shape:
        ask = DeviceAsk(resource_class="gpu", properties=selector, count=count)
        group = PartGroup(suffix="gpu", devices=(ask,))
        return Shape(key=str(count), object="Deployment/d", resources={"pods": 1}, groups=[group])

    assert isinstance(assign(fleet, fleet.rows_of(0), [asking(2)]), Unassigned)
    found = assign(fleet, fleet.rows_of(0), [asking(1)])
    assert isinstance(found, Assigned)
    slot = found.slots[0][0]
    assert slot.parts == {"n-0/nvidia.com/gpu": {"nvidia.com/gpu": 1}}
    assert taken_by(slot)["nvidia.com/gpu"] == 1, "the node counts it, too"
    fleet.take(row, taken_by(slot))
    free = fleet.free("nvidia.com/gpu")
    assert free is not None and free[row] == 0
    assert isinstance(assign(fleet, fleet.rows_of(0), [asking(1)]), Unassigned)


def test_devices_of_drivers_are_mapped() -> None:
    device = DeviceReport(
        driver="gpu.nvidia.com",
        pool="n-0",
        name="gpu-0",
        attributes={"productName": "H100", "uuid": "u", "resource.kubernetes.io/numaNode": 1},
        capacity={"memory": "80Gi"},
    )
    part = parts_of(node("n-0", [device]))["=gpu.nvidia.com//gpu-0"]
    found = dict(part.properties)
    assert (found["Kind"], found["Vendor"], found["Driver"], found["numa"]) == (
        "nvidia-gpu",
        "nvidia",
        "gpu.nvidia.com",
        1,
    )
    assert (found["model"], found["memory"], found["uuid"]) == ("H100", Typed(quantity="80Gi"), "u")
    assert part.unit == ("GPU_NVIDIA_COM", 1)


def test_devices_without_a_source_have_the_kind_of_their_driver() -> None:
    device = DeviceReport(driver="x.example.com", pool="p", name="d", attributes={"Kind": "liar"})
    part = parts_of(node("n-0", [device]))["=x.example.com/p/d"]
    assert dict(part.properties)["Kind"] == "x.example.com" == part.kind


def test_a_stored_source_takes_the_place_of_a_built_in_one() -> None:
    own = DeviceSourceSpec(
        match=SourceMatch(resource="nvidia.com/gpu"),
        kind="card",
        properties={"size": PropertySource(label="a.com/mem", units="Mi"), "rate": PropertySource(value="40Gbps")},
    )
    found = with_built_in({"nvidia": own}).map([], {"nvidia.com/gpu": 2}, {"a.com/mem": "512"})
    assert [(d.kind, d.quantity) for d in found] == [("card", 2)]
    assert found[0].properties == {"size": Typed(quantity="512Mi"), "rate": Typed(bandwidth="40Gbps")}


def test_labels_that_make_no_sense_are_missing_properties() -> None:
    found = BUILT_IN_ONLY.map([], {"nvidia.com/gpu": 1}, {"nvidia.com/gpu.memory": "plenty"})
    assert "memory" not in found[0].properties


def test_mapping_again_changes_nothing() -> None:
    row = with_devices(normalize_node(node("n", gpu="2"))[0], BUILT_IN_ONLY)
    assert with_devices(row, BUILT_IN_ONLY) is row


def test_the_built_in_sources_are_valid() -> None:
    assert not [found for spec in BUILT_IN_SOURCES.values() for found in source_problems(spec)]


def test_what_is_wrong_with_a_source_is_told() -> None:
    spec = DeviceSourceSpec(
        match=SourceMatch(driver="a", resource="b"),
        properties={
            "none": PropertySource(),
            "two": PropertySource(label="a", value="b"),
            "cap": PropertySource(capacity="memory"),
            "name": PropertySource(name=True),
            "type": PropertySource(label="a", type="text", units="parsec"),
        },
    )
    found = {(one.path.removeprefix("spec."), one.code) for one in source_problems(spec)}
    assert found == {
        ("match", "OneOf"),
        ("properties.none", "OneOf"),
        ("properties.two", "OneOf"),
        ("properties.cap.capacity", "NotOfResource"),
        ("properties.name.name", "NoPattern"),
        ("properties.type.type", "BadValue"),
        ("properties.type.units", "BadValue"),
    }


def test_a_class_selects_rows_of_the_fleet() -> None:
    plain, large = node("n-0", gpu="4"), node("n-1", gpu="2")
    large.labels["nvidia.com/gpu.memory"] = "81920"
    parts = fleet_with(plain, large).parts
    rows = parts.rows_of(0)
    selected = parts.selected(compile_class(of(("memory", "Exists"))), rows)
    assert np.flatnonzero(selected).tolist() == [3]
    others = parts.selected(compile_class(of(("memory", "DoesNotExist"))), rows)
    assert np.flatnonzero(others).tolist() == [1], "nodes are no devices"


def test_properties_of_devices_that_are_gone_are_forgotten() -> None:
    writer = FleetWriter()
    wanted = compile_class(of(("memory", "Eq", "81920Mi")))

    def put(*memory: str) -> None:
        rows = []
        for i, text in enumerate(memory):
            report = node(f"n-{i}", gpu="1")
            report.labels["nvidia.com/gpu.memory"] = text
            rows.append(with_devices(normalize_node(report)[0], BUILT_IN_ONLY))
        writer.put(0, "lab/a", rows, whole=True, as_of=1.0)

    for i in range(50):
        put(str(1024 + i), "81920")
    parts = writer.fleet.parts
    before = len(parts.properties.sets)
    writer.compact()
    assert len(parts.properties.sets) < before - 40
    assert np.flatnonzero(parts.selected(wanted, parts.rows_of(0))).tolist() == [3]
