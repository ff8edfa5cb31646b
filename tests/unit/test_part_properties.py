"""Selectors of properties: each operator with each type, and what is missing or cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest

from moorage.fit import Assigned, FitCache, Unassigned, assign
from moorage.model.part_reports import PropertyValue, ProviderReport, Typed
from moorage.model.part_requests import Operator, PartGroup, PropertyCondition
from moorage.model.shapes import Shape
from moorage.parts.properties import meets
from moorage_testkit.fleets import fleet_of, node

VALUES: dict[str, PropertyValue] = {
    "cores": 8,
    "clock": 1.5,
    "memory": Typed(quantity="80Gi"),
    "driver": Typed(version="3.10.0"),
    "odd": Typed(version="nightly"),
    "mig": True,
    "model": "A100",
}


def one(key: str, operator: Operator, *values: str) -> PropertyCondition:
    return PropertyCondition(key=key, operator=operator, values=values)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (one("cores", "Eq", "8"), True),
        (one("cores", "In", "4", "8000m"), True),
        (one("cores", "Gt", "7.9"), True),
        (one("cores", "Lt", "8"), False),
        (one("cores", "LtEq", "8"), True),
        (one("cores", "GtEq", "many"), False),
        (one("cores", "NotIn", "many", "9"), True),
        (one("clock", "Eq", "1500m"), True),
        (one("clock", "Lt", "1.6"), True),
        (one("memory", "Eq", "81920Mi"), True),
        (one("memory", "GtEq", "80G"), True),
        (one("memory", "NotIn", "80Gi"), False),
        (one("driver", "Gt", "3.7"), True),
        (one("driver", "Eq", "3.10"), True),
        (one("driver", "Lt", "newest"), False),
        (one("odd", "Eq", "nightly"), True),
        (one("odd", "Gt", "1"), False),
        (one("mig", "Eq", "true"), True),
        (one("mig", "In", "True"), False),
        (one("mig", "Gt", "false"), False),
        (one("model", "In", "A100", "H100"), True),
        (one("model", "Eq", "a100"), False),
        (one("model", "Gt", "A"), False),
        (one("model", "Exists"), True),
        (one("model", "DoesNotExist"), False),
        (one("none", "Exists"), False),
        (one("none", "DoesNotExist"), True),
        (one("none", "NotIn", "x"), True),
        (one("none", "In", "x"), False),
        (one("none", "Lt", "9"), False),
        (one("cores", "Gt", "1", "2"), False),
        (one("cores", "Gt"), False),
    ],
)
def test_a_condition_reads_its_values_as_the_property_is(condition: PropertyCondition, holds: bool) -> None:
    assert meets(frozenset(VALUES.items()), ((condition,),)) is holds


def test_alternatives_are_ored_and_their_conditions_anded() -> None:
    found = frozenset(VALUES.items())
    yes, no = one("model", "Exists"), one("none", "Exists")
    assert meets(found, ()) and not meets(found, ((),))
    assert meets(found, ((no,), (yes, yes))) and not meets(found, ((no, yes), (no,)))


def cards(name: str, *memory: str) -> object:
    providers = [
        ProviderReport(id=f"card-{i}", inventories={"GPU": "1"}, properties={"memory": Typed(quantity=text)})
        for i, text in enumerate(memory)
    ]
    return node(name, cpu="8", providers=providers)


def wanting(count: int, pods: int = 1) -> Shape:
    large = ((one("memory", "GtEq", "40Gi"),),)
    group = PartGroup(suffix="_G", resources={"GPU": 1}, properties=large, count=count)
    return Shape(key=f"{count}x{pods}", object="Deployment/d", count=pods, resources={"pods": 1}, groups=[group])


def test_pods_get_parts_with_the_properties_they_select() -> None:
    fleet = fleet_of({"lab/a": [cards("n", "16Gi", "40Gi", "80Gi")], "lab/b": [cards("n", "16Gi", "16Gi", "80Gi")]})  # type: ignore[list-item]
    cache = FitCache(fleet)

    def fitting(shape: Shape) -> list[str]:
        return [fleet.names[c] for c in np.flatnonzero(cache.get(shape).fits)]

    assert (fitting(wanting(1)), fitting(wanting(2)), fitting(wanting(3))) == (["lab/a", "lab/b"], ["lab/a"], [])
    assert fitting(wanting(1, 2)) == ["lab/a"]
    found = assign(fleet, fleet.rows_of(fleet.ids["lab/a"]), [wanting(2)])
    assert isinstance(found, Assigned)
    assert found.slots[0][0].parts == {"n/card-1": {"GPU": 1}, "n/card-2": {"GPU": 1}}
    assert isinstance(assign(fleet, fleet.rows_of(fleet.ids["lab/b"]), [wanting(2)]), Unassigned)


def test_a_condition_is_evaluated_once_per_distinct_set() -> None:
    fleet = fleet_of({f"lab/c{i}": [cards("n", "16Gi", "80Gi")] for i in range(50)})  # type: ignore[list-item]
    asked: list[object] = []

    def is_large(found: frozenset[tuple[str, PropertyValue]]) -> bool:
        asked.append(found)
        return ("memory", Typed(quantity="80Gi")) in found

    large = fleet.parts.properties.where("large", is_large)
    rows = np.flatnonzero(fleet.parts.node[: fleet.parts.n] >= 0)
    assert np.count_nonzero(large[fleet.parts.property_set[rows]]) == 50
    assert len(asked) == 3, "none, and those of two cards"
