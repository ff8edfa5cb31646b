"""Maps the spellings of field names that clients of /v2 use to the one that is stored."""

from __future__ import annotations

import types
from functools import cache, lru_cache
from typing import Any

import msgspec

from moorage.model import v2_bodies

from .diagnostics import Diagnostics
from .written_paths import WrittenPaths

#: Other names of fields, by the type that has them. Case, dashes and underscores never matter.
_ALIASES: dict[type[msgspec.Struct], dict[str, str]] = {
    v2_bodies.CompositeAppSpec: {"version": "compositeAppVersion"},
    v2_bodies.OfAppSpec: {"appname": "app"},
    v2_bodies.AppIntentSpec: {"appname": "app"},
    v2_bodies.OverrideValues: {"appname": "app"},
    v2_bodies.GroupSpec: {"profile": "compositeProfile"},
    v2_bodies.ClusterTerm: {
        "provider": "clusterProvider",
        "providername": "clusterProvider",
        "clusterprovidername": "clusterProvider",
        "clustername": "cluster",
        "clusterlabelname": "clusterLabel",
        "label": "clusterLabel",
        "labelname": "clusterLabel",
    },
    v2_bodies.ConsumerSpec: {"containername": "container"},
    v2_bodies.ClusterLabel: {"labelname": "clusterLabel", "label": "clusterLabel"},
    v2_bodies.ClusterReferenceSpec: {
        "provider": "clusterProvider",
        "clusterprovidername": "clusterProvider",
        "clustername": "cluster",
    },
    v2_bodies.KeyValues: {"keyvalue": "kv"},
}
#: Read-only parts of answers: a client that sends back what it got is not warned about them.
_READ_ONLY = {"resourceconsumers", "resourcerequirements", "status"}
#: Older shapes have fields of their own here, which their own readers handle.
_READ_ELSEWHERE = (v2_bodies.ConsumerSpec, v2_bodies.RequirementSpec)


@lru_cache(4096)
def plain(key: str) -> str:
    """Returns the key without what does not matter in it."""
    return key.replace("-", "").replace("_", "").lower()


@cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the types of a Struct's fields by name, and the names by plain spelling."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return fields, {plain(name): name for name in fields} | _ALIASES.get(kind, {})


def spelled(
    data: Any,
    kind: type[msgspec.Struct],
    path: str,
    diagnostics: Diagnostics,
    written: WrittenPaths,
) -> Any:
    """Renames all keys of `data` to the field names of `kind`, also in nested objects, and notes in `written` where they
    were. `path` is that of the stored fields."""
    if not isinstance(data, dict):
        return data
    fields, names = fields_of(kind)
    place = written.of(path)
    if place == path and data.keys() <= fields.keys():  # as most clients write them
        return {
            name: _nested(value, fields[name], f"{path}.{name}" if path else name, diagnostics, written)
            for name, value in data.items()
        }
    result: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for key, value in data.items():
        name: str = key if key in fields else names.get(plain(str(key)), str(key))
        stored = f"{path}.{name}" if path else name
        at = f"{place}.{key}" if path else str(key)
        if name not in fields and plain(str(key)) in _READ_ONLY:
            continue
        if name in result:
            if result[name] != value:
                message = f"is {value!r}, but {spellings[name]} means the same and is {result[name]!r}"
                diagnostics.error(at, "Contradiction", message[:300])
            continue
        spellings[name] = str(key)
        if at != stored:
            written.add(stored, at)
        result[name] = _nested(value, fields[name], stored, diagnostics, written) if name in fields else value
    return result


def _nested(value: Any, kind: Any, path: str, diagnostics: Diagnostics, written: WrittenPaths) -> Any:
    if not isinstance(value, dict | list):
        return value
    if isinstance(kind, types.UnionType):
        kind = next((k for k in kind.__args__ if isinstance(k, type) and issubclass(k, msgspec.Struct)), kind)
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return value if kind in _READ_ELSEWHERE else spelled(value, kind, path, diagnostics, written)
    args: tuple[Any, ...] = getattr(kind, "__args__", ())
    if isinstance(value, dict) and len(args) == 2 and isinstance(args[1], type) and issubclass(args[1], msgspec.Struct):
        return {k: spelled(v, args[1], f"{path}.{k}", diagnostics, written) for k, v in value.items()}
    if isinstance(value, list) and args and isinstance(args[0], type) and issubclass(args[0], msgspec.Struct):
        return [spelled(item, args[0], f"{path}[{i}]", diagnostics, written) for i, item in enumerate(value)]
    return value
