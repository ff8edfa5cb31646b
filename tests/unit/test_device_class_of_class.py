"""The DeviceClass of a resource class selects the same devices, as Kubernetes evaluates its expression."""

from __future__ import annotations

import pytest

from moorage.cel import CelDevice, compile_selector
from moorage.cel.devices import version
from moorage.classes import BUILT_IN_ONLY, BUILT_IN_SOURCES, compile_class, device_class
from moorage.model.part_reports import DeviceReport, PropertyValue, Typed
from moorage.model.resource_classes import PropertyRequirement, PropertySelectorTerm, ResourceClassSpec
from moorage.parts.inside import Inside, encode
from moorage.parts.layout import layout_of

NVIDIA, OTHER = "gpu.nvidia.com", "nic.example.com"


def device(driver: str, name: str, memory: str = "", **attributes: PropertyValue) -> DeviceReport:
    capacity = {"memory": memory} if memory else {}
    return DeviceReport(driver=driver, pool="p", name=name, attributes=attributes, capacity=capacity)


DEVICES = [
    device(NVIDIA, "small", "16Gi", productName="L4", cores=8, driverVersion=Typed(version="3.7.0")),
    device(NVIDIA, "large", "80Gi", productName="H100", cores=16, mig=True, driverVersion=Typed(version="3.10.0")),
    device(NVIDIA, "bare"),
    device(OTHER, "nic-0", productName="H100", mig=False, cores="8"),
]


def selected(spec: ResourceClassSpec) -> tuple[list[str], list[str], list[str]]:
    """Returns the devices that the class selects, those that the DeviceClass selects, and what it cannot say."""
    selector = compile_class(spec)
    mapped = BUILT_IN_ONLY.map(DEVICES, {}, {})
    parts = layout_of(encode(Inside(devices=mapped))).parts
    ours = [part.path.rpartition("/")[2] for part in parts if selector.of_devices.matches(dict(part.properties))]
    made = device_class("c", selector, BUILT_IN_SOURCES.values())
    (one,) = made.manifest["spec"]["selectors"]
    expression = compile_selector(one["cel"]["expression"])
    theirs = [found.name for found in DEVICES if expression.matches(_as_cel(found))]
    return sorted(ours), sorted(theirs), made.unsaid


def _as_cel(found: DeviceReport) -> CelDevice:
    attributes = {
        name: version(value.version) if isinstance(value, Typed) else value for name, value in found.attributes.items()
    }
    return CelDevice.of(found.driver, attributes, found.capacity, multiple=False)


def of(*terms: list[tuple[str, ...]]) -> ResourceClassSpec:
    return ResourceClassSpec(
        resource_selector=[
            PropertySelectorTerm(
                match_expressions=[PropertyRequirement(key=k, operator=o, values=list(v)) for k, o, *v in term]
            )
            for term in terms
        ]
    )


GPU = ("Kind", "In", "nvidia-gpu")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (of([GPU]), ["bare", "large", "small"]),
        (of([GPU, ("memory", "GtEq", "30G")]), ["large"]),
        (of([GPU, ("memory", "Lt", "30G")]), ["small"]),
        (of([GPU, ("memory", "Eq", "16384Mi")]), ["small"]),
        (of([GPU, ("memory", "NotIn", "16Gi")]), ["bare", "large"]),
        (of([GPU, ("memory", "DoesNotExist")]), ["bare"]),
        (of([GPU, ("model", "In", "H100", "A100")]), ["large"]),
        (of([GPU, ("model", "NotIn", "H100")]), ["bare", "small"]),
        (of([GPU, ("cores", "Gt", "8")]), ["large"]),
        (of([GPU, ("cores", "Eq", "8")]), ["small"]),
        (of([GPU, ("driverVersion", "Gt", "3.7")]), ["large"]),
        (of([GPU, ("mig", "Eq", "true")]), ["large"]),
        (of([("Driver", "Eq", OTHER), ("productName", "Exists")]), ["nic-0"]),
        (of([("Kind", "Eq", OTHER), ("mig", "Eq", "false")]), ["nic-0"]),
        (of([("Vendor", "Eq", "nvidia"), ("memory", "Exists")]), ["large", "small"]),
        (of([GPU, ("memory", "GtEq", "30G")], [("Kind", "Eq", OTHER)]), ["large", "nic-0"]),
        (of([GPU, (f"{NVIDIA}/productName", "Eq", "L4")]), ["small"]),
        # Of whatever driver, each of which has its own names for a property.
        (of([("cores", "Exists")]), ["large", "nic-0", "small"]),
        (of([("memory", "Exists")]), ["large", "small"]),
        (of([("memory", "DoesNotExist")]), ["bare", "nic-0"]),
        (of([("memory", "GtEq", "30G"), ("cores", "Gt", "8")]), ["large"]),
        (of([("model", "Eq", "H100")]), ["large"]),
        (of([("productName", "Eq", "H100"), ("mig", "NotIn", "true")]), ["nic-0"]),
        (ResourceClassSpec(), []),
    ],
)
def test_the_expression_selects_the_same(spec: ResourceClassSpec, expected: list[str]) -> None:
    ours, theirs, unsaid = selected(spec)
    assert (ours, theirs, unsaid) == (expected, expected, [])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (of([("Kind", "In", "huge-pages")]), "no DRA driver is known"),
        (of([GPU, ("Node", "Eq", "n")]), "Node In n: no attribute or capacity of a device tells it"),
        (of([GPU, ("speed", "GtEq", "40Gbps")]), "DRA has no such type"),
        (of([("Kind", "NotIn", "x")]), "devices of drivers without a DeviceSource are left out"),
    ],
)
def test_what_the_expression_cannot_say_is_told(spec: ResourceClassSpec, text: str) -> None:
    made = device_class("c", compile_class(spec), BUILT_IN_SOURCES.values())
    assert any(text in one for one in made.unsaid), made.unsaid
