"""JSON pointers, values set at them, and RFC 6902 patches as differences. Results share everything that does not change
with the input: the patcher makes objects for thousands of clusters from the same manifests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

Operation = dict[str, Any]


class PointerError(ValueError):
    """The pointer is malformed, or nothing can be set there."""


@lru_cache(16384)
def escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def format_pointer(parts: Sequence[str | int]) -> str:
    return "".join("/" + escape(str(part)) for part in parts)


@lru_cache(16384)
def parse_pointer(pointer: str) -> tuple[str, ...]:
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise PointerError(f"{pointer!r} is not a JSON pointer")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


def merge_patch(value: Any, patch: Any) -> Any:
    """Applies an RFC 7396 merge patch."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, changed in patch.items():
        if changed is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), changed)
    return merged


def list_index(part: str, length: int, pointer: Sequence[str]) -> int:
    """Parses `part` of a pointer as the index of an existing list entry."""
    if not part.isascii() or not part.isdigit() or (part[0] == "0" and len(part) > 1) or int(part) >= length:
        raise PointerError(f"{format_pointer(pointer)}: no entry {part!r} in a list of {length}")
    return int(part)


def with_value(node: Any, parts: Sequence[str], value: Any) -> Any:
    """Returns `node` with `value` at `parts`. Missing objects on the way are created, missing list entries are not."""
    return _with_value(node, parts, value, parts)


def _with_value(node: Any, parts: Sequence[str], value: Any, pointer: Sequence[str]) -> Any:
    if not parts:
        return value
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        index = list_index(head, len(node), pointer)
        return [*node[:index], _with_value(node[index], rest, value, pointer), *node[index + 1 :]]
    if node is None:
        node = {}
    if not isinstance(node, dict):
        raise PointerError(f"{format_pointer(pointer)}: {head!r} is inside a value that is neither object nor list")
    return {**node, head: _with_value(node.get(head), rest, value, pointer)}


def with_values(node: dict[str, Any], settings: Sequence[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Returns `node` with all values at their paths, like repeated `with_value`, but copies each container only once."""
    root = [node]
    copies: dict[int, Any] = {id(root): root}  # containers copied here, by id; held, so that no id is reused
    for parts, value in settings:
        parent: Any = root
        key: Any = 0
        for part in parts:
            child = parent[key] if isinstance(parent, list) else parent.get(key)
            if id(child) not in copies:
                if child is None:
                    child = {}
                elif isinstance(child, dict | list):
                    child = child.copy()
                else:
                    raise PointerError(
                        f"{format_pointer(parts)}: {part!r} is inside a value that is neither object nor list"
                    )
                copies[id(child)] = parent[key] = child
            parent = child
            key = list_index(part, len(child), parts) if isinstance(child, list) else part
        parent[key] = value
    return root[0]


def diff(before: Any, after: Any) -> list[Operation]:
    """Returns an RFC 6902 patch from `before` to `after`. Identical objects are skipped without comparing their content."""
    return [] if before is after else list(_operations(before, after, ""))


def _operations(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            if key not in after:
                yield {"op": "remove", "path": f"{path}/{escape(key)}"}
        for key, value in after.items():
            if key not in before:
                yield {"op": "add", "path": f"{path}/{escape(key)}", "value": value}
            elif before[key] is not value:
                yield from _operations(before[key], value, f"{path}/{escape(key)}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, value in enumerate(after):
            if index >= len(before):
                yield {"op": "add", "path": f"{path}/{index}", "value": value}
            elif before[index] is not value:
                yield from _operations(before[index], value, f"{path}/{index}")
    # True equals 1 in Python and nowhere else.
    elif before != after or type(before) is not type(after) or isinstance(before, list):
        yield {"op": "replace", "path": path, "value": after}
