"""The shapes of bodies and queries, by microversion."""

from __future__ import annotations

import re
import uuid
from functools import cache
from typing import Any

import jsonschema
import msgspec
from jsonschema.exceptions import best_match

from moorage.model.allocations import MAX_INT

from .errors import bad_request

_MAX_FLOAT = 3.40282e38
_UUID = "^[0-9a-fA-F-]{36}$"
_NAME = "^[A-Z0-9_]+$"
_CUSTOM = "^CUSTOM_[A-Z0-9_]+$"
NUMBERED = r"[1-9][0-9]*"
SUFFIXED = r"[a-zA-Z0-9_-]{1,64}"

_FORMATS = jsonschema.FormatChecker()


@_FORMATS.checks("uuid")
def is_uuid(value: object) -> bool:
    try:
        plain = str(value).lower().replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "")
        return str(uuid.UUID(str(value))).replace("-", "") == plain
    except (TypeError, ValueError, AttributeError):
        return False


def _object(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties, **more}
    if required is not None:
        found["required"] = required
    return {**found, "additionalProperties": False}


_ID = {"type": "string", "format": "uuid"}
_SHORT = {"type": "string", "minLength": 1, "maxLength": 255}
_COUNT = {"type": "integer", "maximum": MAX_INT, "minimum": 1}
_RESOURCES = {
    "type": "object",
    "minProperties": 1,
    "patternProperties": {_NAME: {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}


@cache
def provider(version: int, create: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {"name": {"type": "string", "maxLength": 200}}
    if create:
        properties["uuid"] = _ID
    if version >= 14:
        properties["parent_provider_uuid"] = {"anyOf": [_ID, {"type": "null"}]}
    return _object(properties, ["name"])


@cache
def provider_query(version: int) -> dict[str, Any]:
    properties: dict[str, Any] = {"name": {"type": "string"}, "uuid": _ID}
    for since, name in ((3, "member_of"), (4, "resources"), (18, "required")):
        if version >= since:
            properties[name] = {"type": "string"}
    if version >= 14:
        properties["in_tree"] = _ID
    return _object(properties)


def _inventory(*required: str, **more: Any) -> dict[str, Any]:
    properties = {
        "resource_provider_generation": {"type": "integer"},
        "total": _COUNT,
        "reserved": {**_COUNT, "minimum": 0},
        "min_unit": _COUNT,
        "max_unit": _COUNT,
        "step_size": _COUNT,
        "allocation_ratio": {"type": "number", "maximum": _MAX_FLOAT},
        **more,
    }
    return _object(properties, ["total", *required])


INVENTORY = _inventory("resource_provider_generation")
NEW_INVENTORY = _inventory("resource_class", resource_class={"type": "string", "pattern": _NAME})
INVENTORIES = _object(
    {
        "resource_provider_generation": {"type": "integer"},
        "inventories": {"type": "object", "patternProperties": {_NAME: _inventory()}},
    },
    ["resource_provider_generation", "inventories"],
)
_AGGREGATES = {"type": "array", "items": _ID, "uniqueItems": True}


@cache
def aggregates(version: int) -> dict[str, Any]:
    if version < 19:
        return _AGGREGATES
    return _object(
        {"aggregates": _AGGREGATES, "resource_provider_generation": {"type": "integer"}},
        ["aggregates", "resource_provider_generation"],
    )


RESOURCE_CLASS = _object({"name": {"type": "string", "pattern": _CUSTOM, "maxLength": 255}}, ["name"])
PROVIDER_TRAITS = _object(
    {"traits": {"type": "array", "items": _SHORT}, "resource_provider_generation": {"type": "integer"}},
    ["traits", "resource_provider_generation"],
)
TRAIT_QUERY = _object({"name": {"type": "string"}, "associated": {"type": "string"}})


@cache
def usage_query(version: int) -> dict[str, Any]:
    properties: dict[str, Any] = {"project_id": _SHORT, "user_id": _SHORT}
    if version >= 38:
        properties["consumer_type"] = {**_SHORT, "pattern": f"{_NAME}|^all|^unknown$"}
    return _object(properties, ["project_id"])


@cache
def allocations(version: int, many: bool = False) -> dict[str, Any]:
    """The body of one consumer's allocations. Those of several, and from 1.28 of one, may be empty: that ends them."""
    if version < 12 and not many:
        properties: dict[str, Any] = {
            "allocations": {
                "type": "array",
                "minItems": 1,
                "items": _object(
                    {"resource_provider": _object({"uuid": _ID}, ["uuid"]), "resources": _RESOURCES},
                    ["resource_provider", "resources"],
                ),
            }
        }
        required = ["allocations"]
    else:
        item = _object({"generation": {"type": "integer"}, "resources": _RESOURCES}, ["resources"])
        properties = {
            "allocations": {
                "type": "object",
                "minProperties": 0 if many or version >= 28 else 1,
                "patternProperties": {_UUID: item},
                "additionalProperties": False,
            }
        }
        required = ["allocations"]
    if version >= 8:
        properties |= {"project_id": _SHORT, "user_id": _SHORT}
        required += ["project_id", "user_id"]
    if version >= 28:
        properties["consumer_generation"] = {"type": ["integer", "null"], "additionalProperties": False}
        required.append("consumer_generation")
    if version >= 34:
        properties["mappings"] = {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {SUFFIXED: {"type": "array", "minItems": 1, "items": _ID}},
        }
    if version >= 38:
        properties["consumer_type"] = {**_SHORT, "pattern": _NAME}
        required.append("consumer_type")
    return _object(properties, required)


@cache
def many_allocations(version: int, least: int = 1) -> dict[str, Any]:
    return {
        "type": "object",
        "minProperties": least,
        "additionalProperties": False,
        "patternProperties": {_UUID: allocations(version, many=True)},
    }


@cache
def reshape(version: int) -> dict[str, Any]:
    inventories = {
        "type": "object",
        "patternProperties": {_UUID: INVENTORIES},
        "minProperties": 1,
        "additionalProperties": False,
    }
    return _object(
        {"inventories": inventories, "allocations": many_allocations(version, least=0)}, ["inventories", "allocations"]
    )


@cache
def candidate_query(version: int) -> dict[str, Any]:
    text = {"type": "string"}
    properties: dict[str, Any] = {}
    if version >= 16:
        properties["limit"] = {"type": ["integer", "string"], "pattern": "^[1-9][0-9]*$", "minimum": 1, "minLength": 1}
    if version < 25:
        properties["resources"] = text
        for since, name in ((17, "required"), (21, "member_of")):
            if version >= since:
                properties[name] = text
        return _object(properties, ["resources"])
    properties["group_policy"] = {"type": "string", "enum": ["none", "isolate"]}
    names = ["resources", "required", "member_of", *(["in_tree"] if version >= 31 else [])]
    suffix = NUMBERED if version < 33 else SUFFIXED
    for since, name in ((35, "root_required"), (36, "same_subtree"), (40, "root_member_of"), (40, "isolate")):
        if version >= since:
            properties[name] = text
    return _object(properties, patternProperties={f"^{name}({suffix})?$": text for name in names})


def group_parameter(version: int) -> re.Pattern[str]:
    return re.compile(f"^(resources|required|member_of|in_tree)({NUMBERED if version < 33 else SUFFIXED})?$")


#: Bytes of a body that is checked at once, which takes some milliseconds. Larger ones are checked beside other requests.
AT_ONCE = 4096


class LargeBody(Exception):
    """A body is to be checked before the operation is run: see `CheckedBody`."""

    def __init__(self, body: bytes, schema: dict[str, Any]) -> None:
        self.body, self.schema = body, schema


class CheckedBody(bytes):
    """A body with what it was decoded to. `schema` is the shape that it has."""

    data: Any
    schema: dict[str, Any]

    @classmethod
    def of(cls, large: LargeBody) -> CheckedBody:
        found = cls(large.body)
        found.data, found.schema = _decoded(large.body, large.schema), large.schema
        return found


def decoded(body: bytes, schema: dict[str, Any]) -> Any:
    """Decodes a body and checks its shape. Raises LargeBody if that would take long and was not done before."""
    if isinstance(body, CheckedBody) and body.schema == schema:
        return body.data
    if len(body) > AT_ONCE:
        raise LargeBody(body, schema)
    return _decoded(body, schema)


def _decoded(body: bytes, schema: dict[str, Any]) -> Any:
    try:
        data = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise bad_request(f"Malformed JSON: {error}") from None
    violation = _violation(data, schema)
    if violation is not None:
        raise bad_request(f"JSON does not validate: {violation}")
    return data


def check_query(query: list[tuple[str, str]], schema: dict[str, Any]) -> None:
    violation = _violation(dict(query), schema)
    if violation is not None:
        raise bad_request(f"Invalid query string parameters: {violation}")


#: By the schema's identity. `jsonschema.validate` would check the schema itself each time.
_validators: dict[int, jsonschema.Draft202012Validator] = {}


def _violation(data: Any, schema: dict[str, Any]) -> jsonschema.ValidationError | None:
    """Returns the violation that `jsonschema.validate` would raise. Schemas live as long as the process."""
    validator = _validators.get(id(schema))
    if validator is None:
        validator = _validators[id(schema)] = jsonschema.Draft202012Validator(schema, format_checker=_FORMATS)
    found: jsonschema.ValidationError | None = best_match(validator.iter_errors(data))
    return found


def is_custom_trait(name: str) -> bool:
    return bool(re.fullmatch(_CUSTOM[1:-1], name)) and len(name) <= 255
