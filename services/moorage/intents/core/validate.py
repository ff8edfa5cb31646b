"""Decodes and checks documents, in one way for the command line, REST and NATS. All violations are answered together, each
with its path and a code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from moorage.model.documents import (
    INTENT_SPECS,
    AffinityIntentSpec,
    Application,
    HpaIntentSpec,
    IntentDocument,
    PlacementIntentSpec,
)
from moorage.model.names import GroupName
from moorage.model.problems import Refused, Violation, invalid
from moorage.model.resource_classes import FLEET_KINDS

from . import lenient_decode, validation_rules
from .diagnostics import MAX_ERRORS, Diagnostics
from .manifest_rules import AppObjects

APPLICATION = "Application"
#: Kind → JSON Schemas of its spec, as controllers registered them.
Kinds = Mapping[str, list[dict[str, Any]]]

_T = TypeVar("_T", bound=msgspec.Struct)


class Accepted(NamedTuple):
    """An Application that keeps all rules, with the objects of its apps."""

    document: Application
    objects: list[AppObjects]
    group: GroupName


class AcceptedIntent(NamedTuple):
    """A standalone intent. Its `spec` is decoded for the built-in kinds, and plain data for others."""

    document: IntentDocument
    spec: Any
    group: GroupName

    @property
    def key(self) -> str:
        return f"{self.document.kind}/{self.document.metadata.name}"


def accept(data: dict[str, Any], kinds: Kinds) -> Accepted | AcceptedIntent:
    """Raises Refused with every violation."""
    kind = data.get("kind")
    if kind == APPLICATION:
        return application(data)
    if isinstance(kind, str) and (kind in INTENT_SPECS or kind in kinds):
        return intent(data, kinds)
    known = ", ".join([APPLICATION, *INTENT_SPECS, *FLEET_KINDS, "Machine", *sorted(kinds)])
    if kind == "Fleet":
        message = "a Fleet is for the simulator; apply it with: moorage fleet apply FILE"
    elif isinstance(kind, str) and kind:
        message = f"unknown kind {kind!r}; known are {known}"
    else:
        message = f"is required: one of {known}"
    raise Refused(invalid([Violation(path="kind", code="UnknownKind", message=message)]))


def application(data: dict[str, Any], group: GroupName | None = None) -> Accepted:
    """`group`: the group of the document, where its name does not tell."""
    diagnostics = Diagnostics()
    document = _struct(data, Application, "", diagnostics)
    formal = len(diagnostics.errors)
    objects = validation_rules.application(document, diagnostics)
    if diagnostics.errors:
        raise Refused(invalid(_by_place(diagnostics.errors, formal)))
    named = GroupName(document.metadata.project, document.metadata.name, "v1", "default")
    return Accepted(document, objects, group or named)


def intent(data: dict[str, Any], kinds: Kinds) -> AcceptedIntent:
    diagnostics = Diagnostics()
    document = _struct(data, IntentDocument, "", diagnostics)
    builtin = INTENT_SPECS.get(document.kind)
    spec: Any = document.spec
    if builtin is not None and isinstance(data.get("spec"), dict):
        spec = _struct(document.spec, builtin, "spec", diagnostics)
    formal = len(diagnostics.errors)
    validation_rules.version(document.api_version, diagnostics)
    validation_rules.metadata(document.metadata, diagnostics)
    group = validation_rules.group(document.spec.get("group"), document.metadata.project, diagnostics)
    if isinstance(spec, HpaIntentSpec):
        validation_rules.hpa_intent(spec, diagnostics)
    elif isinstance(spec, PlacementIntentSpec):
        validation_rules.placement_intent(spec, diagnostics)
    elif isinstance(spec, AffinityIntentSpec):
        validation_rules.affinity_intent(spec, diagnostics)
    else:
        for schema in kinds.get(document.kind, ()):
            from . import json_schemas  # takes a while, and most meshes have no such controllers

            json_schemas.check(document.spec, schema, diagnostics)
    if diagnostics.errors or group is None:
        raise Refused(invalid(_by_place(diagnostics.errors, formal)))
    if group.project != document.metadata.project:
        document.metadata.project = group.project
    return AcceptedIntent(document, spec, group)


def read_stored(data: dict[str, Any]) -> AcceptedIntent:
    """Decodes an intent that was accepted before, perhaps by another schema than today's."""
    document = msgspec.convert(data, IntentDocument)
    builtin = INTENT_SPECS.get(document.kind)
    spec = document.spec if builtin is None else lenient_decode.struct(document.spec, builtin, "spec", Diagnostics())
    group = GroupName.parse(document.spec["group"], document.metadata.project)
    return AcceptedIntent(document, spec, group)


def _struct(data: Any, kind: type[_T], path: str, diagnostics: Diagnostics) -> _T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return lenient_decode.struct(data, kind, path, diagnostics)


def _by_place(errors: Iterable[Violation], formal: int) -> list[Violation]:
    """Keeps one violation for each place. The first `formal` errors are about types; a rule that fails where the type is
    wrong adds nothing."""
    shown: dict[str, Violation] = {}
    broken: list[str] = []
    for i, error in enumerate(errors):
        if i < formal and error.code != "UnknownField":
            broken.append(error.path)
        elif i >= formal and any(_follows_from(error.path, place) for place in broken):
            continue
        shown.setdefault(error.path, error)
        if len(shown) == MAX_ERRORS:
            break
    return list(shown.values())


def _follows_from(path: str, broken: str) -> bool:
    """Returns whether a violation is at the broken place, inside it, or about the object that lacks it."""
    if not broken or path == broken or path.startswith((broken + ".", broken + "[")):
        return True
    return path == broken.rpartition(".")[0]
