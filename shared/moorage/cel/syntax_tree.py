"""Reads checked expressions in the protobuf form in which the runtime gives them (`cel.expr.CheckedExpr`).

Only a few of their fields are needed, so the bytes are read as they are, without generated classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Field = tuple[int, "bytes | int"]


class Node(NamedTuple):
    """An expression. `kind` is the field of `Expr` that is set."""

    id: int
    kind: int
    body: bytes


CONST, IDENT, SELECT, CALL, LIST, STRUCT, COMPREHENSION = range(3, 10)
#: Fields of the messages: `Any.value`, `CheckedExpr`, `Constant`.
_ANY_VALUE, _REFERENCES, _EXPR, _INT, _STRING, _BYTES = 2, 2, 4, 3, 6, 7


class Call(NamedTuple):
    target: Node | None
    function: str
    args: list[Node]


class Select(NamedTuple):
    operand: Node
    field: str


class Comprehension(NamedTuple):
    """A loop over `range`; `accu` is the variable that begins as `init`. cel.bind is a loop over nothing."""

    range: Node
    accu: str
    init: Node
    condition: Node
    step: Node
    result: Node
    variables: tuple[str, ...]


def fields(data: bytes) -> Iterator[Field]:
    """Yields the fields of a message, those with a length as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
            case 2:
                length, at = _varint(data, at)
                yield key >> 3, data[at : at + length]
                at += length
            case 1:
                at += 8
            case 5:
                at += 4
            case _:
                raise ValueError("this is no protobuf message")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def _bytes(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, value in fields(data):
        if isinstance(value, bytes):
            yield number, value


def root(serialized: bytes) -> Node:
    """Returns the outermost expression."""
    checked = dict(_bytes(serialized))[_ANY_VALUE]
    return node(dict(_bytes(checked))[_EXPR])


def node(data: bytes) -> Node:
    ident, kind, body = 0, 0, b""
    for number, value in fields(data):
        if isinstance(value, int):
            ident = value
        else:
            kind, body = number, value
    return Node(ident, kind, body)


def constant(found: Node) -> str | int | None:
    """Returns a string as it is, and the length of bytes; None for other constants."""
    for number, value in _bytes(found.body):
        if number == _STRING:
            return value.decode()
        if number == _BYTES:
            return len(value)
    return None


def text(found: Node) -> str | None:
    """Returns the string that a node is; None if it is none."""
    value = constant(found) if found.kind == CONST else None
    return value if isinstance(value, str) else None


def integer(found: Node) -> int | None:
    """Returns the positive integer that a node is; None if it is none."""
    values = dict(fields(found.body)) if found.kind == CONST else {}
    value = values.get(_INT)
    return value if isinstance(value, int) else None


def ident(found: Node) -> str:
    return dict(_bytes(found.body)).get(1, b"").decode()


def select(found: Node) -> Select:
    values = dict(_bytes(found.body))
    return Select(node(values[1]), values.get(2, b"").decode())


def call(found: Node) -> Call:
    target, function, args = None, "", []
    for number, value in _bytes(found.body):
        if number == 1:
            target = node(value)
        elif number == 2:
            function = value.decode()
        else:
            args.append(node(value))
    return Call(target, function, args)


def elements(found: Node) -> list[Node]:
    return [node(value) for number, value in _bytes(found.body) if number == 1]


def entries(found: Node) -> Iterator[Node]:
    """Yields the keys and values of a map."""
    for number, entry in _bytes(found.body):
        if number == 2:
            yield from (node(value) for key, value in _bytes(entry) if key in (3, 4))


def comprehension(found: Node) -> Comprehension:
    values = dict(_bytes(found.body))
    variables = tuple(values[number].decode() for number in (1, 8) if number in values)
    return Comprehension(
        node(values[2]),
        values[3].decode(),
        node(values[4]),
        node(values[5]),
        node(values[6]),
        node(values[7]),
        variables,
    )


def renamed(serialized: bytes, names: dict[int, tuple[str, str]]) -> bytes:
    """Returns the expression where these variables, by the ids of their nodes, have other names of the same length."""
    changed = bytearray(serialized)
    offset = serialized.index(dict(_bytes(serialized))[_ANY_VALUE])
    checked = serialized[offset:]
    for number, start, end in _spans(checked):
        if number == _REFERENCES:
            _rename_reference(changed, offset + start, checked[start:end], names)
        elif number == _EXPR:
            _rename_idents(changed, offset + start, checked[start:end], names)
    return bytes(changed)


def _spans(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields number, start and end of the fields that have a length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            _, at = _varint(data, at)
        elif key & 7 == 2:
            length, at = _varint(data, at)
            yield key >> 3, at, at + length
            at += length
        else:
            at += 8 if key & 7 == 1 else 4


def _rename_reference(changed: bytearray, offset: int, entry: bytes, names: dict[int, tuple[str, str]]) -> None:
    key = next((value for number, value in fields(entry) if number == 1), 0)
    if key in names:
        _replace(changed, offset, entry, names[int(key)])


def _rename_idents(changed: bytearray, offset: int, data: bytes, names: dict[int, tuple[str, str]]) -> None:
    found = node(data)
    if found.kind == IDENT and found.id in names:
        _replace(changed, offset, data, names[found.id])
        return
    for number, start, end in _spans(data):
        if found.kind in (SELECT, CALL, LIST, STRUCT, COMPREHENSION) and number == found.kind:
            _rename_inside(changed, offset + start, data[start:end], found.kind, names)


_INNER = {SELECT: (1,), CALL: (1, 3), LIST: (1,), COMPREHENSION: (2, 4, 5, 6, 7)}


def _rename_inside(changed: bytearray, offset: int, body: bytes, kind: int, names: dict[int, tuple[str, str]]) -> None:
    for number, start, end in _spans(body):
        if kind == STRUCT and number == 2:
            for key, inner_start, inner_end in _spans(body[start:end]):
                if key in (3, 4):
                    inner = body[start + inner_start : start + inner_end]
                    _rename_idents(changed, offset + start + inner_start, inner, names)
        elif number in _INNER.get(kind, ()):
            _rename_idents(changed, offset + start, body[start:end], names)


def _replace(changed: bytearray, offset: int, data: bytes, name: tuple[str, str]) -> None:
    old, new = name[0].encode(), name[1].encode()
    if len(old) != len(new):
        raise ValueError("names differ in length")
    at = data.find(old)
    if at >= 0:
        changed[offset + at : offset + at + len(new)] = new
