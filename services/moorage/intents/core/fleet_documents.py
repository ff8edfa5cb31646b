"""Decodes and checks resource classes, sources of devices, quotas and grants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from moorage.classes import (
    ALGORITHM,
    class_problems,
    class_warnings,
    grant_problems,
    quota_problems,
    source_problems,
)
from moorage.model.names import is_name
from moorage.model.problems import Problem, Refused, Violation, invalid
from moorage.model.reasons import Warn
from moorage.model.resource_classes import (
    FLEET_KINDS,
    ClassGrant,
    DeviceQuota,
    DeviceSource,
    FleetMetadata,
    FleetObject,
    ResourceClass,
    StoredMetadata,
)

from . import lenient_decode, validation_rules
from .device_needs import unknown_algorithm
from .diagnostics import Diagnostics
from .field_rules import check_labels, check_name

FleetDocument = ResourceClass | DeviceSource | DeviceQuota | ClassGrant


class AcceptedObject(NamedTuple):
    object: FleetObject
    warnings: tuple[Warn, ...]


def accept(data: dict[str, Any]) -> AcceptedObject:
    """Raises Refused with every violation."""
    diagnostics = Diagnostics()
    kind = FLEET_KINDS[data["kind"]]
    try:
        document: FleetDocument = msgspec.convert(data, kind.document)
    except msgspec.ValidationError:
        document = lenient_decode.struct(data, kind.document, "", diagnostics)
    validation_rules.version(document.api_version, diagnostics)
    _check_metadata(document, diagnostics)
    broken = tuple(error.path for error in diagnostics.errors)
    for found in _problems(document):
        if not any(found.path == path or found.path.startswith((f"{path}.", f"{path}[")) for path in broken):
            diagnostics.error(found.path, found.code, found.message)
    if diagnostics.errors:
        raise Refused(invalid(diagnostics.errors))
    meta = document.metadata
    stored = StoredMetadata(name=meta.name, cluster=meta.cluster, labels=meta.labels, annotations=meta.annotations)
    spec = msgspec.to_builtins(document.spec) if document.spec is not None else {}
    warnings = tuple(class_warnings(document.spec)) if isinstance(document, ResourceClass) else ()
    return AcceptedObject(FleetObject(kind=kind.kind, metadata=stored, spec=spec), warnings)


def _problems(document: FleetDocument) -> Iterable[Violation]:
    if isinstance(document, ResourceClass):
        return class_problems(document.spec)
    if isinstance(document, DeviceSource):
        return source_problems(document.spec)
    if isinstance(document, DeviceQuota):
        return quota_problems(document.spec)
    found = list(grant_problems(document.spec))
    return found or _unknown_algorithms(document.spec.algorithms)


def _unknown_algorithms(patterns: Iterable[str]) -> Iterator[Violation]:
    """Yields names in a grant that are none of an algorithm, and let nobody do anything."""
    for i, pattern in enumerate(patterns):
        if "*" not in pattern and (message := unknown_algorithm(pattern)):
            yield Violation(path=f"spec.algorithms[{i}]", code="BadValue", message=message)


def _check_metadata(document: FleetDocument, diagnostics: Diagnostics) -> None:
    meta: FleetMetadata = document.metadata
    check_name(meta.name, "metadata.name", diagnostics)
    check_labels(meta.labels, "metadata.labels", diagnostics)
    if sum(map(len, meta.annotations)) + sum(map(len, meta.annotations.values())) > 256 << 10:
        diagnostics.error("metadata.annotations", "TooLarge", "must have at most 256 KiB together")
    algorithm = meta.annotations.get(ALGORITHM, "") if isinstance(document, ResourceClass) else ""
    if algorithm and (message := unknown_algorithm(algorithm)):
        diagnostics.error(f"metadata.annotations.{ALGORITHM}", "BadValue", message)
    if not meta.cluster:
        return
    if not isinstance(document, ResourceClass):
        message = f"a {document.kind} is for the whole fleet; only a ResourceClass can be for one cluster"
        diagnostics.error("metadata.cluster", "UnknownField", message)
    elif len(parts := meta.cluster.split("/")) != 2 or not all(map(is_name, parts)):
        message = f"{meta.cluster[:80]!r} is no name of a cluster; write it like PROVIDER/NAME"
        diagnostics.error("metadata.cluster", "InvalidName", message)


def merged(before: FleetObject | None, given: FleetObject, uid: str, now: str) -> FleetObject:
    """Returns the object after it was applied. Raises Refused where its spec may not change."""
    meta = given.metadata
    if before is None:
        meta.uid, meta.creation_timestamp = uid, now
        return given
    if given.kind == "ResourceClass" and before.spec_hash != given.spec_hash:
        detail = (
            f"the spec of ResourceClass {meta.name} cannot be changed; delete the class and create it anew, which is a "
            "different class"
        )
        errors = [Violation(path="spec", code="Immutable", message="cannot be changed")]
        raise Refused(Problem(title="Immutable", status=409, code="Immutable", detail=detail, errors=errors))
    meta.uid, meta.creation_timestamp = before.metadata.uid, before.metadata.creation_timestamp
    given.told = before.told
    return given
