"""Writes into pod templates which extended resources and huge pages their containers request for the devices of their claims' slots.
A device plugin, or the kubelet, chooses the device then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from moorage.model.claims import Claim
from moorage.model.part_names import is_class
from moorage.model.slots import Slot, is_claimed
from moorage.parsing import format_amount, parse_amount
from moorage.podspec import template, template_path, with_value

Manifest = dict[str, Any]
#: Amounts by need and resource, of one pod.
_Asked = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


def with_device_resources(manifest: Manifest, claim: Claim, containers: Mapping[str, set[str]]) -> Manifest:
    """Returns the object whose containers request the resources of the claim's devices; `containers` are those of needs, by
    name. Slots of which the pods have other resources than most cannot be told: a template is one for all pods."""
    found = template(manifest)
    asked = _of_most_pods(claim)
    if found is None or not asked:
        return manifest
    spec = dict(found.get("spec") or {})
    names = [str(one.get("name", "")) for one in spec.get("containers") or ()]
    by_container: dict[str, dict[str, int]] = {}
    for need, amounts in asked:
        named = sorted(containers.get(need) or names[:1])
        for name in named[:1]:
            total = by_container.setdefault(name, {})
            for resource, amount in amounts:
                total[resource] = total.get(resource, 0) + amount
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_requesting(one, by_container.get(str(one.get("name", "")), {})) for one in spec[field]]
    changed: Manifest = with_value(manifest, template_path(manifest) or (), {**found, "spec": spec})
    return changed


def _of_most_pods(claim: Claim) -> _Asked:
    counts: Counter[_Asked] = Counter()
    for slot in claim.slots:
        counts[_asked(slot)] += slot.count
    return max(sorted(counts.items()), key=lambda one: one[1])[0] if counts else ()


def _asked(slot: Slot) -> _Asked:
    by_need: dict[str, dict[str, int]] = {}
    for grant in slot.devices:
        if not is_class(grant.name) and not is_claimed(slot, grant):
            amounts = by_need.setdefault(grant.need, {})
            amounts[grant.name] = amounts.get(grant.name, 0) + grant.amount
    return tuple((need, tuple(sorted(amounts.items()))) for need, amounts in sorted(by_need.items()))


def _requesting(container: Manifest, amounts: Mapping[str, int]) -> Manifest:
    if not amounts:
        return container
    resources = dict(container.get("resources") or {})
    given = [dict(resources.get(field) or {}) for field in ("requests", "limits")]
    for resource, amount in amounts.items():
        # Kubernetes has no such resource of which more is the limit than is requested.
        had = max(parse_amount(resource, str(one.get(resource, "0")), True) for one in given)
        for one in given:
            one[resource] = format_amount(resource, had + amount)
    resources["requests"], resources["limits"] = given
    return {**container, "resources": resources}
