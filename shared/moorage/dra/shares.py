"""Writes into templates how much pods take of devices that can be divided. What capacities are called only the cluster knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.parts.device_parts import class_of
from moorage.podspec import TEMPLATE_SHARES

from .slices import Devices

Manifest = dict[str, Any]


class RequestShares(msgspec.Struct, kw_only=True):
    """The amounts that a request takes of each of these devices, by class."""

    devices: list[str] = []
    amounts: dict[str, int] = {}


_read = msgspec.json.Decoder(dict[str, RequestShares]).decode


def has_shares(manifest: Mapping[str, Any]) -> bool:
    """Returns whether the object is a template that asks for shares of devices."""
    metadata = manifest.get("metadata") or {}
    return manifest.get("kind") == "ResourceClaimTemplate" and TEMPLATE_SHARES in (metadata.get("annotations") or {})


def with_shares(manifest: Manifest, devices: Devices) -> Manifest:
    """Returns the template whose requests ask for the capacities of their devices. What somebody else wrote asks for nothing."""
    try:
        shares = _read(manifest["metadata"]["annotations"][TEMPLATE_SHARES])
    except msgspec.MsgspecError:
        return manifest
    given = manifest["spec"]["spec"]["devices"]
    requests = []
    for request in given.get("requests") or ():
        asks = [
            _asking(ask, shares.get(f"{request.get('name')}/{ask.get('name')}"), devices)
            for ask in request.get("firstAvailable") or ()
        ]
        requests.append({**request, "firstAvailable": asks} if asks else request)
    spec = {**manifest["spec"]["spec"], "devices": {**given, "requests": requests}}
    return {**manifest, "spec": {**manifest["spec"], "spec": spec}}


def _asking(ask: Manifest, share: RequestShares | None, devices: Devices) -> Manifest:
    if share is None:
        return ask
    names: dict[str, str] = {}
    for driver in sorted({ident.partition("/")[0] for ident in share.devices}):
        for ident, body in devices.of_driver(driver):
            if ident in share.devices and body.allow_multiple_allocations:
                names |= {class_of(name): name for name in sorted(body.capacity or {})}
    asked = {names[of]: str(amount) for of, amount in sorted(share.amounts.items()) if of in names}
    capacity = ask.get("capacity") or {}
    return (
        {**ask, "capacity": {**capacity, "requests": {**asked, **(capacity.get("requests") or {})}}} if asked else ask
    )
