"""Selectors of resource classes: each operator with each type, what compares with nothing, and many classes or devices at once."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.classes import (
    BUILT_IN,
    OPERATORS,
    ClassIndex,
    Selector,
    class_problems,
    class_warnings,
    compile_class,
    holds,
)
from moorage.classes.conditions import NEGATED
from moorage.model.part_reports import PropertyValue, Typed
from moorage.model.part_requests import PropertyCondition
from moorage.model.resource_classes import PropertyRequirement, PropertySelectorTerm, ResourceClassSpec
from moorage.parsing import parse_bandwidth
from moorage.parts import PropertyTable

G, GI = 10**18, 1 << 30


def term(*requirements: tuple[str, ...]) -> PropertySelectorTerm:
    return PropertySelectorTerm(
        match_expressions=[PropertyRequirement(key=k, operator=o, values=list(v)) for k, o, *v in requirements]
    )


def of(*terms: PropertySelectorTerm | None) -> ResourceClassSpec:
    return ResourceClassSpec(resource_selector=list(terms))


def vectors() -> dict[str, Any]:
    path = Path(os.environ.get("MOORAGE_VECTORS", "")) / "units" / "selector.json"
    if not os.environ.get("MOORAGE_VECTORS") or not path.is_file():
        pytest.skip("MOORAGE_VECTORS does not name the directory with the upstream vectors")
    return dict(json.loads(path.read_text()))


# --- the three classes of the proposal ------------------------------------------------------------------------------------

HIGH_MEM = of(term(("Kind", "In", "nvidia-gpu"), ("memory", "GtEq", "30G")))
HUGE = of(term(("Kind", "In", "huge-pages"), ("size", "GtEq", "1G")))
FAST_NIC = of(term(("Kind", "In", "nic"), ("speed", "GtEq", "40GBPS")))


@pytest.mark.parametrize(
    ("spec", "device", "expected"),
    [
        (HIGH_MEM, {"Kind": "nvidia-gpu", "memory": Typed(quantity="80Gi")}, True),
        (HIGH_MEM, {"Kind": "nvidia-gpu", "memory": Typed(quantity="30G"), "version": Typed(version="2")}, True),
        (HIGH_MEM, {"Kind": "nvidia-gpu", "memory": Typed(quantity="28Gi")}, True),
        (HIGH_MEM, {"Kind": "nvidia-gpu", "memory": Typed(quantity="27Gi")}, False),
        (HIGH_MEM, {"Kind": "amd-gpu", "memory": Typed(quantity="80Gi")}, False),
        (HIGH_MEM, {"Kind": "nvidia-gpu"}, False),
        (HUGE, {"Kind": "huge-pages", "size": Typed(quantity="1Gi")}, True),
        (HUGE, {"Kind": "huge-pages", "size": Typed(quantity="2Mi")}, False),
        (FAST_NIC, {"Kind": "nic", "speed": Typed(bandwidth="40Gbps")}, True),
        (FAST_NIC, {"Kind": "nic", "speed": Typed(bandwidth="5GB/s")}, True),
        (FAST_NIC, {"Kind": "nic", "speed": Typed(bandwidth="25Gbps")}, False),
        (FAST_NIC, {"Kind": "nic", "speed": "100Gbps"}, False),
    ],
)
def test_classes_of_the_proposal(spec: ResourceClassSpec, device: dict[str, PropertyValue], expected: bool) -> None:
    assert not list(class_problems(spec))
    assert compile_class(spec).matches(device) is expected


@pytest.mark.parametrize(
    ("value", "operator", "texts", "expected"),
    [
        (Typed(bandwidth="40Gbps"), "Eq", ("40G",), True),
        (Typed(bandwidth="40Gbps"), "Eq", ("5GBps",), True),
        (Typed(bandwidth="40Gb/s"), "In", ("40000Mbit/s",), True),
        (Typed(bandwidth="1Gibit/s"), "Gt", ("1Gbps",), True),
        (Typed(quantity="40G"), "GtEq", ("1bps",), False),
        (8, "Lt", ("8001m",), True),
        (8, "Eq", ("8.0",), True),
        (Typed(quantity="8"), "Eq", ("8e0",), True),
        (Typed(quantity="1Gi"), "GtEq", ("1G",), True),
        (Typed(quantity="1Gi"), "Eq", ("1G",), False),
        (Typed(quantity="1Gi"), "NotIn", ("1024Mi",), False),
        (Typed(version="3.10"), "Gt", ("3.7",), True),
        (Typed(version="3.10.0"), "Eq", ("v3.10",), True),
        (Typed(string="3.10"), "Eq", ("3.10.0",), False),
        ("10", "Gt", ("9",), False),
        (True, "Eq", ("true",), True),
        (True, "Eq", ("1",), False),
        (1, "Eq", ("true",), False),
        ((1, 2, 3), "Gt", ("2",), True),
        ((1, 2), "Gt", ("2",), False),
        (("a", "b"), "In", ("b",), True),
        (("a", "b"), "NotIn", ("b",), False),
        (("a", "b"), "NotIn", ("c",), True),
        ((), "Exists", (), True),
        ((), "In", ("a",), False),
        ((), "NotIn", ("a",), True),
        (float("inf"), "Gt", ("1",), False),
        (float("nan"), "Eq", ("nan",), False),
        (Typed(quantity="junk"), "Lt", ("1",), False),
        (Typed(bandwidth="junk"), "NotIn", ("1",), True),
    ],
)
def test_values_are_read_as_the_property_is(
    value: PropertyValue, operator: str, texts: tuple[str, ...], expected: bool
) -> None:
    condition = PropertyCondition(key="x", operator=operator, values=texts)  # type: ignore[arg-type]
    assert holds(value, condition) is expected
    assert ClassIndex({"c": Selector(((condition,),))}).selecting({"x": value})[0] == expected


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("40Gbps", 40 * G),
        ("40Gb/s", 40 * G),
        ("40Gbit/s", 40 * G),
        ("40GBPS", 40 * G),
        ("5GBps", 40 * G),
        ("5GB/s", 40 * G),
        ("1Kibps", 1024 * 10**9),
        ("1kbps", 10**12),
        ("1Kbps", 10**12),
        ("1.5 Mbps", 15 * 10**14),
        ("8bps", 8 * 10**9),
    ],
)
def test_bandwidths_are_exact(text: str, bits: int) -> None:
    assert parse_bandwidth(text) == bits


@pytest.mark.parametrize("text", ["", "40G", "40gbps", "Gbps", "40Gbps ", "40GBIT/S", "4_0Gbps", "x" * 65])
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a bandwidth"):
        parse_bandwidth(text)


def test_terms_are_ored_and_requirements_anded() -> None:
    small_or_red = of(term(("size", "Lt", "5"), ("size", "Gt", "1")), None, term(), term(("color", "Eq", "red")))
    selector = compile_class(small_or_red)
    assert selector.matches({"size": 3}) and selector.matches({"size": 9, "color": "red"})
    assert not selector.matches({"size": 9}) and not selector.matches({"size": 1})


@pytest.mark.parametrize(
    "spec", [None, ResourceClassSpec(), of(), of(None), of(term()), of(PropertySelectorTerm(), None)]
)
def test_null_and_empty_select_nothing(spec: ResourceClassSpec | None) -> None:
    assert not compile_class(spec).matches({"Kind": "nic"})
    assert not ClassIndex({"c": compile_class(spec)}).selecting({"Kind": "nic"}).any()
    assert compile_class(spec).of_group == ((),)
    assert [warning.code for warning in class_warnings(spec)] == ["SelectsNothing"]


def test_every_violation_is_listed_with_its_path() -> None:
    spec = of(
        term(("a", "In"), ("a", "Eq", "1", "2"), ("a", "Exists", "1")),
        term(("", "Gt", "1"), ("a", "gt", "1"), ("a", "", "1"), ("a b", "LtEq")),
    )
    found = [(one.path.removeprefix("spec.resourceSelector"), one.code) for one in class_problems(spec)]
    assert found == [
        ("[0].matchExpressions[0].values", "BadArity"),
        ("[0].matchExpressions[1].values", "BadArity"),
        ("[0].matchExpressions[2].values", "BadArity"),
        ("[1].matchExpressions[0].key", "Required"),
        ("[1].matchExpressions[1].operator", "BadOperator"),
        ("[1].matchExpressions[2].operator", "Required"),
        ("[1].matchExpressions[3].key", "BadValue"),
        ("[1].matchExpressions[3].values", "BadArity"),
    ]


def test_traps_are_warned_of() -> None:
    spec = of(
        term(("size", "Eq", "1G"), ("size", "GtEq", "1G"), ("speed", "GtEq", "40GBPS")),
        term(("driver", "Exists"), ("kind", "Exists"), ("model", "Gt", "A100x")),
    )
    codes = [warning.code for warning in class_warnings(spec)]
    assert codes == ["DecimalSuffix", "AmbiguousUnit", "KeyCase", "NotOrdered"]


def test_the_alias_of_kind() -> None:
    assert compile_class(of(term(("kind", "Eq", "nic")))).matches({"Kind": "nic"})
    assert set(BUILT_IN) == {"Kind", "Name", "Vendor", "Driver", "Node", "Cluster", "numa"}


def test_only_parts_with_a_kind_are_devices() -> None:
    other = compile_class(of(term(("vendor", "NotIn", "x")), term(("Kind", "Eq", "nic"))))
    assert other.matches({}) and not other.of_devices.matches({})
    assert other.of_devices.matches({"Kind": "gpu"}) and len(other.of_group[1]) == 1


def test_conditions_on_cluster_and_node_are_settled_for_a_node() -> None:
    selector = compile_class(of(term(("Node", "Eq", "n1"), ("a", "Eq", "1")), term(("Cluster", "Eq", "lab/b"))))
    assert selector.at(cluster="lab/a", node="n2") == Selector(())
    assert selector.at(cluster="lab/a", node="n1").matches({"a": 1})
    assert selector.at(cluster="lab/b", node="n2").matches({"Kind": "x"})
    plain = compile_class(HIGH_MEM)
    assert plain.at(cluster="lab/a", node="n1") is plain


# --- upstream's expressions -------------------------------------------------------------------------------------------------


def test_upstream_expressions() -> None:
    """Types are given there with the expression and here with the property. A missing attribute meets NotIn here, and text that
    is no number is false without an error."""
    seen = Counter[str]()
    for case in vectors()["nfd_expression_values"]:
        operator = case["operator"]
        if operator not in OPERATORS or (case["values"] == ["2.0"] and not case["type"] and "." not in str(case)):
            continue
        given = case["attributes"].get(case["key"])
        ordered = operator in ("Gt", "GtEq", "Lt", "LtEq")
        value: PropertyValue | None = given
        if given is not None and case["type"] == "version":
            value = Typed(version=given)
        elif given is not None and ordered:
            value = Typed(quantity=given)
        if case["error"] and given != "str":
            continue  # fractions, which quantities may have
        condition = PropertyCondition(key=case["key"], operator=operator, values=tuple(case["values"]))
        expected = True if given is None and operator == "NotIn" else case["result"]
        assert holds(value, condition) is expected, case
        seen[operator] += 1
    assert seen.keys() == set(OPERATORS) - {"Eq", *NEGATED}


# --- many at once -------------------------------------------------------------------------------------------------------------

texts = st.sampled_from(["", "1", "2", "1000m", "1Gi", "1G", "1024Mi", "1Gbps", "1.2", "1.10", "true", "x", "junk"])
scalar_values = st.one_of(
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.5, 1.0, float("inf")]),
    texts,
    st.builds(Typed, quantity=texts),
    st.builds(Typed, version=texts),
    st.builds(Typed, bandwidth=texts),
    st.builds(Typed, string=texts),
)
property_values = st.one_of(scalar_values, st.lists(scalar_values, max_size=3).map(tuple))
devices = st.dictionaries(st.sampled_from("abc"), property_values, max_size=3)
conditions = st.builds(
    PropertyCondition,
    key=st.sampled_from("abc"),
    operator=st.sampled_from(OPERATORS),
    values=st.lists(texts, max_size=2).map(tuple),
)
alternatives = st.lists(conditions, min_size=1, max_size=3).map(tuple)
selectors = st.lists(alternatives, max_size=3).map(lambda found: Selector(tuple(found)))


@settings(max_examples=300, deadline=None)
@given(st.lists(selectors, max_size=4), st.lists(devices, min_size=1, max_size=5), st.integers(0, 5))
def test_columns_and_indexes_answer_as_one_device_does(
    found: list[Selector], rows: list[dict[str, PropertyValue]], known: int
) -> None:
    index = ClassIndex({str(i): selector for i, selector in enumerate(found)})
    expected = [[selector.matches(row) for selector in found] for row in rows]
    for row, answers in zip(rows, expected, strict=True):
        assert index.selecting(row).tolist() == answers
    table = PropertyTable()
    numbers: list[int] = []
    for i, row in enumerate(rows):
        numbers.append(table.number(row.items()))
        if i == known:  # what is kept of an answer grows with the sets
            for selector in found:
                table.selected(selector)
    for at, selector in enumerate(found):
        assert table.selected(selector)[np.array(numbers)].tolist() == [answers[at] for answers in expected]


def test_values_of_different_types_are_not_mistaken_for_each_other() -> None:
    table = PropertyTable()
    numbers = [table.number([("a", value)]) for value in (True, 1, 1.0, "1")]
    assert len(set(numbers)) == 4
    one = Selector(((PropertyCondition(key="a", operator="Eq", values=("1",)),),))
    assert table.selected(one)[numbers].tolist() == [False, True, True, True]


def test_what_cannot_be_compared_is_counted() -> None:
    selector = compile_class(of(term(("speed", "Gt", "1Gi"), ("memory", "Gt", "1Gbps")), term(("model", "Gt", "1"))))
    device: dict[str, PropertyValue] = {
        "speed": Typed(bandwidth="1Gbps"),
        "memory": Typed(quantity="1Gi"),
        "model": "A",
    }
    index = ClassIndex({"c": selector})
    index.selecting(device)
    assert index.diagnostics == {"OtherDimension": 1, "NotOrdered": 1}
    counts = Counter[str]()
    assert not selector.matches(device | {"speed": Typed(bandwidth="2Gibps")}, counts)
    assert counts == {"OtherDimension": 1, "NotOrdered": 1}
