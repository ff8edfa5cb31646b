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

from moorage.model.problems import Violation
from moorage.podspec.needs import label_text

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


def struct(data: Any, kind: type[T], path: str, errors: list[Violation]) -> T:
    """Converts `data` to a `kind`, and adds every violation to `errors`. `path` is its place in the document."""
    if type(data) is dict and data.keys() <= _plain(kind) and not any(type(v) in (dict, list) for v in data.values()):
        try:
            return msgspec.convert(data, kind)  # flat data without unknown fields: only types can be wrong
        except msgspec.ValidationError:
            pass
    if not isinstance(data, dict):
        errors.append(_wrong_type(path, dict, data))
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
            errors.append(Violation(path=at, code="UnknownField", message=_unknown(key, list(fields))))
        elif value is not None:
            before = len(errors)
            converted = _value(value, field.type, at, errors)
            if len(errors) == before or field.required or isinstance(converted, list | msgspec.Struct):
                values[field.name] = converted
    for key, field in fields.items():
        if field.required and field.name not in values:
            at = f"{path}.{key}" if path else key
            if is_object:
                errors.append(Violation(path=at, code="Required", message="is required"))
            values[field.name] = _blank(field.type)
    return kind(**values)


def _unknown(key: object, known: list[str]) -> str:
    close = difflib.get_close_matches(str(key), known, 1)
    return f"unknown field; did you mean {close[0]!r}?" if close else f"unknown field; known are {', '.join(known)}"


def _wrong_type(path: str, expected: Any, data: Any) -> Violation:
    kinds = expected if isinstance(expected, tuple) else (expected,)
    names = " or ".join(dict.fromkeys(_NAMES.get(k, str(k)) for k in kinds if k is not int or float not in kinds))
    found = "null" if data is None else _NAMES.get(type(data), type(data).__name__)
    return Violation(path=path, code="WrongType", message=f"must be {names}, not {found}")


def _blank(kind: Any) -> Any:
    origin = typing.get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return _blank(typing.get_args(kind)[0])
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return struct(None, origin, "", [])
    return origin()


def _value(data: Any, kind: Any, path: str, errors: list[Violation]) -> Any:
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Any:
        return data
    if origin in (Union, types.UnionType):
        return _one_of(data, [a for a in args if a is not type(None)], path, errors)
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return struct(data, origin, path, errors)
    if origin is list:
        if not isinstance(data, list):
            errors.append(_wrong_type(path, list, data))
            return []
        return [_value(item, args[0], f"{path}[{i}]", errors) for i, item in enumerate(data)]
    if origin is dict:
        if not isinstance(data, dict):
            errors.append(_wrong_type(path, dict, data))
            return {}
        return {str(k): _entry(v, args[1], f"{path}.{k}", errors) for k, v in data.items()}
    return _leaf(data, origin, path, errors)


def _one_of(data: Any, kinds: list[Any], path: str, errors: list[Violation]) -> Any:
    for kind in kinds:
        if type(data) is (typing.get_origin(kind) or kind):
            return _value(data, kind, path, errors)
    if len(kinds) == 1:
        return _value(data, kinds[0], path, errors)
    errors.append(_wrong_type(path, tuple(typing.get_origin(k) or k for k in kinds), data))
    return _blank(kinds[0])


def _entry(data: Any, kind: Any, path: str, errors: list[Violation]) -> Any:
    """Converts a value of a map. Maps of text are labels and annotations, where `true` and `1` are accepted."""
    if kind is str and isinstance(data, bool | int | float):
        return label_text(data)
    return _value(data, kind, path, errors)


def _leaf(data: Any, kind: Any, path: str, errors: list[Violation]) -> Any:
    if kind is str and isinstance(data, str):
        return data
    if kind is not str and not isinstance(data, dict | list):
        try:
            if not (kind is bool and type(data) in (int, float)) and not (kind is not bool and type(data) is bool):
                return msgspec.convert(data, kind, strict=False)
        except msgspec.ValidationError:
            pass
    errors.append(_wrong_type(path, kind, data))
    return kind()
