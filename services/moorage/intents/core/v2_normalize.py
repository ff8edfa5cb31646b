"""Reads the body of a /v2 resource in any accepted spelling and shape into the one form that is stored. All mistakes are
listed together; unknown fields are dropped with a warning."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from moorage.model import v2_bodies
from moorage.model.problems import Problem, Refused, Violation, invalid
from moorage.model.reasons import Warn
from moorage.model.v2_resources import COMPOSITE_APP, ResourceKind

from . import lenient_decode, v2_rules
from .diagnostics import Diagnostics
from .field_rules import check_name
from .v2_requirements import requirement
from .v2_spelling import fields_of, plain, spelled
from .written_paths import WrittenPaths


class NormalizedBody(NamedTuple):
    """A body in its stored form, with the names that it gives itself: what its path must end with."""

    body: msgspec.Struct
    names: tuple[str, ...]
    warnings: tuple[Warn, ...]
    written: WrittenPaths


def read(kind: ResourceKind, data: Any) -> NormalizedBody:
    """Raises Refused with every violation."""
    if data is None:
        raise Refused(Problem(title="Not readable", status=400, code="Empty", detail="the body is empty"))
    if not isinstance(data, dict):
        raise Refused(invalid([Violation(path="", code="WrongType", message="the body must be an object")]))
    diagnostics = Diagnostics()
    written = WrittenPaths()
    body = _body(kind, spelled(data, kind.body, "", diagnostics, written), diagnostics, written)
    names = _names(kind, body, diagnostics)
    v2_rules.body(body, diagnostics)
    violations = written.violations(diagnostics.errors)
    errors = [violation for violation in violations if violation.code != "UnknownField"]
    if errors:
        first: dict[str, Violation] = {}  # by path: the others at a place follow from it
        for error in errors:
            first.setdefault(error.path, error)
        raise Refused(invalid(list(first.values())))
    warnings = tuple(Warn(code=v.code, message=f"{v.path}: {v.message}") for v in violations)
    return NormalizedBody(body, names, warnings, written)


def _body(kind: ResourceKind, data: dict[str, Any], diagnostics: Diagnostics, written: WrittenPaths) -> msgspec.Struct:
    if kind.body is v2_bodies.Requirement:
        return requirement(data, diagnostics, written)
    if kind.body is v2_bodies.Consumer:
        data = _flat_consumer(data, diagnostics, written)
    return lenient_decode.struct(data, kind.body, "", diagnostics)


def _names(kind: ResourceKind, body: Any, diagnostics: Diagnostics) -> tuple[str, ...]:
    if isinstance(body, v2_bodies.ClusterLabel):
        v2_rules.label(body.cluster_label, diagnostics)
        return (body.cluster_label,)
    v2_rules.metadata(body.metadata, diagnostics)
    if kind is COMPOSITE_APP:
        version = body.spec.composite_app_version
        if version:
            check_name(version, "spec.compositeAppVersion", diagnostics)
        return (body.metadata.name, version)
    return (body.metadata.name,)


def _flat_consumer(data: dict[str, Any], diagnostics: Diagnostics, written: WrittenPaths) -> dict[str, Any]:
    """Accepts `spec.consumer.{apiVersion, kind, name, container-name}` as well as `spec.{…, container}`."""
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return data
    key = next((k for k in spec if plain(str(k)) == "consumer"), "consumer")
    inner = spec.get(key)
    spec = {k: v for k, v in spec.items() if k != key}
    flat = spelled(spec, v2_bodies.ConsumerSpec, "spec", diagnostics, written)
    if inner is None:
        return {**data, "spec": flat}
    if not isinstance(inner, dict):
        diagnostics.error(f"spec.{key}", "WrongType", "must be an object")
        return {**data, "spec": flat}
    at = f"{written.of('spec')}.{key}"
    inside = WrittenPaths()
    nested = spelled(inner, v2_bodies.ConsumerSpec, "", diagnostics, inside)
    for field in fields_of(v2_bodies.ConsumerSpec)[0]:
        if field not in flat:
            written.add(f"spec.{field}", f"{at}.{inside.of(field)}")
    for name in flat.keys() & nested.keys():
        if flat[name] != nested[name]:
            message = "is given twice, with and without consumer, and differs"
            diagnostics.error(f"spec.{name}", "Contradiction", message)
    return {**data, "spec": {**flat, **nested}}
