"""Completes the DeviceClasses that pin claims to devices: selectors see attributes only, so the devices are named by what tells
them apart in this cluster. Devices that nothing tells apart are equal to every selector, and each of them will do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.cel import MAX_LENGTH
from moorage.podspec import (
    CLASS_OF_PIN,
    DEVICES_GATE,
    PIN_PREFIX,
    PINNED_DEVICES,
    VACATED_DEVICES,
    has_gate,
    template,
    template_path,
    with_value,
)

from .classes import DeviceClasses
from .objects import DeviceBody
from .slices import Devices

Manifest = dict[str, Any]
#: Attributes that are likely to be a device's own, best first.
_OWN_NAMES = ("uuid", "pciBusID", "pcieBusID", "pciAddress", "serial", "serialNumber", "index", "minor")
_read_ids = msgspec.json.Decoder(list[str]).decode
_read_vacated = msgspec.json.Decoder(dict[str, list[str]]).decode


class UnknownClass(Exception):
    """There is no such DeviceClass in the cluster."""


class _Attribute(NamedTuple):
    domain: str
    name: str
    value: str | int | bool


def vacated_by(annotations: Mapping[str, str] | None) -> dict[str, frozenset[str]]:
    """Returns the devices that failed and that pods are to leave, by claim, as a class that pins says. What somebody else wrote
    there says nothing."""
    text = (annotations or {}).get(VACATED_DEVICES, "")
    try:
        found = _read_vacated(text) if text else {}
    except msgspec.MsgspecError:
        return {}
    return {claim: frozenset(devices) for claim, devices in found.items()}


def is_pin(manifest: Mapping[str, Any]) -> bool:
    """Returns whether the object is a DeviceClass that pins a request."""
    return manifest.get("kind") == "DeviceClass" and PINNED_DEVICES in (manifest["metadata"].get("annotations") or {})


def completed(manifest: Manifest, classes: DeviceClasses, devices: Devices) -> Manifest:
    """Returns the class with the selectors and the configuration of the one that was asked for, and one selector more that names
    the devices. Raises UnknownClass."""
    annotations = manifest["metadata"]["annotations"]
    name = annotations.get(CLASS_OF_PIN, "")
    spec = classes.spec(name) if name else {"selectors": []}  # a class of the mesh, which chose the devices
    if spec is None:
        raise UnknownClass(f"there is no DeviceClass {name!r}")
    pin = selector_of(_read_ids(annotations[PINNED_DEVICES]), devices)
    return {**manifest, "spec": {**spec, "selectors": [*spec["selectors"], {"cel": {"expression": pin}}]}}


def with_gate(manifest: Manifest) -> Manifest:
    """Returns the object with a gate at which its pods wait until their claims are allocated, if they have any that are pinned."""
    found = template(manifest) if has_gate(str(manifest.get("kind", ""))) else None
    spec = (found or {}).get("spec") or {}
    names = [str(claim.get("resourceClaimTemplateName", "")) for claim in spec.get("resourceClaims") or ()]
    if not any(name.startswith(PIN_PREFIX) for name in names):
        return manifest
    gates = [*(spec.get("schedulingGates") or ()), {"name": DEVICES_GATE}]
    changed: Manifest = with_value(manifest, [*(template_path(manifest) or ()), "spec", "schedulingGates"], gates)
    return changed


def selector_of(idents: Sequence[str], devices: Devices) -> str:
    """Returns an expression that selects these devices, of those that there are, and no others that differ in anything. One that
    would be too long selects all of their drivers."""
    by_driver: dict[str, set[str]] = {}
    for ident in idents:
        by_driver.setdefault(ident.partition("/")[0], set()).add(ident)
    terms: list[str] = []
    for driver, wanted in sorted(by_driver.items()):
        known = dict(devices.of_driver(driver))
        terms += _of_driver(driver, {i: known[i] for i in sorted(wanted & known.keys())}, known.values())
    text = " || ".join(terms) or "false"
    if len(text.encode()) > MAX_LENGTH:
        text = " || ".join(f"device.driver == {json.dumps(driver)}" for driver in sorted(by_driver))
    return text


def _of_driver(driver: str, wanted: Mapping[str, DeviceBody], known: Iterable[DeviceBody]) -> Iterable[str]:
    """Yields terms, one for each attribute by whose values devices are named, and one for each device that has no such attribute."""
    counts: Counter[_Attribute] = Counter()
    for body in known:
        counts.update(_attributes(driver, body))
    values: dict[tuple[str, str], list[str]] = {}
    alike: dict[str, None] = {}
    for body in wanted.values():
        attributes = _attributes(driver, body)
        own = min((a for a in attributes if counts[a] == 1), key=_rank, default=None)
        if own is not None:
            values.setdefault((own.domain, own.name), []).append(json.dumps(own.value))
        else:
            alike[" && ".join([_is(driver), *map(_equals, attributes)])] = None
    for (domain, name), found in sorted(values.items()):
        path = f"device.attributes[{json.dumps(domain)}]"
        yield f"({_is(driver)} && has({path}.{name}) && {path}.{name} in [{', '.join(sorted(found))}])"
    yield from (f"({term})" for term in alike)


def _attributes(driver: str, body: DeviceBody) -> list[_Attribute]:
    """Returns the attributes that can be compared as they are, in a fixed order."""
    found = []
    for key, given in (body.attributes or {}).items():
        domain, slash, name = key.partition("/")
        kind, value = next(iter(given.items()), ("", None)) if isinstance(given, dict) else ("", None)
        if kind in ("string", "int", "bool") and isinstance(value, str | int):
            found.append(_Attribute(domain if slash else driver, name if slash else key, value))
    return sorted(found, key=_rank)


def _rank(attribute: _Attribute) -> tuple[int, str, str]:
    """Orders attributes: those first that are likely to stay a device's own."""
    name = attribute.name
    return (_OWN_NAMES.index(name) if name in _OWN_NAMES else len(_OWN_NAMES), name, attribute.domain)


def _is(driver: str) -> str:
    return f"device.driver == {json.dumps(driver)}"


def _equals(attribute: _Attribute) -> str:
    path = f"device.attributes[{json.dumps(attribute.domain)}]"
    return f"has({path}.{attribute.name}) && {path}.{attribute.name} == {json.dumps(attribute.value)}"
