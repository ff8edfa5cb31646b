"""RFC 6902 on plain data, sharing everything that does not change. Written here because every copy counts: the patcher
makes a patch per cluster and agents apply it, thousands of times over the same manifests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

Operation = dict[str, Any]


class PatchError(ValueError):
    """The patch does not fit the document."""


@lru_cache(16384)
def escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def pointer(parts: Sequence[str | int]) -> str:
    return "".join("/" + escape(str(part)) for part in parts)


@lru_cache(16384)
def split(path: str) -> tuple[str, ...]:
    if not path:
        return ()
    if not path.startswith("/"):
        raise PatchError(f"{path!r} is not a JSON pointer")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/"))


def _index(part: str, length: int, path: str | Sequence[str]) -> int:
    if not part.isascii() or not part.isdigit() or (part[0] == "0" and len(part) > 1) or int(part) >= length:
        path = path if isinstance(path, str) else pointer(path)
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


def assigned(node: dict[str, Any], settings: Sequence[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """`node` with all these values at their paths, as `replaced` would one after the other; what several of them pass
    through is copied once."""
    root = [node]
    mine: dict[int, Any] = {id(root): root}  # copies made here; kept, so that no id comes twice
    for parts, value in settings:
        holder: Any = root
        key: Any = 0
        for part in parts:
            child = holder[key] if isinstance(holder, list) else holder.get(key)
            if id(child) not in mine:
                if child is None:
                    child = {}
                elif isinstance(child, dict | list):
                    child = child.copy()
                else:
                    raise PatchError(f"{pointer(parts)}: {part!r} is inside of something that holds nothing")
                mine[id(child)] = holder[key] = child
            holder = child
            key = _index(part, len(child), parts) if isinstance(child, list) else part
        holder[key] = value
    return root[0]


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


def diff(before: Any, after: Any) -> list[Operation]:
    """A patch from one to the other. What is the very same object is skipped without a look inside."""
    patch: list[Operation] = []
    if before is not after:
        _compare(before, after, "", patch)
    return patch


def _compare(before: Any, after: Any, path: str, patch: list[Operation]) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        patch += [{"op": "remove", "path": f"{path}/{escape(key)}"} for key in before if key not in after]
        for key, value in after.items():
            if key not in before:
                patch.append({"op": "add", "path": f"{path}/{escape(key)}", "value": value})
            elif before[key] is not value:
                _compare(before[key], value, f"{path}/{escape(key)}", patch)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, value in enumerate(after):
            if index >= len(before):
                patch.append({"op": "add", "path": f"{path}/{index}", "value": value})
            elif before[index] is not value:
                _compare(before[index], value, f"{path}/{index}", patch)
    # True equals 1 in Python and nowhere else.
    elif before != after or type(before) is not type(after) or isinstance(before, list):
        patch.append({"op": "replace", "path": path, "value": after})
