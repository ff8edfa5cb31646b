"""RFC 6902 on plain data, sharing everything that does not change. Written here because every copy counts: the patcher
makes a patch per cluster and agents apply it, thousands of times over the same manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Operation = dict[str, Any]


class PatchError(ValueError):
    """The patch does not fit the document."""


def escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def pointer(parts: Sequence[str | int]) -> str:
    return "".join("/" + escape(str(part)) for part in parts)


def split(path: str) -> list[str]:
    if not path:
        return []
    if not path.startswith("/"):
        raise PatchError(f"{path!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _index(part: str, length: int, path: str) -> int:
    if not part.isascii() or not part.isdigit() or (part[0] == "0" and len(part) > 1) or int(part) >= length:
        raise PatchError(f"{path}: no entry {part!r} in a list of {length}")
    return int(part)


def replaced(node: Any, parts: Sequence[str], value: Any, path: str = "") -> Any:
    """`node` with `value` at `parts`; objects on the way are made where they are absent, entries of lists are not."""
    if not parts:
        return value
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        index = _index(head, len(node), path)
        return [*node[:index], replaced(node[index], rest, value, path), *node[index + 1 :]]
    if node is None:
        node = {}
    if not isinstance(node, dict):
        raise PatchError(f"{path}: {head!r} is inside of something that holds nothing")
    return {**node, head: replaced(node.get(head), rest, value, path)}


def _value(node: Any, parts: Sequence[str], path: str) -> Any:
    for part in parts:
        if isinstance(node, list):
            node = node[_index(part, len(node), path)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            raise PatchError(f"{path}: {part!r} is not there")
    return node


def _changed(node: Any, parts: Sequence[str], op: str, value: Any, path: str) -> Any:
    """One `add`, `replace` or `remove`."""
    if not parts:
        if op == "remove":
            raise PatchError("the whole document cannot be removed")
        return value
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        if rest:
            index = _index(head, len(node), path)
            return [*node[:index], _changed(node[index], rest, op, value, path), *node[index + 1 :]]
        if op == "add":
            index = len(node) if head == "-" else _index(head, len(node) + 1, path)
            return [*node[:index], value, *node[index:]]
        index = _index(head, len(node), path)
        return [*node[:index], *([value] if op == "replace" else []), *node[index + 1 :]]
    if not isinstance(node, dict):
        raise PatchError(f"{path}: {head!r} is inside of something that holds nothing")
    if rest:
        if head not in node:
            raise PatchError(f"{path}: {head!r} is not there")
        return {**node, head: _changed(node[head], rest, op, value, path)}
    if op == "add":
        return {**node, head: value}
    if head not in node:
        raise PatchError(f"{path}: {head!r} is not there")
    if op == "replace":
        return {**node, head: value}
    return {key: kept for key, kept in node.items() if key != head}


def apply(document: Any, patch: Sequence[Operation]) -> Any:
    """The document after all operations, in order; PatchError where one does not fit, and then nothing has happened."""
    for operation in patch:
        op, path = operation.get("op"), operation.get("path")
        if not isinstance(path, str):
            raise PatchError(f"{operation!r} has no path")
        parts = split(path)
        if op in ("add", "replace", "remove"):
            if op != "remove" and "value" not in operation:
                raise PatchError(f"{path}: no value")
            document = _changed(document, parts, op, operation.get("value"), path)
        elif op == "test":
            if _value(document, parts, path) != operation.get("value"):
                raise PatchError(f"{path}: is not what the patch expects")
        elif op in ("copy", "move"):
            origin = str(operation.get("from", ""))
            if op == "move" and path.startswith(origin + "/"):
                raise PatchError(f"{path}: cannot move something into itself")
            value = _value(document, split(origin), origin)
            if op == "move":
                document = _changed(document, split(origin), "remove", None, origin)
            document = _changed(document, parts, "add", value, path)
        else:
            raise PatchError(f"unknown operation {op!r}")
    return document


def diff(before: Any, after: Any, parts: tuple[str | int, ...] = ()) -> list[Operation]:
    """A patch from one to the other. What is the very same object is skipped without a look inside."""
    if before is after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        patch: list[Operation] = [
            {"op": "remove", "path": pointer((*parts, key))} for key in before if key not in after
        ]
        for key, value in after.items():
            if key in before:
                patch.extend(diff(before[key], value, (*parts, key)))
            else:
                patch.append({"op": "add", "path": pointer((*parts, key)), "value": value})
        return patch
    if isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        patch = []
        for index, value in enumerate(after):
            if index < len(before):
                patch.extend(diff(before[index], value, (*parts, index)))
            else:
                patch.append({"op": "add", "path": pointer((*parts, index)), "value": value})
        return patch
    # True equals 1 in Python and nowhere else.
    if before == after and type(before) is type(after) and not isinstance(before, list):
        return []
    return [{"op": "replace", "path": pointer(parts), "value": after}]
