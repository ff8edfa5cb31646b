"""Checks the Kubernetes objects that fleet files give clusters, as the API server does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.dra import objects as dra
from moorage.model.problems import Violation
from moorage.podspec.device_claims import ClaimError, Selector, claim_errors, read_claim, selector_errors

from .slice_documents import amount_errors, slice_errors, taint_errors

Manifest = dict[str, Any]
_GROUP = "resource.k8s.io"
MAX_OBJECTS = 20_000  # of one cluster
_DNS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


class KubeKind(NamedTuple):
    """A kind of object that simulated clusters have, and the versions of its API in which it can be given."""

    versions: tuple[str, ...]
    namespaced: bool
    check: Callable[[Manifest, frozenset[str]], Iterable[ClaimError]]


def check_objects(objects: Sequence[Manifest], nodes: Iterable[str], path: str) -> list[Violation]:
    """Returns what is wrong with the objects of a cluster with these nodes."""
    if len(objects) > MAX_OBJECTS:
        return [Violation(path=path, code="OutOfRange", message=f"at most {MAX_OBJECTS} objects in a cluster")]
    names = frozenset(nodes)
    errors: list[Violation] = []
    seen: dict[tuple[str, str, str], str] = {}
    for i, manifest in enumerate(objects):
        at = f"{path}[{i}]"
        found = list(_errors(manifest, names, at))
        errors += found
        if not found:
            key = key_of(manifest)
            if key in seen:
                message = f"another {key[0]} {'/'.join(filter(None, key[1:]))} is {seen[key]}"
                errors.append(Violation(path=f"{at}.metadata.name", code="Duplicate", message=message))
            seen.setdefault(key, at)
    return errors


def key_of(manifest: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns kind, namespace and name; the namespace of kinds without one is empty."""
    metadata, kind = manifest.get("metadata") or {}, str(manifest.get("kind", ""))
    known = KINDS.get(kind)
    namespace = str(metadata.get("namespace") or "default") if known is None or known.namespaced else ""
    return kind, namespace, str(metadata.get("name", ""))


def _errors(manifest: Any, nodes: frozenset[str], at: str) -> Iterator[Violation]:
    if not isinstance(manifest, dict):
        yield Violation(path=at, code="WrongType", message="must be a Kubernetes object")
        return
    kind, metadata = manifest.get("kind"), manifest.get("metadata")
    known = KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        message = f"simulated clusters have no objects of kind {kind!r}; known are {', '.join(KINDS)}"
        yield Violation(path=f"{at}.kind", code="UnknownKind", message=message)
    elif manifest.get("apiVersion") not in known.versions:
        message = f"{manifest.get('apiVersion')!r} is no version of {kind}; known are {', '.join(known.versions)}"
        yield Violation(path=f"{at}.apiVersion", code="UnknownKind", message=message)
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not _DNS.fullmatch(name):
        yield Violation(path=f"{at}.metadata.name", code="BadName", message=f"{name!r} is not a name of an object")
        return
    if known is None:
        return
    try:
        found = list(known.check(manifest, nodes))
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        yield Violation(path=f"{at}{where.rstrip('`')}", code="WrongType", message=message)
        return
    for one in found:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in one.path)
        code = "SelectorError" if one.path[-1:] == ("expression",) else "Invalid"
        yield Violation(path=f"{at}{steps}", code=code, message=one.message)


# --- one kind after the other -----------------------------------------------------------------------------------------


def _slice(manifest: Manifest, nodes: frozenset[str]) -> Iterator[ClaimError]:
    yield from slice_errors(msgspec.convert(manifest, dra.Slice).spec, nodes)


def _device_class(manifest: Manifest, _nodes: frozenset[str]) -> Iterator[ClaimError]:
    spec = msgspec.convert(manifest, dra.DeviceClass).spec
    given = (manifest.get("spec") or {}).get("selectors") or []
    yield from _below(("spec",), selector_errors(msgspec.convert(given, list[Selector]), ("selectors",)))
    if spec.extended_resource_name is not None and "/" not in spec.extended_resource_name:
        yield ClaimError(("spec", "extendedResourceName"), "an extended resource is named DOMAIN/NAME")


def _taint_rule(manifest: Manifest, _nodes: frozenset[str]) -> Iterator[ClaimError]:
    spec = msgspec.convert(manifest, dra.DeviceTaintRule).spec
    if not spec.taint:
        yield ClaimError(("spec", "taint"), "a rule has a taint")
        return
    yield from taint_errors(spec.taint, ("spec", "taint"))


def _claim(manifest: Manifest, _nodes: frozenset[str]) -> Iterator[ClaimError]:
    spec = read_claim(manifest.get("spec") or {})
    yield from _below(("spec",), claim_errors(spec))
    claim = msgspec.convert(manifest, dra.DeviceClaim)
    requests = spec.devices.requests or []
    names = {request.name for request in requests}
    names |= {f"{request.name}/{one.name}" for request in requests for one in request.first_available or ()}
    for i, result in enumerate(claim.results):
        at = ("status", "allocation", "devices", "results", i)
        for field in ("driver", "pool", "device"):
            if not getattr(result, field):
                yield ClaimError((*at, field), "is required")
        if result.request not in names:
            yield ClaimError((*at, "request"), f"the claim has no request {result.request[:80]!r}")
        for name, amount in (result.consumed_capacity or {}).items():
            yield from amount_errors(amount, (*at, "consumedCapacity", name))


def _claim_template(manifest: Manifest, _nodes: frozenset[str]) -> Iterator[ClaimError]:
    spec = manifest.get("spec")
    inner = spec.get("spec") if isinstance(spec, dict) else None
    yield from _below(("spec", "spec"), claim_errors(read_claim(inner or {})))


def _quota(manifest: Manifest, _nodes: frozenset[str]) -> Iterator[ClaimError]:
    spec = manifest.get("spec")
    hard = spec.get("hard") if isinstance(spec, dict) else None
    if not isinstance(hard, dict):
        yield ClaimError(("spec", "hard"), "must be amounts by resource")
        return
    for name, amount in hard.items():
        yield from amount_errors(amount, ("spec", "hard", str(name)))


def _namespace(manifest: Manifest, _nodes: frozenset[str]) -> Iterator[ClaimError]:
    labels = manifest["metadata"].get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        yield ClaimError(("metadata", "labels"), "labels are text by key")


def _below(path: tuple[str | int, ...], errors: Iterable[ClaimError]) -> Iterator[ClaimError]:
    yield from (error._replace(path=(*path, *error.path)) for error in errors)


_VERSIONS = tuple(f"{_GROUP}/{version}" for version in ("v1", "v1beta2", "v1beta1"))
KINDS: Mapping[str, KubeKind] = {
    "ResourceSlice": KubeKind(_VERSIONS, False, _slice),
    "DeviceClass": KubeKind(_VERSIONS, False, _device_class),
    "DeviceTaintRule": KubeKind((*_VERSIONS, f"{_GROUP}/v1alpha3"), False, _taint_rule),
    "ResourceClaim": KubeKind(_VERSIONS, True, _claim),
    "ResourceClaimTemplate": KubeKind(_VERSIONS, True, _claim_template),
    "ResourceQuota": KubeKind(("v1",), True, _quota),
    "Namespace": KubeKind(("v1",), False, _namespace),
}
