"""JSON Schemas that controllers register: unusable ones are refused, and none can occupy the store."""

from __future__ import annotations

import time
from typing import Any

import pytest

from moorage.intents.core import controller_registry, json_schemas, validate
from moorage.model.controllers import Controller, Register
from moorage.model.problems import Refused

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"type": 3}, "not valid"),
    ({"$ref": "#/$defs/none"}, "points to nothing"),
    ({"properties": {"a": {"items": {"$ref": "http://localhost:1/x"}}}}, "points to nothing"),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "points to nothing"),
    ({"$ref": "#"}, "leads back"),
    ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}}, "leads back"),
    ({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}}, "leads back"),
    ({"properties": {"a": {"pattern": "("}}}, "is not a 'regex'"),
    ({"patternProperties": {"[": {}}}, "is not a 'regex'"),
]


@pytest.mark.parametrize(("schema", "why"), BROKEN, ids=lambda v: str(v)[:50])
def test_a_schema_that_cannot_be_used_is_not_registered(schema: dict[str, Any], why: str) -> None:
    assert why in json_schemas.wrong_with(schema)
    with pytest.raises(Refused) as refused:
        controller_registry.register(None, "own", Register(kinds={"Own": schema}))
    assert [(e.path, e.code) for e in refused.value.problem.errors] == [("kinds.Own", "InvalidSchema")]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}},
        # A tree: values may contain values of their own schema.
        {"properties": {"children": {"items": {"$ref": "#"}}}},
        {"$id": "https://example.org/a", "$defs": {"b": {"$anchor": "here"}}, "properties": {"c": {"$ref": "#here"}}},
        {"$defs": {"a": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]},
    ],
)
def test_a_usable_schema_is_registered(schema: dict[str, Any]) -> None:
    assert json_schemas.wrong_with(schema) == ""


def doubled(levels: int) -> dict[str, Any]:
    """Every rule refers to the next one twice."""
    twice = {f"r{n}": {"allOf": [{"$ref": f"#/$defs/r{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**twice, f"r{levels}": {"type": "object"}}, "$ref": "#/$defs/r0"}


@pytest.mark.parametrize(
    ("schema", "spec"),
    [
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 40 + "!"}),
        ({"patternProperties": {"^(a|a)*$": {}}}, {"a" * 40 + "!": 1}),
        ({"properties": {"a": {"pattern": ".*.*.*.*.*=x"}}}, {"a": "a" * 3000}),
        (doubled(30), {}),
    ],
    ids=["nested", "properties", "many", "doubled"],
)
def test_a_slow_schema_is_interrupted(schema: dict[str, Any], spec: dict[str, Any]) -> None:
    assert json_schemas.wrong_with(schema) == ""
    data = {"kind": "Own", "metadata": {"name": "own"}, "spec": {"group": "shop", **spec}}
    began = time.process_time()
    with pytest.raises(Refused) as refused:
        validate.accept(data, {"Own": [schema]})
    assert time.process_time() - began < 6
    assert [(e.path, e.code) for e in refused.value.problem.errors] == [("spec", "SchemaTooSlow")]
    quick = {**data, "spec": {"group": "shop"}}
    assert schema.get("$ref") or validate.accept(quick, {"Own": [schema]})


def test_a_kind_has_one_schema() -> None:
    first = Controller(name="first", kinds={"Own": {"type": "object"}})
    same = controller_registry.register(None, "second", Register(kinds={"Own": {"type": "object"}}), [first])
    assert same.kinds == first.kinds
    with pytest.raises(Refused) as refused:
        controller_registry.register(None, "second", Register(kinds={"Own": {"minProperties": 1}}), [first])
    (error,) = refused.value.problem.errors
    assert (error.path, error.code) == ("kinds.Own", "KindTaken") and "first" in error.message
    # The controller itself may change it.
    assert controller_registry.register(first, "first", Register(kinds={"Own": {"minProperties": 1}}), [first]).kinds[
        "Own"
    ]
