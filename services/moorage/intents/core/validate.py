"""From the data of a document to one that is checked: the one path for the command line, REST and NATS. What is wrong
is answered all at once, each violation with its path and a code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from moorage.model.documents import (
    AffinityIntentSpec,
    Application,
    HpaIntentSpec,
    IntentDocument,
    PlacementIntentSpec,
)
from moorage.model.names import GroupName
from moorage.model.problems import Refused, Violation, invalid

from . import json_schemas, lenient_decode, validation_rules
from .manifest_rules import Objects
from .violations import reporter

APPLICATION = "Application"
BUILTIN: dict[str, type[msgspec.Struct]] = {
    "HpaIntent": HpaIntentSpec,
    "PlacementIntent": PlacementIntentSpec,
    "AffinityIntent": AffinityIntentSpec,
}
#: Kind → JSON Schemas of its spec, as controllers registered them.
Kinds = Mapping[str, list[dict[str, Any]]]

_T = TypeVar("_T", bound=msgspec.Struct)


class Accepted(NamedTuple):
    """An Application that keeps all rules, with what its manifests hold."""

    document: Application
    objects: list[Objects]
    group: GroupName


class AcceptedIntent(NamedTuple):
    """An intent of its own. `spec` is decoded for the built-in kinds, plain data for others."""

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
    if isinstance(kind, str) and (kind in BUILTIN or kind in kinds):
        return intent(data, kinds)
    known = ", ".join([APPLICATION, *BUILTIN, *sorted(kinds)])
    if kind == "Fleet":
        message = "a fleet is for the simulator: moorage fleet apply FILE"
    elif isinstance(kind, str) and kind:
        message = f"unknown kind {kind!r}; known are {known}"
    else:
        message = f"is required: one of {known}"
    raise Refused(invalid([Violation(path="kind", code="UnknownKind", message=message)]))


def application(data: dict[str, Any], group: GroupName | None = None) -> Accepted:
    """`group`: whose document this is, where that is not said by its name."""
    errors: list[Violation] = []
    document = _struct(data, Application, "", errors)
    formal = len(errors)
    objects = validation_rules.application(document, reporter(errors))
    if errors:
        raise Refused(invalid(_tidy(errors, formal)))
    own = GroupName(document.metadata.project, document.metadata.name, "v1", "default")
    return Accepted(document, objects, group or own)


def intent(data: dict[str, Any], kinds: Kinds) -> AcceptedIntent:
    errors: list[Violation] = []
    document = _struct(data, IntentDocument, "", errors)
    builtin = BUILTIN.get(document.kind)
    spec: Any = document.spec
    if builtin is not None and isinstance(data.get("spec"), dict):
        spec = _struct(document.spec, builtin, "spec", errors)
    formal = len(errors)
    report = reporter(errors)
    validation_rules.version(document.api_version, report)
    validation_rules.metadata(document.metadata, report)
    group = validation_rules.group(document.spec.get("group"), document.metadata.project, report)
    if isinstance(spec, HpaIntentSpec):
        validation_rules.hpa_intent(spec, report)
    elif isinstance(spec, PlacementIntentSpec):
        validation_rules.placement_intent(spec, report)
    elif isinstance(spec, AffinityIntentSpec):
        validation_rules.affinity_intent(spec, report)
    else:
        for schema in kinds.get(document.kind, ()):
            json_schemas.check(document.spec, schema, report)
    if errors or group is None:
        raise Refused(invalid(_tidy(errors, formal)))
    if group.project != document.metadata.project:
        document.metadata.project = group.project
    return AcceptedIntent(document, spec, group)


def read_stored(data: dict[str, Any]) -> AcceptedIntent:
    """An intent that was accepted before, by whatever schema then held."""
    document = msgspec.convert(data, IntentDocument)
    builtin = BUILTIN.get(document.kind)
    spec = document.spec if builtin is None else lenient_decode.struct(document.spec, builtin, "spec", [])
    group = GroupName.parse(document.spec["group"], document.metadata.project)
    return AcceptedIntent(document, spec, group)


def _struct(data: Any, kind: type[_T], path: str, errors: list[Violation]) -> _T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return lenient_decode.struct(data, kind, path, errors)


def _tidy(errors: Iterable[Violation], formal: int) -> list[Violation]:
    """One violation for each place: a rule that stumbles over what has the wrong form anyway says nothing new."""
    shown: dict[str, Violation] = {}
    broken: list[str] = []
    for i, error in enumerate(errors):
        if i < formal and error.code != "UnknownField":
            broken.append(error.path)
        elif i >= formal and any(_within(error.path, b) for b in broken):
            continue
        shown.setdefault(error.path, error)
        if len(shown) == json_schemas.MAX_ERRORS:
            break
    return list(shown.values())


def _within(path: str, broken: str) -> bool:
    """At the broken place, inside of it, or about what it is a field of and now lacks."""
    if not broken or path == broken or path.startswith((broken + ".", broken + "[")):
        return True
    return path == broken.rpartition(".")[0]
