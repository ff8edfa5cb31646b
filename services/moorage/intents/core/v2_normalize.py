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
from .field_rules import check_name
from .v2_requirements import requirement
from .v2_spelling import plain, spelled
from .violations import reporter


class NormalizedBody(NamedTuple):
    """A body in its stored form, with the names that it gives itself: what its path must end with."""

    body: msgspec.Struct
    names: tuple[str, ...]
    warnings: tuple[Warn, ...]


def read(kind: ResourceKind, data: Any) -> NormalizedBody:
    """Raises Refused with every violation."""
    if data is None:
        raise Refused(Problem(title="Not readable", status=400, code="Empty", detail="the body is empty"))
    if not isinstance(data, dict):
        raise Refused(invalid([Violation(path="", code="WrongType", message="the body must be an object")]))
    violations: list[Violation] = []
    body = _body(kind, spelled(data, kind.body, "", violations), violations)
    names = _names(kind, body, violations)
    v2_rules.body(body, reporter(violations))
    errors = [violation for violation in violations if violation.code != "UnknownField"]
    if errors:
        first: dict[str, Violation] = {}  # by path: the others at a place follow from it
        for error in errors:
            first.setdefault(error.path, error)
        raise Refused(invalid(list(first.values())))
    warnings = tuple(Warn(code=v.code, message=f"{v.path}: {v.message}") for v in violations)
    return NormalizedBody(body, names, warnings)


def _body(kind: ResourceKind, data: dict[str, Any], violations: list[Violation]) -> msgspec.Struct:
    if kind.body is v2_bodies.Requirement:
        return requirement(data, violations)
    if kind.body is v2_bodies.Consumer:
        data = _flat_consumer(data, violations)
    return lenient_decode.struct(data, kind.body, "", violations)


def _names(kind: ResourceKind, body: Any, violations: list[Violation]) -> tuple[str, ...]:
    report = reporter(violations)
    if isinstance(body, v2_bodies.ClusterLabel):
        v2_rules.label(body.cluster_label, report)
        return (body.cluster_label,)
    v2_rules.metadata(body.metadata, report)
    if kind is COMPOSITE_APP:
        version = body.spec.composite_app_version
        if version:
            check_name(version, "spec.compositeAppVersion", report)
        return (body.metadata.name, version)
    return (body.metadata.name,)


def _flat_consumer(data: dict[str, Any], violations: list[Violation]) -> dict[str, Any]:
    """Accepts `spec.consumer.{apiVersion, kind, name, container-name}` as well as `spec.{…, container}`."""
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return data
    spec = {("consumer" if plain(str(k)) == "consumer" else k): v for k, v in spec.items()}
    inner = spec.pop("consumer", None)
    flat = spelled(spec, v2_bodies.ConsumerSpec, "spec", violations)
    if inner is None:
        return {**data, "spec": flat}
    if not isinstance(inner, dict):
        violations.append(Violation(path="spec.consumer", code="WrongType", message="must be an object"))
        return {**data, "spec": flat}
    nested = spelled(inner, v2_bodies.ConsumerSpec, "spec.consumer", violations)
    for name in flat.keys() & nested.keys():
        if flat[name] != nested[name]:
            message = "is given twice, with and without consumer, and differs"
            violations.append(Violation(path=f"spec.{name}", code="Contradiction", message=message))
    return {**data, "spec": {**flat, **nested}}
