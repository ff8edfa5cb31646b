"""Adds node affinity to pod specs. Existing terms are narrowed, never widened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .json_patch import with_value
from .workloads import Manifest

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_NAME = "metadata.name"


def with_required(
    spec: Manifest, requirements: Sequence[Mapping[str, Any]], where: str = "matchExpressions"
) -> Manifest:
    """Adds the requirements to every existing term, or as the only one. Terms are ORed: another one would widen. `where`:
    `matchFields` for requirements on the node's name."""
    path = ["affinity", "nodeAffinity", _REQUIRED]
    required = _node_affinity(spec).get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or []
    if not terms:
        terms = [{where: list(requirements)}]
    else:
        # An empty term matches no node at all; with a requirement in it, it would match some.
        terms = [_with_requirements(t, requirements, where) if any(t.values()) else t for t in terms]
    changed: Manifest = with_value(spec, path, {**required, "nodeSelectorTerms": terms})
    return changed


def with_preferred(spec: Manifest, term: Mapping[str, Any]) -> Manifest:
    existing = _node_affinity(spec).get(_PREFERRED) or []
    if term in existing:
        return spec
    changed: Manifest = with_value(spec, ["affinity", "nodeAffinity", _PREFERRED], [*existing, dict(term)])
    return changed


def pinned_to(spec: Manifest, node: str) -> Manifest:
    """Returns the pod spec with required affinity to one node, as the controller of DaemonSets adds it. Kubernetes lets the
    affinity of a gated pod only be narrowed: requirements are added after those that are there."""
    return with_required(spec, [_named(node)], "matchFields")


def pinned_node(spec: Manifest) -> str:
    """Returns the node that `pinned_to` named; "" if there is none."""
    terms = (_node_affinity(spec).get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    named = [(term.get("matchFields") or [{}])[-1] for term in terms if any(term.values())]
    if not named or any(field != named[0] for field in named):
        return ""
    field = named[0]
    values = field.get("values") or []
    return str(values[0]) if field.get("key") == _NAME and field.get("operator") == "In" and len(values) == 1 else ""


def _named(node: str) -> Mapping[str, Any]:
    return {"key": _NAME, "operator": "In", "values": [node]}


def _with_requirements(term: Manifest, requirements: Sequence[Mapping[str, Any]], where: str) -> Manifest:
    existing = term.get(where) or []
    new = [requirement for requirement in requirements if requirement not in existing]
    return {**term, where: [*existing, *new]} if new else term


def _node_affinity(spec: Manifest) -> Manifest:
    affinity: Manifest = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return affinity
