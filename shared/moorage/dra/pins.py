"""Completes the DeviceClasses that pin claims to devices: selectors see attributes only, so the devices are named by what tells
them apart in this cluster. Devices that nothing tells apart are equal to every selector, and each of them will do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

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
from .device_selectors import MAX_SELECTORS, selectors_of
from .slices import Devices

Manifest = dict[str, Any]
_read_ids = msgspec.json.Decoder(list[str]).decode
_read_vacated = msgspec.json.Decoder(dict[str, list[str]]).decode


class UnknownClass(Exception):
    """There is no such DeviceClass in the cluster."""


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
    """Returns the class with the selectors and the configuration of the one that was asked for, and more selectors that name the
    devices. Raises UnknownClass."""
    annotations = manifest["metadata"]["annotations"]
    name = annotations.get(CLASS_OF_PIN, "")
    spec = classes.spec(name) if name else {"selectors": []}  # a class of the mesh, which chose the devices
    if spec is None:
        raise UnknownClass(f"there is no DeviceClass {name!r}")
    given = spec["selectors"]
    pins = selectors_of(_read_ids(annotations[PINNED_DEVICES]), devices, MAX_SELECTORS - len(given))
    return {**manifest, "spec": {**spec, "selectors": [*given, *({"cel": {"expression": pin}} for pin in pins)]}}


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
