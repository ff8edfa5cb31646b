"""Writes pins into templates where a ResourceQuota counts devices by class: requests for a class of another name would go round it.

Templates cannot be changed, so one with other devices has another name, and pods that move there restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.kube.objects import Key
from moorage.parsing import parse_amount
from moorage.podspec import (
    CLASS_OF_PIN,
    PIN_PREFIX,
    PINNED_DEVICES,
    template,
    template_path,
    with_value,
)
from moorage.podspec.device_shares import DEVICE_CLASS

from .device_selectors import MAX_SELECTORS, selectors_of
from .objects import ResourceQuota
from .pins import is_pin
from .slices import Devices

Manifest = dict[str, Any]
#: Ends the names by which quotas count devices that claims ask for, after the name of a class.
_COUNTED = ".deviceclass.resource.k8s.io/devices"
#: Begins the names by which quotas count requests for resources.
_REQUESTED = "requests."
_read_ids = msgspec.json.Decoder(list[str]).decode


#: The code of a warning: a template names devices itself, because a quota counts them by class.
PINNED_BY_TEMPLATE = "PinnedByTemplate"


class QuotaPins(NamedTuple):
    """The objects of an app, and its templates that have pins, each with the classes that quotas count, by namespace and name."""

    manifests: list[Manifest]
    templates: dict[tuple[str, str], list[str]]

    def notice(self, kind: str, namespace: str, name: str) -> str:
        """Returns what to tell users of an object; "" if nothing."""
        classes = self.templates.get((namespace, name)) if kind == "ResourceClaimTemplate" else None
        if not classes:
            return ""
        return (
            f"a ResourceQuota of namespace {namespace} counts devices of {', '.join(classes)}, so the template names the"
            " devices itself: pods restart when they get others"
        )


class Quotas:
    """The ResourceQuotas of a cluster, as far as they count devices by class. `serving` returns the class that serves an extended
    resource, or ""."""

    def __init__(self, serving: Callable[[str], str] = lambda _: "") -> None:
        self._serving = serving
        self._limits: dict[Key, dict[str, int]] = {}  # by name in the quota

    def put(self, key: Key, found: ResourceQuota) -> None:
        """Takes over a quota. One whose amount cannot be read allows nothing, as no API server has it."""
        limits = {
            name: _amount(hard)
            for name, hard in (found.spec.hard or {}).items()
            if name.endswith(_COUNTED) or (name.startswith(_REQUESTED) and "/" in name)
        }
        if limits:
            self._limits[key] = limits
        else:
            self._limits.pop(key, None)

    def drop(self, key: Key) -> None:
        self._limits.pop(key, None)

    def of(self, namespace: str) -> frozenset[str]:
        """Returns the classes that quotas of a namespace count."""
        return frozenset(name for name, _ in self._by_class(namespace))

    def limit(self, namespace: str, name: str) -> int | None:
        """Returns how many devices of a class the claims of a namespace may ask for; None if no quota counts them."""
        return min((amount for of, amount in self._by_class(namespace) if of == name), default=None)

    def _by_class(self, namespace: str) -> Iterator[tuple[str, int]]:
        """Yields limits by class. Kubernetes counts claims for a class also as requests for the extended resource that it serves."""
        for key, of in self._limits.items():
            for name, amount in of.items() if key.namespace == namespace else ():
                if name.endswith(_COUNTED):
                    yield name.removesuffix(_COUNTED), amount
                elif name.startswith(_REQUESTED + DEVICE_CLASS):
                    yield name.removeprefix(_REQUESTED + DEVICE_CLASS), amount
                elif found := self._serving(name.removeprefix(_REQUESTED)):
                    yield found, amount


def _amount(hard: object) -> int:
    try:
        return parse_amount("pods", str(hard), True)
    except ValueError:
        return 0


def with_quotas(
    manifests: Sequence[Manifest], counted: Callable[[str], Collection[str]], devices: Callable[[], Devices]
) -> QuotaPins:
    """Returns the objects with pins in the templates that ask for classes which quotas count. `counted`: these of a namespace."""
    pins = {m["metadata"]["name"]: m["metadata"]["annotations"] for m in manifests if is_pin(m)}
    names: dict[tuple[str, str], str] = {}
    found: dict[tuple[str, str], list[str]] = {}
    result: list[Manifest] = []
    for manifest in manifests:
        namespace, name = _key(manifest)
        pinned = manifest.get("kind") == "ResourceClaimTemplate" and name.startswith(PIN_PREFIX)
        limited = counted(namespace) if pinned else ()
        of = {a["deviceClassName"]: pins[a["deviceClassName"]] for a in _asks(manifest) if a["deviceClassName"] in pins}
        of = {pin: text for pin, text in of.items() if text.get(CLASS_OF_PIN) in limited}
        if of:
            made = f"{name}-{_short(sorted((pin, text[PINNED_DEVICES]) for pin, text in of.items()))}"
            names[namespace, name] = made
            found[namespace, made] = sorted({text[CLASS_OF_PIN] for text in of.values()})
            manifest = _pinned(manifest, made, of, devices())
        result.append(manifest)
    return QuotaPins([_renamed(manifest, names) for manifest in result] if names else result, found)


def _pinned(manifest: Manifest, name: str, pins: Mapping[str, Mapping[str, str]], devices: Devices) -> Manifest:
    def pinned(ask: Manifest) -> Manifest:
        pin = pins.get(ask.get("deviceClassName", ""))
        if pin is None:
            return ask
        given = ask.get("selectors") or ()
        more = selectors_of(_read_ids(pin[PINNED_DEVICES]), devices, MAX_SELECTORS - len(given))
        selectors = [*given, *({"cel": {"expression": expression}} for expression in more)]
        return {**ask, "deviceClassName": pin[CLASS_OF_PIN], "selectors": selectors}

    given = manifest["spec"]["spec"]["devices"]
    requests = []
    for request in given.get("requests") or ():
        if request.get("firstAvailable"):
            request = {**request, "firstAvailable": [pinned(one) for one in request["firstAvailable"]]}
        elif request.get("exactly"):
            request = {**request, "exactly": pinned(request["exactly"])}
        else:
            request = pinned(request)
        requests.append(request)
    spec = {**manifest["spec"]["spec"], "devices": {**given, "requests": requests}}
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "name": name},
        "spec": {**manifest["spec"], "spec": spec},
    }


def _asks(manifest: Manifest) -> Iterable[Manifest]:
    if manifest.get("kind") != "ResourceClaimTemplate":
        return
    given = ((manifest.get("spec") or {}).get("spec") or {}).get("devices") or {}
    for request in given.get("requests") or ():
        for ask in request.get("firstAvailable") or (request.get("exactly") or request,):
            if ask.get("deviceClassName"):
                yield ask


def _renamed(manifest: Manifest, names: Mapping[tuple[str, str], str]) -> Manifest:
    found = template(manifest)
    claims = ((found or {}).get("spec") or {}).get("resourceClaims") or ()
    namespace = _key(manifest)[0]
    if found is None or not any((namespace, c.get("resourceClaimTemplateName")) in names for c in claims):
        return manifest
    entries = [
        {**entry, "resourceClaimTemplateName": names[namespace, entry["resourceClaimTemplateName"]]}
        if (namespace, entry.get("resourceClaimTemplateName")) in names
        else entry
        for entry in claims
    ]
    changed: Manifest = with_value(manifest, [*(template_path(manifest) or ()), "spec", "resourceClaims"], entries)
    return changed


def _key(manifest: Manifest) -> tuple[str, str]:
    metadata = manifest.get("metadata") or {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name", ""))


def _short(value: object) -> str:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=4).hexdigest()
