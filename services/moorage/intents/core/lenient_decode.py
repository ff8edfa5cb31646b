"""Converts plain data to Structs and lists all that is wrong with it, where msgspec stops at the first mistake.

The result is always a complete value, with blanks for what cannot be used, so that the rules that follow can check the
rest. This is slower than msgspec, and only used for documents that msgspec refuses. It is also more tolerant: numbers as
text, `true` as the value of a label, and null for "not given" are accepted."""

from __future__ import annotations

import difflib
import types
import typing
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union

import msgspec

from moorage.podspec.needs import label_text

from .diagnostics import Diagnostics

T = TypeVar("T", bound=msgspec.Struct)

_NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


class _Field(NamedTuple):
    name: str
    type: Any
    required: bool


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    return {f.encode_name: _Field(f.name, f.type, f.required) for f in msgspec.structs.fields(kind)}


@cache
def _plain(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(_fields(kind))


@cache
def _origin(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind) or kind, typing.get_args(kind)


def _is_simple(data: Any, kind: Any) -> bool:
    """Returns whether data is an object without unknown fields and lists, down to objects of any content."""
    if type(data) is not dict:
        return False
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return bool(kind == dict[str, Any])
    fields = _fields(kind)
    return data.keys() <= _plain(kind) and all(
        type(value) not in (dict, list) or _is_simple(value, fields[key].type) for key, value in data.items()
    )


def struct(data: Any, kind: type[T], path: str, diagnostics: Diagnostics) -> T:
    """Converts `data` to a `kind`, and records every violation. `path` is its place in the document."""
    if _is_simple(data, kind):
        try:
            return msgspec.convert(data, kind)  # only types can be wrong
        except msgspec.ValidationError:
            pass
    if not isinstance(data, dict):
        diagnostics.error(path, "WrongType", _wrong_type(dict, data))
        data = {}
        is_object = False
    else:
        is_object = True
    fields = _fields(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        at = f"{path}.{key}" if path else str(key)
        field = fields.get(key)
        if field is None:
            diagnostics.error(at, "UnknownField", _unknown(key, list(fields)))
        elif value is not None:
            before = len(diagnostics.errors)
            converted = _value(value, field.type, at, diagnostics)
            if len(diagnostics.errors) == before or field.required or isinstance(converted, list | msgspec.Struct):
                values[field.name] = converted
    for key, field in fields.items():
        if field.required and field.name not in values:
            at = f"{path}.{key}" if path else key
            if is_object:
                diagnostics.error(at, "Required", "is required")
            values[field.name] = _blank(field.type)
    return kind(**values)


def _unknown(key: object, known: list[str]) -> str:
    close = difflib.get_close_matches(str(key), known, 1)
    return f"unknown field; did you mean {close[0]!r}?" if close else f"unknown field; known are {', '.join(known)}"


def _wrong_type(expected: Any, data: Any) -> str:
    kinds = expected if isinstance(expected, tuple) else (expected,)
    names = " or ".join(dict.fromkeys(_NAMES.get(k, str(k)) for k in kinds if k is not int or float not in kinds))
    found = "null" if data is None else _NAMES.get(type(data), type(data).__name__)
    return f"must be {names}, not {found}"


def _blank(kind: Any) -> Any:
    origin = typing.get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return _blank(typing.get_args(kind)[0])
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return struct(None, origin, "", Diagnostics())
    return origin()


def _value(data: Any, kind: Any, path: str, diagnostics: Diagnostics) -> Any:
    origin, args = _origin(kind)
    if origin is Any:
        return data
    if origin in (Union, types.UnionType):
        return _one_of(data, [a for a in args if a is not type(None)], path, diagnostics)
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return struct(data, origin, path, diagnostics)
    if origin is list:
        if not isinstance(data, list):
            diagnostics.error(path, "WrongType", _wrong_type(list, data))
            return []
        return [_value(item, args[0], f"{path}[{i}]", diagnostics) for i, item in enumerate(data)]
    if origin is dict:
        if not isinstance(data, dict):
            diagnostics.error(path, "WrongType", _wrong_type(dict, data))
            return {}
        return {str(k): _entry(v, args[1], f"{path}.{k}", diagnostics) for k, v in data.items()}
    return _leaf(data, origin, path, diagnostics)


def _one_of(data: Any, kinds: list[Any], path: str, diagnostics: Diagnostics) -> Any:
    for kind in kinds:
        if type(data) is (typing.get_origin(kind) or kind):
            return _value(data, kind, path, diagnostics)
    if len(kinds) == 1:
        return _value(data, kinds[0], path, diagnostics)
    expected = tuple(typing.get_origin(k) or k for k in kinds)
    diagnostics.error(path, "WrongType", _wrong_type(expected, data))
    return _blank(kinds[0])


def _entry(data: Any, kind: Any, path: str, diagnostics: Diagnostics) -> Any:
    """Converts a value of a map. Maps of text are labels and annotations, where `true` and `1` are accepted."""
    if kind is str and isinstance(data, bool | int | float):
        return label_text(data)
    return _value(data, kind, path, diagnostics)


def _leaf(data: Any, kind: Any, path: str, diagnostics: Diagnostics) -> Any:
    if kind is str and isinstance(data, str):
        return data
    if kind is not str and not isinstance(data, dict | list):
        try:
            if not (kind is bool and type(data) in (int, float)) and not (kind is not bool and type(data) is bool):
                return msgspec.convert(data, kind, strict=False)
        except msgspec.ValidationError:
            pass
    diagnostics.error(path, "WrongType", _wrong_type(kind, data))
    return kind()
