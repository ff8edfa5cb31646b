"""Checks ResourceSlices as the API server does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from moorage.cel.functions import is_semver
from moorage.dra.objects import DeviceBody, SliceSpec
from moorage.parsing import parse_nanos
from moorage.podspec.device_claims import ClaimError

#: Limits of Kubernetes: devices of a slice, and of one in which some have taints or take of counters.
MAX_DEVICES, MAX_DEVICES_WITH_MORE = 128, 64
#: Attributes and capacities of a device together; sets of counters of a slice.
MAX_ATTRIBUTES, MAX_COUNTER_SETS = 32, 8
#: Characters of the text or version of an attribute.
MAX_VALUE = 64
EFFECTS = ("None", "NoSchedule", "NoExecute")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_DRIVER = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", re.ASCII)
#: Of attributes and capacities, with their domain or without.
_QUALIFIED = re.compile(rf"({_DRIVER.pattern}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}", re.ASCII | re.IGNORECASE)
_TYPES: Mapping[str, type | tuple[type, ...]] = {"string": str, "version": str, "int": int, "bool": bool}
_LISTS = {f"{name}s": found for name, found in _TYPES.items()}
Path = tuple[str | int, ...]


def slice_errors(spec: SliceSpec, nodes: frozenset[str]) -> Iterator[ClaimError]:
    """Yields what is wrong with a slice of a cluster with these nodes."""
    at: Path = ("spec",)
    if not _DRIVER.fullmatch(spec.driver):
        yield ClaimError((*at, "driver"), f"{spec.driver!r} is not a name of a driver")
    if not spec.pool.name:
        yield ClaimError((*at, "pool", "name"), "is required")
    if spec.pool.resource_slice_count < 1:
        yield ClaimError((*at, "pool", "resourceSliceCount"), "must be at least 1")
    if spec.pool.generation < 0:
        yield ClaimError((*at, "pool", "generation"), "must not be negative")
    each = bool(spec.per_device_node_selection)
    where = [bool(spec.node_name), spec.node_selector is not None, bool(spec.all_nodes), each]
    if sum(where) != 1:
        yield ClaimError(at, "a slice has one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection")
    if spec.node_name and spec.node_name not in nodes:
        yield ClaimError((*at, "nodeName"), f"{spec.node_name!r} is not a node of this cluster")
    yield from _counter_errors(spec, at)
    yield from _device_errors(spec, nodes, each, at)


def _counter_errors(spec: SliceSpec, at: Path) -> Iterator[ClaimError]:
    sets = spec.shared_counters or []
    if len(sets) > MAX_COUNTER_SETS:
        yield ClaimError((*at, "sharedCounters"), f"a slice has at most {MAX_COUNTER_SETS} sets of counters")
    names: set[str] = set()
    for i, found in enumerate(sets):
        here = (*at, "sharedCounters", i)
        if not _NAME.fullmatch(found.name) or found.name in names:
            yield ClaimError((*here, "name"), "each set of counters has a name of its own")
        names.add(found.name)
        if not found.counters:
            yield ClaimError((*here, "counters"), "a set has counters")
        for name, amount in (found.counters or {}).items():
            yield from amount_errors(amount, (*here, "counters", name))


def _device_errors(spec: SliceSpec, nodes: frozenset[str], each: bool, at: Path) -> Iterator[ClaimError]:
    devices = spec.devices or []
    has_more = any(d.body.taints or d.body.consumes_counters for d in devices)
    most = MAX_DEVICES_WITH_MORE if has_more else MAX_DEVICES
    if len(devices) > most:
        why = ", because some have taints or take of counters" if has_more else ""
        yield ClaimError((*at, "devices"), f"a slice has at most {most} devices{why}")
    names: set[str] = set()
    for i, device in enumerate(devices):
        here, body = (*at, "devices", i), device.body
        if not _NAME.fullmatch(device.name):
            yield ClaimError((*here, "name"), f"{device.name!r} is not a name of a device")
        elif device.name in names:
            yield ClaimError((*here, "name"), f"another device has the name {device.name}")
        names.add(device.name)
        yield from _body_errors(body, here if device.basic is None else (*here, "basic"))
        where = [bool(body.node_name), body.node_selector is not None, bool(body.all_nodes)]
        if sum(where) != int(each):
            message = (
                "has one of nodeName, nodeSelector and allNodes" if each else "has no nodes but those of its slice"
            )
            yield ClaimError(here, f"the device {message}")
        if body.node_name and body.node_name not in nodes:
            yield ClaimError((*here, "nodeName"), f"{body.node_name!r} is not a node of this cluster")


def _body_errors(body: DeviceBody, at: Path) -> Iterator[ClaimError]:
    attributes, capacity = body.attributes or {}, body.capacity or {}
    if len(attributes) + len(capacity) > MAX_ATTRIBUTES:
        yield ClaimError((*at, "attributes"), f"a device has at most {MAX_ATTRIBUTES} attributes and capacities")
    for name, value in attributes.items():
        yield from _name_errors(name, (*at, "attributes", name))
        if not _is_attribute(value):
            message = "an attribute is one of {string: …}, {int: …}, {bool: …}, {version: …} or a list of them"
            yield ClaimError((*at, "attributes", name), message)
            continue
        kind, inner = next(iter(value.items()))
        for one in inner if isinstance(inner, list) else [inner]:
            if message := _value_error(kind.removesuffix("s"), one):
                yield ClaimError((*at, "attributes", name, kind), message)
    for name, value in capacity.items():
        yield from _name_errors(name, (*at, "capacity", name))
        yield from amount_errors(value, (*at, "capacity", name))
    for i, taint in enumerate(body.taints or ()):
        yield from taint_errors(taint, (*at, "taints", i))
    for i, use in enumerate(body.consumes_counters or ()):
        here = (*at, "consumesCounters", i)
        if not use.counter_set:
            yield ClaimError((*here, "counterSet"), "is required")
        for name, amount in (use.counters or {}).items():
            yield from amount_errors(amount, (*here, "counters", name))


def _name_errors(name: str, at: Path) -> Iterator[ClaimError]:
    if not _QUALIFIED.fullmatch(name):
        message = f"{name[:80]!r} is no name of an attribute or capacity: letters, digits and _, at most 32, after DOMAIN/ or alone"
        yield ClaimError(at, message)


def _value_error(kind: str, value: Any) -> str:
    """Returns what is wrong with a value of this type; "" for nothing."""
    if kind == "int":
        return "" if -(2**63) <= value < 2**63 else f"{value} has more than 64 bits"
    if kind in ("string", "version") and len(value) > MAX_VALUE:
        return f"has {len(value)} characters; at most {MAX_VALUE} are allowed"
    if kind == "version" and not is_semver(value):
        return f"{value!r} is no semantic version, such as 1.20.0"
    return ""


def _is_attribute(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) != 1:
        return False
    kind, inner = next(iter(value.items()))
    if kind in _LISTS:
        return isinstance(inner, list) and all(_is_of(one, _LISTS[kind]) for one in inner)
    return kind in _TYPES and _is_of(inner, _TYPES[kind])


def _is_of(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def taint_errors(taint: Mapping[str, Any], at: Path) -> Iterator[ClaimError]:
    if not taint.get("key"):
        yield ClaimError((*at, "key"), "is required")
    if taint.get("effect") not in EFFECTS:
        yield ClaimError((*at, "effect"), f"must be one of {', '.join(EFFECTS)}")


def amount_errors(value: Any, at: Path) -> Iterator[ClaimError]:
    """Yields what is wrong with an amount, or with a capacity or counter that has one."""
    amount = value.get("value") if isinstance(value, dict) else value
    try:
        if parse_nanos(str(amount)) < 0:
            yield ClaimError(at, "must not be negative")
    except ValueError as error:
        yield ClaimError(at, str(error))
