"""Reads a resource requirement: both its current shape and the older one, which has no `spec.resource`."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.model import v2_bodies
from moorage.model.documents import Need
from moorage.podspec.needs import is_mandatory, label_text

from . import lenient_decode
from .consumer_rules import check_need
from .diagnostics import Diagnostics
from .v2_spelling import fields_of, plain, spelled
from .written_paths import WrittenPaths

_AMOUNT_FIELDS, _LABEL_FIELDS = ("requests", "limits", "units", "group"), ("key", "value")
_MACHINE_FIELDS = ("window", "max_runtime")


class _Body(v2_bodies.Body, kw_only=True):
    metadata: v2_bodies.Meta
    spec: dict[str, Any]


class _Spec(msgspec.Struct, rename="camel", kw_only=True):
    mandatory: bool | None = None
    weight: int | None = None
    allocatable: bool | None = None


class _Resource(v2_bodies.Body, kw_only=True):
    name: str | None = None
    requests: int | float | str | None = None
    limits: int | float | str | None = None
    units: str | None = None
    group: str | None = None
    key: str | None = None
    value: str | bool | int | float | None = None
    class_: str | None = msgspec.field(default=None, name="class")
    count: int | float | str | None = None
    one_of: list[v2_bodies.ClassChoice] | None = None
    capacity: dict[str, int | float | str] | None = None
    algorithm: str | None = None
    machine: str | None = None
    window: str | None = None
    max_runtime: str | None = None


def requirement(data: dict[str, Any], diagnostics: Diagnostics, written: WrittenPaths) -> v2_bodies.Requirement:
    body = lenient_decode.struct(data, _Body, "", diagnostics)
    given = body.spec if isinstance(data.get("spec"), dict) else {}
    top, flat, nested = _split(given, diagnostics, written)
    spec = lenient_decode.struct(top, _Spec, "spec", diagnostics)
    if nested is None:
        at, source = "spec", flat
    else:
        at = "spec.resource"
        if flat:
            message = f"repeats what {written.of(f'spec.{min(flat)}')} says; keep only one of the two"
            diagnostics.error(at, "Contradiction", message)
        source = spelled(nested, _Resource, at, diagnostics, written)
    before = len(diagnostics.errors)
    resource = lenient_decode.struct(source, _Resource, at, diagnostics)
    amount = _amount(spec, resource, at, diagnostics, is_readable=len(diagnostics.errors) == before)
    return v2_bodies.Requirement(
        metadata=body.metadata,
        spec=v2_bodies.RequirementSpec(
            mandatory=is_mandatory(Need(mandatory=spec.mandatory, weight=spec.weight)),
            allocatable=not amount.key,
            weight=msgspec.UNSET if spec.weight is None else spec.weight,
            resource=amount,
        ),
    )


def _split(
    spec: dict[str, Any], diagnostics: Diagnostics, written: WrittenPaths
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Returns the fields of the requirement, those of the resource that stand beside them (the older shape), and
    `resource`."""
    top_names, resource_names = fields_of(_Spec)[1], fields_of(_Resource)[1]
    top: dict[str, Any] = {}
    flat: dict[str, Any] = {}
    nested: Any = None
    for key, value in spec.items():
        word = plain(str(key))
        if name := top_names.get(word) or resource_names.get(word) or ("resource" if word == "resource" else ""):
            written.add(f"spec.{name}", f"{written.of('spec')}.{key}")
        if word in top_names:
            top[name] = value
        elif word in resource_names:
            flat[name] = value
        elif word == "resource":
            nested = value
        else:
            message = "unknown field; known are mandatory, weight, allocatable, resource"
            diagnostics.error(f"spec.{key}", "UnknownField", message)
    return top, flat, nested


def _amount(
    spec: _Spec, resource: _Resource, at: str, diagnostics: Diagnostics, *, is_readable: bool
) -> v2_bodies.Amount:
    if spec.weight is not None and not 1 <= spec.weight <= 10:
        diagnostics.error("spec.weight", "OutOfRange", "must be 1 to 10")
    is_class = resource.class_ is not None or resource.one_of is not None
    whole = "machine" if resource.machine is not None else "class" if is_class else ""
    if whole and spec.allocatable is False:
        diagnostics.error(f"{at}.{whole}", "Contradiction", "is only for allocatable resources")
    if whole == "machine":
        return _machine(spec, resource, at, diagnostics, check=is_readable)
    for field in _MACHINE_FIELDS:
        if getattr(resource, field) is not None:
            diagnostics.error(f"{at}.{_encoded(field)}", "Contradiction", "is only for machines")
    if whole == "class":
        return _devices(resource, at, diagnostics, check=is_readable)
    amounts = [field for field in _AMOUNT_FIELDS if getattr(resource, field) is not None]
    labels = [field for field in _LABEL_FIELDS if getattr(resource, field) is not None]
    if amounts and labels:
        diagnostics.error(
            f"{at}.{labels[0]}",
            "Contradiction",
            f"belongs to a node label, {amounts[0]} to a resource; a requirement is for one or the other",
        )
        return v2_bodies.Amount()
    is_allocatable = not labels if spec.allocatable is None else spec.allocatable
    if spec.allocatable and labels:
        diagnostics.error(
            f"{at}.{labels[0]}", "Contradiction", "is only for labels: an allocatable resource has requests and limits"
        )
    elif spec.allocatable is False and amounts:
        diagnostics.error(
            f"{at}.{amounts[0]}", "Contradiction", "is only for allocatable resources: a label has a value"
        )
    if is_allocatable:
        return _allocatable(resource, at, diagnostics, check=not labels and is_readable)
    return _label(resource, at, diagnostics, check=not amounts)


def _devices(resource: _Resource, at: str, diagnostics: Diagnostics, *, check: bool) -> v2_bodies.Amount:
    found = v2_bodies.Amount(
        name=resource.name or "",
        group=resource.group or "",
        class_=resource.class_ or "",
        count=resource.count,
        one_of=resource.one_of or [],
        capacity=resource.capacity or {},
        algorithm=resource.algorithm or "",
    )
    others = [
        field for field in ("requests", "limits", "units", "key", "value") if getattr(resource, field) is not None
    ]
    if others:
        diagnostics.error(f"{at}.{others[0]}", "Contradiction", "belongs to a resource or a label, not to a class")
    elif not (found.class_ or found.one_of):
        field, what = ("class", "the name of a class") if resource.one_of is None else ("oneOf", "at least one choice")
        diagnostics.error(f"{at}.{field}", "Required", f"is required: {what}")
    elif check:
        _check(msgspec.convert(whole_need(found), Need), at, diagnostics)
    return found


def _machine(spec: _Spec, resource: _Resource, at: str, diagnostics: Diagnostics, *, check: bool) -> v2_bodies.Amount:
    found = v2_bodies.Amount(
        name=resource.name or "",
        machine=resource.machine or "",
        window=resource.window or "",
        max_runtime=resource.max_runtime or "",
    )
    own = ("name", "machine", *_MACHINE_FIELDS)
    others = [
        field for field in _Resource.__struct_fields__ if field not in own and getattr(resource, field) is not None
    ]
    if not found.machine:
        diagnostics.error(f"{at}.machine", "Required", "is required: the machine type, GROUP/TYPE")
    elif others:
        diagnostics.error(
            f"{at}.{_encoded(others[0])}", "Contradiction", "belongs beside no machine: a slot has a size"
        )
    elif check:
        need = msgspec.convert(whole_need(found), Need)
        _check(msgspec.structs.replace(need, mandatory=spec.mandatory, weight=spec.weight), at, diagnostics)
    return found


def _encoded(field: str) -> str:
    return next(f.encode_name for f in msgspec.structs.fields(_Resource) if f.name == field)


def whole_need(amount: v2_bodies.Amount) -> dict[str, Any]:
    """Returns the fields of the need for devices or for a machine that a requirement states; none if it states another one."""
    if not (amount.class_ or amount.one_of or amount.machine):
        return {}
    fields: dict[str, Any] = msgspec.to_builtins(amount)
    return {key: value for key, value in fields.items() if key != "name"}


def _allocatable(resource: _Resource, at: str, diagnostics: Diagnostics, *, check: bool) -> v2_bodies.Amount:
    name, units, group = resource.name or "", resource.units or "", resource.group or ""
    if not name:
        diagnostics.error(f"{at}.name", "Required", "is required: the Kubernetes name of the resource")
    if check:
        need = Need(
            resource=name or "cpu", requests=resource.requests, limits=resource.limits, units=units, group=group
        )
        _check(need, at, diagnostics)
    return v2_bodies.Amount(
        name=name, requests=_number(resource.requests), limits=_number(resource.limits), units=units, group=group
    )


def _label(resource: _Resource, at: str, diagnostics: Diagnostics, *, check: bool) -> v2_bodies.Amount:
    key = resource.key or resource.name or ""
    if resource.key and resource.name and resource.key != resource.name:
        diagnostics.error(f"{at}.name", "Contradiction", f"is {resource.name!r}, but key is {resource.key!r}")
    if not key:
        diagnostics.error(
            f"{at}.{'name' if at == 'spec' else 'key'}", "Required", "is required: the name of a node label"
        )
    if resource.value is None:
        diagnostics.error(f"{at}.value", "Required", "is required: the value of the node label")
    value = "" if resource.value is None else label_text(resource.value)
    if key and check:
        _check(Need(label=key, value=value), at, diagnostics, label_field="key" if resource.key else "name")
    return v2_bodies.Amount(key=key, value=value)


def _check(need: Need, at: str, diagnostics: Diagnostics, label_field: str = "key") -> None:
    checked = Diagnostics()
    check_need(need, at, checked)
    for error in checked.errors:
        path = error.path.replace(f"{at}.label", f"{at}.{label_field}").replace(f"{at}.resource", f"{at}.name")
        diagnostics.error(path, error.code, error.message)


def _number(value: float | str | None) -> float | str | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16 else value
