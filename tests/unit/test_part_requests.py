"""Tests how requests for parts are encoded and stored."""

from __future__ import annotations

import msgspec
import pytest

from moorage.model.part_names import KUBERNETES_RESOURCES, is_class, is_part_class, short_name
from moorage.model.part_requests import (
    Isolated,
    OneZone,
    PartGroup,
    PodContainer,
    PropertyCondition,
    RootConditions,
    SameSubtree,
)
from moorage.model.shapes import OptionalNeed, Shape


def test_groups_and_relations_survive_the_wire() -> None:
    shape = Shape(
        key="k",
        object="Deployment/d",
        groups=[
            PartGroup(suffix="_C", resources={"cpu": 2000}),
            PartGroup(
                suffix="_A",
                resources={"FPGA": 1},
                required=(("A", "B"), ("C",)),
                forbidden=("D",),
                count=2,
                properties=((PropertyCondition(key="model", operator="In", values=("x",)),),),
            ),
        ],
        relations=[
            SameSubtree(groups=("_C", "_A"), apart=("_B",)),
            Isolated(groups=("_C",)),
            OneZone(required=False),
            RootConditions(required=(("T",),), not_member_of=("rack-1",)),
        ],
        containers=[PodContainer(name="c", requests={"cpu": 2000})],
        guaranteed=True,
        optional=[OptionalNeed(consumer="c", name="FPGA", group="_A", part_resources={"FPGA": 1})],
    )
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(shape), type=Shape) == shape


def test_shapes_stored_before_there_were_groups_are_read() -> None:
    stored = b'{"key": "k", "object": "Deployment/d", "requestGroups": [], "resources": {"pods": 1}}'
    assert msgspec.json.decode(stored, type=Shape) == Shape(key="k", object="Deployment/d", resources={"pods": 1})


@pytest.mark.parametrize(
    ("name", "of_class", "of_parts"),
    [
        ("FPGA", True, True),
        ("CUSTOM_VF", True, True),
        ("VCPU", True, False),
        ("PCPU", True, False),
        ("cpu", False, False),
        ("nvidia.com/gpu", False, False),
        ("", False, False),
        ("VF ", False, False),
        ("VF\n", False, False),
        ("ÄÖ", False, False),
    ],
)
def test_names_of_classes(name: str, of_class: bool, of_parts: bool) -> None:
    assert is_class(name) == of_class
    assert is_part_class(name) == of_parts


def test_custom_names_are_short_inside() -> None:
    assert [short_name(name) for name in ("CUSTOM_VF", "VF", "HW_NUMA_ROOT")] == ["VF", "VF", "HW_NUMA_ROOT"]
    assert {name: tuple(resource) for name, resource in KUBERNETES_RESOURCES.items()} == {
        "VCPU": ("cpu", 1000),
        "PCPU": ("moorage.dev/exclusive-cpu", 1),
        "MEMORY_MB": ("memory", 1024**2),
        "DISK_GB": ("ephemeral-storage", 1024**3),
    }
