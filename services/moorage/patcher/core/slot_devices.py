"""Tells agents which devices the slots of a claim name that pods get without ResourceClaims: those of device plugins and of nodes. The
annotation is the object's own, so no pod restarts when slots move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.classes.device_sources import HUGE_PAGES
from moorage.model.claims import Claim
from moorage.model.part_names import is_class
from moorage.model.slots import DeviceGrant, Slot, is_claimed
from moorage.parsing import parse_amount
from moorage.podspec import SLOT_DEVICES, template, with_value

Manifest = dict[str, Any]
#: A longer annotation is left out, in bytes.
MAX_ANNOTATION = 64 << 10
_encode = msgspec.json.Encoder(order="sorted").encode


def with_slot_devices(manifest: Manifest, claim: Claim, containers: Mapping[str, set[str]]) -> Manifest:
    """Returns the object with the devices of its slots by node. `containers` are those of needs, by name; the first container has
    what is for none."""
    if not any(slot.devices for slot in claim.slots):
        return manifest
    spec = (template(manifest) or {}).get("spec") or {}
    first = [str(one.get("name", "")) for one in spec.get("containers") or ()][:1]
    runs = [
        {"node": slot.node, "count": slot.count, "devices": found}
        for slot in claim.slots
        if slot.node and (found := _devices(slot, claim, containers, first))
    ]
    text = _encode({claim.id: runs}).decode() if runs else ""
    if not text or len(text) > MAX_ANNOTATION:
        return manifest
    changed: Manifest = with_value(manifest, ["metadata", "annotations", SLOT_DEVICES], text)
    return changed


def _devices(slot: Slot, claim: Claim, containers: Mapping[str, set[str]], first: list[str]) -> list[dict[str, Any]]:
    """Returns the devices by need: how many of each part."""
    counts: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for grant in slot.devices:
        if not is_claimed(slot, grant):
            of_part = counts.setdefault((grant.need, grant.resource_class), {}).setdefault(grant.part, Counter())
            of_part[grant.name] += _number(grant)
    return [
        {
            "class": name,
            "classUid": version.uid if (version := claim.classes.get(name)) is not None else "",
            "algorithm": version.algorithm if version is not None else "",
            "request": need,
            "containers": sorted(containers.get(need) or first),
            "parts": {part: max(by_name.values()) for part, by_name in parts.items()},
        }
        for (need, name), parts in counts.items()
    ]


def _number(grant: DeviceGrant) -> int:
    """Returns how many devices a grant is. Of a resource of the node it is an amount; else it is one device, or a share of it."""
    if is_class(grant.name):
        return 1
    size = grant.name.removeprefix(HUGE_PAGES) if grant.name.startswith(HUGE_PAGES) else ""
    return grant.amount // parse_amount("memory", size, True) if size else grant.amount
