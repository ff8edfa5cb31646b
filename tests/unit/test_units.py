"""Quantities are parsed exactly as Kubernetes does, and needs in the units that people write."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.parsing import (
    CAPACITY_MAX,
    NEED_MAX,
    canonical_quantity,
    format_amount,
    need_amount,
    parse_amount,
    parse_nanos,
)


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    path = Path(os.environ.get("MOORAGE_VECTORS", "")) / "units" / "quantity.json"
    if not os.environ.get("MOORAGE_VECTORS") or not path.is_file():
        pytest.skip("MOORAGE_VECTORS does not name the directory with the upstream vectors")
    decoded: dict[str, Any] = json.loads(path.read_text())
    return decoded


def test_upstream_vectors(vectors: dict[str, Any]) -> None:
    for case in vectors["parse_valid"]:
        if len(case["in"]) <= 64:
            assert Decimal(parse_nanos(case["in"])) / 10**9 == Decimal(case["value"]), case
    for text in vectors["parse_invalid"]:
        with pytest.raises(ValueError):
            parse_nanos(text)
    for case in vectors["parse_canonical"]:
        # Upstream keeps tenths of a nano where digits run out; here they are rounded up to a nano, as its documents say.
        if parse_nanos(case["in"]) == Decimal(case["value"]) * 10**9:
            assert canonical_quantity(case["in"]) == case["canonical"], case
    for case in vectors["parse_emit"]:
        assert canonical_quantity(case["in"]) == case["canonical"], case
    for case in vectors["cmp"]:
        a, b = parse_nanos(case["a"]), parse_nanos(case["b"])
        assert (a > b) - (a < b) == case["cmp"], case


def test_canonical_forms() -> None:
    forms = {
        "1024Mi": "1Gi", "1000M": "1G", ".001Ki": "1024m", "1.5Gi": "1536Mi", "0.5": "500m", "1000m": "1", "00": "0",
        "1e9": "1e9", "1000e0": "1e3", "80e-3": "80e-3", "1E": "1E", "-9.01": "-9010m", "500Ki": "500Ki", "+1": "1",
    }  # fmt: skip
    assert {text: canonical_quantity(text) for text in forms} == forms


@pytest.mark.parametrize(
    "text", ["", ".", "1.1.M", "1+1", "0.1mi", "1i", " 1", "1 ", "1e65", "1e-65", "1" * 65, "٣", "1K"]
)
def test_junk_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_nanos(text)


def test_needs_round_up_and_capacity_down() -> None:
    assert (parse_amount("cpu", "1.0001", up=True), parse_amount("cpu", "1.0001", up=False)) == (1001, 1000)
    assert (parse_amount("pods", "1500m", up=True), parse_amount("pods", "1500m", up=False)) == (2, 1)
    assert parse_amount("memory", "1Gi", up=False) == 1 << 30


def test_amounts_beyond_int64_never_fit() -> None:
    assert (
        parse_amount("memory", "100E", up=False) == CAPACITY_MAX < NEED_MAX == parse_amount("memory", "100E", up=True)
    )


@given(st.text(alphabet="0123456789.eE+-kKMGiunm", max_size=12))
def test_the_canonical_form_has_the_same_value(text: str) -> None:
    try:
        value = parse_nanos(text)
    except ValueError:
        return
    formatted = canonical_quantity(text)
    assert parse_nanos(formatted) == value
    assert canonical_quantity(formatted) == formatted


@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(-(1 << 60), 1 << 60))
def test_formatted_amounts_parse_to_the_same_value(resource: str, value: int) -> None:
    assert parse_amount(resource, format_amount(resource, value), up=False) == value


def test_amounts_are_formatted_as_canonical_quantities() -> None:
    shown = [
        format_amount("cpu", 4000),
        format_amount("cpu", 500),
        format_amount("memory", 1 << 30),
        format_amount("memory", 10**9),
        format_amount("pods", 110),
    ]
    assert shown == ["4", "500m", "1Gi", "1G", "110"]


@pytest.mark.parametrize(
    ("resource", "value", "units", "expected"),
    [
        ("cpu", 4, "", 4000),
        ("cpu", "4", "cores", 4000),
        ("cpu", 1.5, "", 1500),
        ("cpu", "500m", "", 500),
        ("cpu", 500, "m", 500),
        ("memory", 1000, "", 10**9),
        ("memory", "1000", "MB", 10**9),
        ("memory", 1.5, "GiB", 3 << 29),
        ("memory", "1Gi", "", 1 << 30),
        ("memory", 2, "Gi", 2 << 30),
        ("memory", 5, "kB", 5000),
        ("memory", 5, "B", 5),
        ("nvidia.com/gpu", "2", "", 2),
        ("nvidia.com/gpu", 2.0, "", 2),
        ("ephemeral-storage", "1Gi", "", 1 << 30),
        ("memory", "1e8", "", 10**8),
        ("memory", "1E8", "", 10**8),
        ("memory", "200", "", 2 * 10**8),
        ("memory", 1e3, "", 10**9),
        ("memory", 1e16, "B", 10**16),
        ("memory", "1e2", "MB", 10**8),
        ("memory", "0.1E", "", 10**17),
        ("cpu", "2e3", "m", 2000),
    ],
)
def test_needs_are_parsed_in_their_units(resource: str, value: str | float, units: str, expected: int) -> None:
    assert need_amount(resource, value, units) == expected


@pytest.mark.parametrize(
    ("resource", "value", "units", "advice"),
    [
        ("memory", "1Gi", "MB", "use one of the two"),
        ("memory", 1, "mb", "MiB"),
        ("cpu", 1, "MB", "cores or m"),
        ("nvidia.com/gpu", 0.5, "", "integer"),
        ("nvidia.com/gpu", 1, "MB", "leave units out"),
        ("cpu", 0, "", "more than 0"),
        ("cpu", -1, "", "more than 0"),
        ("cpu", True, "", "write a number"),
        ("cpu", "four", "", "write it like"),
        ("cpu", float("inf"), "", "finite"),
        ("memory", "8E", "", "check its suffix"),
        ("", 1, "", "name the resource"),
    ],
)
def test_refused_needs_say_what_to_do(resource: str, value: str | float, units: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        need_amount(resource, value, units)
