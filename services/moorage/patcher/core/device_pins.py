"""Pins ResourceClaims to the devices of their slots. kube-scheduler stays the only allocator: it is left with these devices.

For each request there is a DeviceClass that names the devices of a claim's slots, and templates ask for that class. Which
attributes tell the devices apart only the cluster's agent knows: it completes the classes. Templates cannot be changed and
classes can, so that a move replaces a device and restarts no pod.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.claims import Claim, Decision
from moorage.model.slots import is_of_claim
from moorage.podspec import CLASS_OF_PIN, PIN_PREFIX, PINNED_DEVICES, object_key, template, template_path, with_value

Manifest = dict[str, Any]
_GROUP = "resource.k8s.io"
_encode = msgspec.json.Encoder(order="sorted").encode


class PinnedObjects(NamedTuple):
    """The objects of an app where claims are pinned: those that there were, and those that are added."""

    manifests: list[Manifest]
    added: list[Manifest]


def devices_of(claim: Claim) -> dict[str, list[str]]:
    """Returns the devices of a claim's slots by CLAIM/REQUEST[/ALTERNATIVE]."""
    found: dict[str, dict[str, None]] = {}
    for slot in claim.slots:
        for grant in slot.devices:
            if is_of_claim(grant.need):
                found.setdefault(grant.need, {})[grant.part] = None
    return {need: sorted(devices) for need, devices in sorted(found.items())}


def pins_by_claim(decision: Decision) -> dict[str, str]:
    """Returns what changes with the devices of claims, by claim, of those that have devices."""
    found = {claim.id: devices for claim in decision.claims if (devices := devices_of(claim))}
    return {ident: hashlib.blake2b(_encode(devices), digest_size=8).hexdigest() for ident, devices in found.items()}


class DevicePins:
    """The pins of an app's claims on one cluster. `manifests` are all objects of the app."""

    def __init__(self, manifests: Sequence[Manifest], claims: Iterable[Claim]) -> None:
        self._devices = {claim.object: (claim, devices_of(claim)) for claim in claims}
        self._named = {_key(m): m for m in manifests if _is_of_devices(m)}

    @property
    def there_are(self) -> bool:
        return any(devices for _, devices in self._devices.values())

    def pin(self, manifests: Sequence[Manifest]) -> PinnedObjects:
        """Returns the objects with pods that use pinned claims, and the templates and classes that these need."""
        added: dict[tuple[str, str, str], Manifest] = {}
        shared: dict[tuple[str, str, str], dict[str, dict[str, None]]] = {}
        result: list[Manifest] = []
        for manifest in manifests:
            claim, devices = self._devices.get(object_key(manifest), (None, {}))
            found = template(manifest) if devices else None
            if claim is None or found is None:
                result.append(manifest)
                continue
            given = (found.get("spec") or {}).get("resourceClaims") or ()
            entries = [self._entry(manifest, claim, devices, entry, added, shared) for entry in given]
            pod_template = with_value(found, ["spec", "resourceClaims"], entries)
            result.append(with_value(manifest, template_path(manifest) or (), pod_template))
        pinned = {}
        for key, devices_by_request in shared.items():
            original = self._named[key]
            prefix = f"{PIN_PREFIX}{_short(f'{key[1]}/{key[2]}')}"
            by_request = {request: list(found) for request, found in devices_by_request.items()}
            spec, classes = _pinned_spec(original.get("spec") or {}, prefix, by_request, original)
            pinned[key] = {**original, "spec": spec}
            added |= {_key(found): found for found in classes}
        return PinnedObjects([pinned.get(_key(m), m) for m in result], list(added.values()))

    def _entry(
        self,
        manifest: Manifest,
        claim: Claim,
        devices: Mapping[str, list[str]],
        entry: Manifest,
        added: dict[tuple[str, str, str], Manifest],
        shared: dict[tuple[str, str, str], dict[str, dict[str, None]]],
    ) -> Manifest:
        """Returns the pod's entry for a claim, which names the pinned template."""
        name = str(entry.get("name", ""))
        of_claim = {need.partition("/")[2]: found for need, found in devices.items() if need.startswith(f"{name}/")}
        namespace = str(manifest["metadata"].get("namespace") or "default")
        by_name = str(entry.get("resourceClaimName") or "")
        if by_name and of_claim:
            key = "ResourceClaim", namespace, by_name
            if key in self._named:
                for request, found in of_claim.items():
                    shared.setdefault(key, {}).setdefault(request, {}).update(dict.fromkeys(found))
            return entry
        original = self._named.get(("ResourceClaimTemplate", namespace, str(entry.get("resourceClaimTemplateName"))))
        if original is None or not of_claim:
            return entry
        given = original.get("spec") or {}
        several = len({need.partition("/")[0] for need in devices}) > 1
        prefix = f"{PIN_PREFIX}{claim.id}-{name}" if several else f"{PIN_PREFIX}{claim.id}"
        spec, classes = _pinned_spec(given.get("spec") or {}, prefix, of_claim, original)
        made = f"{PIN_PREFIX}{claim.id}-{name}"
        metadata = {k: v for k, v in original["metadata"].items() if k in ("labels", "annotations", "namespace")}
        copy = {**original, "metadata": {**metadata, "name": made}, "spec": {**given, "spec": spec}}
        added |= {_key(found): found for found in (copy, *classes)}
        return {**entry, "resourceClaimTemplateName": made}


def _pinned_spec(
    spec: Manifest, prefix: str, devices: Mapping[str, list[str]], original: Manifest
) -> tuple[Manifest, list[Manifest]]:
    """Returns the spec of a claim that asks for pinned classes, and the classes. Of alternatives those that slots have stay."""
    classes: list[Manifest] = []

    def pinned(ask: Manifest, need: str) -> Manifest:
        if need not in devices:
            return ask
        name = f"{prefix}-{need.replace('/', '-')}"
        annotations = {
            CLASS_OF_PIN: str(ask.get("deviceClassName", "")),
            PINNED_DEVICES: _encode(devices[need]).decode(),
        }
        classes.append(
            {
                "apiVersion": original["apiVersion"],
                "kind": "DeviceClass",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {},
            }
        )
        return {**ask, "deviceClassName": name}

    requests = []
    asked = spec.get("devices") or {}
    for request in asked.get("requests") or ():
        name = str(request.get("name", ""))
        alternatives = request.get("firstAvailable")
        if alternatives:
            chosen = [a for a in alternatives if f"{name}/{a.get('name')}" in devices] or alternatives
            request = {**request, "firstAvailable": [pinned(a, f"{name}/{a.get('name')}") for a in chosen]}
        elif request.get("exactly"):
            request = {**request, "exactly": pinned(request["exactly"], name)}
        else:
            request = pinned(request, name)
        requests.append(request)
    gone = _names(asked.get("requests") or ()) - _names(requests)
    lists = {field: _without(asked[field], gone) for field in ("constraints", "config") if asked.get(field)}
    return {**spec, "devices": {**asked, "requests": requests, **lists}}, classes


def _names(requests: Iterable[Manifest]) -> set[str]:
    """Returns the names of alternatives with those of their requests."""
    return {f"{r.get('name')}/{a.get('name')}" for r in requests for a in r.get("firstAvailable") or ()}


def _without(entries: Iterable[Manifest], gone: set[str]) -> list[Manifest]:
    """Returns the constraints or configurations without alternatives that are not asked for any more."""
    result = []
    for entry in entries:
        named = entry.get("requests") or []
        left = [name for name in named if name not in gone]
        if left or not named:
            result.append({**entry, "requests": left} if named else entry)
    return result


def _is_of_devices(manifest: Manifest) -> bool:
    return str(manifest.get("apiVersion", "")).partition("/")[0] == _GROUP


def _key(manifest: Manifest) -> tuple[str, str, str]:
    metadata = manifest.get("metadata") or {}
    return str(manifest.get("kind", "")), str(metadata.get("namespace") or "default"), str(metadata.get("name", ""))


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
