"""Pins ResourceClaims to the devices of their slots. kube-scheduler stays the only allocator: it is left with these devices.

For each request there is a DeviceClass that names the devices of a claim's slots, and templates ask for that class. Which
attributes tell the devices apart only the cluster's agent knows: it completes the classes. Templates cannot be changed and
classes can, so that a move replaces a device and restarts no pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.claims import Claim
from moorage.model.part_requests import DeviceAsk, DeviceToleration
from moorage.parsing import format_amount, parse_amount
from moorage.podspec import (
    CLASS_ALGORITHM,
    CLASS_OF_NEED,
    CLASS_OF_PIN,
    CLASS_UID,
    PIN_PREFIX,
    PINNED_DEVICES,
    SLOT_CLAIMS,
    TEMPLATE_SHARES,
    TEMPLATE_SLOTS,
    VACATED_DEVICES,
    object_key,
    template,
    template_path,
    with_value,
)
from moorage.podspec.extended_resources import ExtendedNeed

from .claimed_devices import MADE, claimed_of, devices_of, encode, short_hash, slots_of
from .class_needs import ClassNeeds, Manifest

_GROUP = "resource.k8s.io"


class PinnedObjects(NamedTuple):
    """The objects of an app where claims are pinned: those that there were, and those that are added."""

    manifests: list[Manifest]
    added: list[Manifest]


class DevicePins:
    """The pins of an app's claims on one cluster. `manifests` are all objects of the app, `needs` what pods ask for by classes, by
    object."""

    def __init__(
        self, manifests: Sequence[Manifest], claims: Iterable[Claim], needs: Mapping[str, ClassNeeds] | None = None
    ) -> None:
        self._needs = needs or {}
        served = (_without_unserved(claim, self._needs.get(claim.object)) for claim in claims)
        self._devices = {claim.object: (claim, devices_of(claim)) for claim in served}
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
            spec = {**(found.get("spec") or {}), "resourceClaims": entries}
            made = {need: ids for need, ids in devices.items() if need.startswith(f"{MADE}/")}
            if made:
                spec = self._with_made(spec, manifest, claim, made, added)
            pod_template = {**found, "spec": spec}
            result.append(with_value(manifest, template_path(manifest) or (), pod_template))
        pinned = {}
        for key, devices_by_request in shared.items():
            original = self._named[key]
            prefix = f"{PIN_PREFIX}{short_hash(f'{key[1]}/{key[2]}')}"
            by_request = {request: list(found) for request, found in devices_by_request.items()}
            spec, classes = _pinned_spec(original.get("spec") or {}, prefix, by_request, original)
            pinned[key] = {**self._with_holders(original, devices_by_request), "spec": spec}
            added |= {_key(found): found for found in classes}
        complete = [self._with_vacated(found) for found in added.values()]
        return PinnedObjects([pinned.get(_key(m), m) for m in result], complete)

    def _with_holders(self, original: Manifest, devices: Mapping[str, Iterable[str]]) -> Manifest:
        """Returns a claim that pods name with the claims whose slots have its devices: their pods are told to have them."""
        wanted = {device for of_request in devices.values() for device in of_request}
        holders = [
            claim.id
            for claim, found in self._devices.values()
            if any(not wanted.isdisjoint(of_need) for of_need in found.values())
        ]
        metadata = original["metadata"]
        annotations = {**(metadata.get("annotations") or {}), SLOT_CLAIMS: ",".join(sorted(holders))}
        return {**original, "metadata": {**metadata, "annotations": annotations}}

    def _with_vacated(self, found: Manifest) -> Manifest:
        """Returns a class with the devices that pods are to leave once they are not pinned to these any more, by claim."""
        vacated = {claim.id: claim.vacated for claim, _ in self._devices.values() if claim.vacated}
        if found.get("kind") != "DeviceClass" or not vacated:
            return found
        metadata = found["metadata"]
        annotations = {**metadata["annotations"], VACATED_DEVICES: encode(vacated).decode()}
        return {**found, "metadata": {**metadata, "annotations": annotations}}

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
        several = len({need.partition("/")[0] for need in devices} - {MADE}) > 1
        prefix = f"{PIN_PREFIX}{claim.id}-{name}" if several else f"{PIN_PREFIX}{claim.id}"
        spec, classes = _pinned_spec(given.get("spec") or {}, prefix, of_claim, original)
        made = f"{PIN_PREFIX}{claim.id}-{name}"
        metadata = {k: v for k, v in original["metadata"].items() if k in ("labels", "annotations", "namespace")}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), TEMPLATE_SLOTS: slots_of(claim, name)}
        copy = {**original, "metadata": {**metadata, "name": made}, "spec": {**given, "spec": spec}}
        added |= {_key(found): found for found in (copy, *classes)}
        return {**entry, "resourceClaimTemplateName": made}

    def _with_made(
        self,
        spec: Manifest,
        manifest: Manifest,
        claim: Claim,
        devices: Mapping[str, list[str]],
        added: dict[tuple[str, str, str], Manifest],
    ) -> Manifest:
        """Returns the pod with a claim that is made for its needs for devices of classes, which their containers name."""
        needs = self._needs.get(claim.object, ClassNeeds({}, [], {}))
        names = list(dict.fromkeys(need.split("/")[1] for need in devices))
        request_of = {name: f"need-{i}" for i, name in enumerate(names)}
        class_of = {need: grant.resource_class for granted in claimed_of(claim) for need, grant in granted}
        alternatives = {need: _Alternative.of(need, class_of[need], needs, claim) for need in devices}
        requests: list[Manifest] = []
        for name in names:
            of_need = sorted((a.number, need) for need, a in alternatives.items() if a.name == name)
            made = [_request(alternatives[need]) for _, need in of_need]
            requests.append({"name": request_of[name], "firstAvailable": made})
        constraints = [
            {"distinctAttribute" if r.distinct else "matchAttribute": r.attribute, "requests": of}
            for r in needs.relations
            if "/" in r.attribute and (of := [request_of[g] for g in r.groups if g in request_of])
        ]
        given = {"devices": {"requests": requests, "constraints": constraints}}
        full = {need: f"{request_of[a.name]}/{a.request}" for need, a in alternatives.items()}
        by_request = {full[need]: ids for need, ids in devices.items()}
        api = {"apiVersion": "resource.k8s.io/v1"}
        pinned, classes = _pinned_spec(given, f"{PIN_PREFIX}{claim.id}", by_request, api)
        of_pin = {_pin_name(f"{PIN_PREFIX}{claim.id}", full[need]): a for need, a in alternatives.items()}
        for found in classes:
            name = of_pin[found["metadata"]["name"]].resource_class
            version = claim.classes.get(name)
            found["metadata"]["annotations"] |= {CLASS_OF_NEED: name} | (
                {CLASS_UID: version.uid, CLASS_ALGORITHM: version.algorithm} if version else {}
            )
        name = f"{PIN_PREFIX}{claim.id}-{MADE}"
        slots = slots_of(claim, MADE)
        for need, request in request_of.items():
            slots = slots.replace(f'"{need}/', f'"{request}/of-')
        annotations = {TEMPLATE_SLOTS: slots}
        if shares := _shares(claim, full, alternatives):
            annotations[TEMPLATE_SHARES] = encode(shares).decode()
        metadata = {"name": name, "annotations": annotations}
        metadata |= {k: v for k, v in manifest["metadata"].items() if k == "namespace"}
        template_ = {**api, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": pinned}}
        added |= {_key(found): found for found in (template_, *classes)}
        entry = {"name": f"{PIN_PREFIX}{MADE}", "resourceClaimTemplateName": name}
        result = {**spec, "resourceClaims": [*spec["resourceClaims"], entry]}
        extended = [needs.extended[name] for name in names if name in needs.extended]
        for field in ("containers", "initContainers"):
            if spec.get(field):
                result[field] = [
                    _claiming(_without_extended(container, extended), request_of, needs.containers)
                    for container in spec[field]
                ]
        return result


def _without_unserved(claim: Claim, needs: ClassNeeds | None) -> Claim:
    """Returns the claim without the devices for extended resources of which other slots have none: their nodes have the resource
    itself. All pods have one template, so they request the resource, and the cluster chooses the devices."""
    granted = [{grant.need for grant in slot.devices} for slot in claim.slots if slot.count]
    unserved = {name for name in (needs.extended if needs else ()) if not all(name in each for each in granted)}
    if unserved.isdisjoint(name for each in granted for name in each):
        return claim
    slots = [
        msgspec.structs.replace(slot, devices=[grant for grant in slot.devices if grant.need not in unserved])
        for slot in claim.slots
    ]
    return msgspec.structs.replace(claim, slots=slots)


def _without_extended(container: Manifest, needs: Iterable[ExtendedNeed]) -> Manifest:
    """Returns the container without the extended resources for which it has devices by a claim. What optional needs add is left."""
    resources = dict(container.get("resources") or {})
    served = {need.resource: need.devices for need in needs if container.get("name") in need.containers}
    for field in ("requests", "limits"):
        if served and resources.get(field):
            amounts = {
                name: parse_amount(name, str(a), True) - served.get(name, 0)
                for name, a in resources[field].items()
                if name in served
            }
            left = {name: format_amount(name, amount) for name, amount in amounts.items() if amount > 0}
            others = {name: amount for name, amount in resources[field].items() if name not in served}
            resources[field] = others | left
    return {**container, "resources": resources} if served else container


def _shares(
    claim: Claim, full: Mapping[str, str], alternatives: Mapping[str, _Alternative]
) -> dict[str, dict[str, Any]]:
    """Returns what requests for shares of devices take, by request."""
    shares: dict[str, dict[str, Any]] = {}
    for granted in claimed_of(claim):
        for need, grant in granted:
            ask = alternatives[need].ask if need in alternatives else None
            if ask is not None and ask.share:
                share = shares.setdefault(full[need], {"devices": {}, "amounts": {}})
                share["devices"][grant.part] = None
                share["amounts"][grant.name] = grant.amount
    return {request: {**share, "devices": sorted(share["devices"])} for request, share in shares.items()}


class _Alternative(NamedTuple):
    """One of the numbers of devices that pods have for a need, as a request of the claim that is made for them."""

    name: str  # of the need
    request: str
    number: int
    resource_class: str
    device_class: str  # of the cluster, if that is what the name means
    ask: DeviceAsk | None

    @classmethod
    def of(cls, need: str, resource_class: str, needs: ClassNeeds, claim: Claim) -> _Alternative:
        _, name, text = need.split("/")
        count = int(text.partition("-")[0])
        asks = [ask for ask in needs.asks.get(name, ()) if ask.count == count]
        ask = next((ask for ask in asks if ask.resource_class == resource_class), asks[0] if asks else None)
        of_ask = ask.resource_class if ask is not None else ""
        device_class = "" if resource_class in claim.classes else resource_class
        return cls(name, f"of-{text}", count, resource_class or of_ask, device_class, ask)


def _request(found: _Alternative) -> Manifest:
    ask, how = found.ask, {"deviceClassName": found.device_class, "allocationMode": "ExactCount"}
    request: Manifest = {"name": found.request, **how, "count": found.number}
    if ask is not None and ask.capacity:
        request["capacity"] = {"requests": ask.capacity}
    if ask is not None and ask.tolerations:
        request["tolerations"] = [_toleration(one) for one in ask.tolerations]
    return request


def _toleration(one: DeviceToleration) -> Manifest:
    found: Manifest = {"operator": one.operator} | {
        field: value for field in ("key", "value", "effect") if (value := getattr(one, field))
    }
    return found | ({"tolerationSeconds": one.seconds} if one.seconds is not None else {})


def _claiming(container: Manifest, request_of: Mapping[str, str], containers: Mapping[str, set[str]]) -> Manifest:
    """Returns the container with the requests of its needs. Needs of which the container is not known are for all."""
    name = str(container.get("name", ""))
    own = [request for need, request in request_of.items() if name in containers.get(need, {name})]
    if not own:
        return container
    resources = container.get("resources") or {}
    entries = [{"name": f"{PIN_PREFIX}{MADE}", "request": request} for request in own]
    return {**container, "resources": {**resources, "claims": [*(resources.get("claims") or ()), *entries]}}


def _pinned_spec(
    spec: Manifest, prefix: str, devices: Mapping[str, list[str]], original: Manifest
) -> tuple[Manifest, list[Manifest]]:
    """Returns the spec of a claim that asks for pinned classes, and the classes. Of alternatives those that slots have stay."""
    classes: list[Manifest] = []

    def pinned(ask: Manifest, need: str) -> Manifest:
        if need not in devices:
            return ask
        name = _pin_name(prefix, need)
        annotations = {
            CLASS_OF_PIN: str(ask.get("deviceClassName", "")),
            PINNED_DEVICES: encode(devices[need]).decode(),
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


def _pin_name(prefix: str, need: str) -> str:
    """Returns the name of the class that pins a request."""
    return f"{prefix}-{need.replace('/', '-')}"


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
