"""Reads the ResourceClaims, templates and DeviceClasses among the objects of an app, and what pods ask for by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.model.shapes import PodRule
from moorage.podspec.device_claims import (
    ClaimError,
    ClaimNeeds,
    ClaimSpec,
    Selector,
    claim_errors,
    claim_needs,
    read_claim,
    selector_errors,
)

from .diagnostics import Diagnostics
from .group_rules import PodRules
from .pod_templates import PodTemplate

HOSTNAME = "kubernetes.io/hostname"

GROUP = "resource.k8s.io"
CLAIM, TEMPLATE, CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"


class ClaimKey(NamedTuple):
    kind: str
    namespace: str
    name: str


def read_device_objects(manifest: Mapping[str, Any], path: str, diagnostics: Diagnostics) -> ClaimSpec | None:
    """Checks an object of `resource.k8s.io`. Returns what claims of it ask for, if it is a claim or a template."""
    kind, version = manifest.get("kind"), str(manifest.get("apiVersion", ""))
    if version.partition("/")[0] != GROUP or kind not in (CLAIM, TEMPLATE, CLASS):
        return None
    at = f"{path}.spec.spec" if kind == TEMPLATE else f"{path}.spec"
    spec: Any = manifest.get("spec") or {}
    spec = (spec.get("spec") or {}) if kind == TEMPLATE and isinstance(spec, dict) else spec
    try:
        if kind == CLASS:
            given = spec.get("selectors") if isinstance(spec, dict) else None
            selectors = msgspec.convert(given or [], list[Selector])
            _tell(selector_errors(selectors, ("selectors",)), at, diagnostics)
            return None
        found = read_claim(spec)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        diagnostics.error(f"{at}{where.rstrip('`')}", "InvalidManifest", message)
        return None
    _tell(claim_errors(found), at, diagnostics)
    return found


def _tell(errors: Any, at: str, diagnostics: Diagnostics) -> None:
    error: ClaimError
    for error in errors:
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path)
        code = "SelectorError" if error.path[-1:] == ("expression",) else "Invalid"
        diagnostics.error(f"{at}{path}", code, error.message)


class PodClaims(NamedTuple):
    """The requests of an object's pods by claims, and the claims that they share."""

    needs: ClaimNeeds
    shared: list[str]


def pod_claims(pods: PodTemplate, claims: Mapping[ClaimKey, ClaimSpec], diagnostics: Diagnostics) -> PodClaims:
    """Returns what pods ask for, as groups named by the pod's name for the claim."""
    found = PodClaims(ClaimNeeds([], []), [])
    for claim in pods.device_claims:
        kind, name = (TEMPLATE, claim.template) if claim.template else (CLAIM, claim.claim)
        spec = claims.get(ClaimKey(kind, pods.namespace, name))
        if spec is None:
            text = f"{pods.object}: there is no {kind} {name!r} in the app, so its devices are not counted"
            diagnostics.warn("ClaimNotFound", text)
            continue
        shared = f"claim:{pods.namespace}/{name}" if kind == CLAIM else ""
        needs = claim_needs(claim.name, spec, shared)
        found.needs.groups.extend(needs.groups)
        found.needs.relations.extend(needs.relations)
        if shared:
            found.shared.append(shared)
    return found


def together(rules: PodRules, shared: Iterable[str]) -> PodRules:
    """Returns the rules of pods that have the devices of claims together with others: they are on one node."""
    names = list(shared)
    near = [PodRule(kind="near", key=HOSTNAME, pods=name, shared=True) for name in names]
    return PodRules([*rules.rules, *near], [*rules.marks, *names]) if names else rules
