"""Returns which devices the slots of a claim give to the requests of ResourceClaims."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import msgspec

from moorage.model.claims import Claim, Decision
from moorage.model.slots import DeviceGrant, is_claimed, is_of_claim

#: The pod's name for the claim that is made for its needs for devices of classes; no claim of a document is called so.
MADE = "needs"
encode = msgspec.json.Encoder(order="sorted").encode


def devices_of(claim: Claim) -> dict[str, list[str]]:
    """Returns the devices of a claim's slots by CLAIM/REQUEST[/ALTERNATIVE]. Needs for devices of classes are requests of a claim
    that is made for them, with one alternative for each number of devices that pods have."""
    found: dict[str, dict[str, None]] = {}
    if not _has_devices(claim):
        return {}
    for granted in claimed_of(claim):
        for need, grant in granted:
            found.setdefault(need, {})[grant.part] = None
    return {need: sorted(devices) for need, devices in sorted(found.items())}


def _has_devices(claim: Claim) -> bool:
    return any(slot.devices for slot in claim.slots)


def claimed_of(claim: Claim) -> list[list[tuple[str, DeviceGrant]]]:
    """Returns the devices that pods of each slot get by a ResourceClaim, with its request. Alternatives that ask for as many of
    different classes, or for other shares, are told apart by these."""
    found: list[list[tuple[str, DeviceGrant]]] = []
    variants: dict[str, set[str]] = {}
    for slot in claim.slots:
        granted = [grant for grant in slot.devices if is_claimed(slot, grant)]
        counts = Counter(need for need, _ in {(grant.need, grant.part) for grant in granted})
        needs = [g.need if is_of_claim(g.need) else f"{MADE}/{g.need}/{counts[g.need]}" for g in granted]
        found.append(list(zip(needs, granted, strict=True)))
        for need, grant in found[-1]:
            variants.setdefault(need, set()).add(_variant(grant, granted))
    several = {need for need, of in variants.items() if len(of) > 1 and need.startswith(f"{MADE}/")}
    return [
        [
            (f"{need}-{short_hash(_variant(grant, slot.devices))[:6]}" if need in several else need, grant)
            for need, grant in granted
        ]
        for slot, granted in zip(claim.slots, found, strict=True)
    ]


def _variant(grant: DeviceGrant, granted: Iterable[DeviceGrant]) -> str:
    """Returns what an alternative is besides a number of devices: its class, and what is taken of each device."""
    amounts = sorted((one.name, one.amount) for one in granted if (one.need, one.part) == (grant.need, grant.part))
    return f"{grant.resource_class} {amounts}" if len(amounts) > 1 or amounts[0][1] != 1 else grant.resource_class


def slots_of(claim: Claim, name: str) -> str:
    """Returns the slots as the annotation of a template: of each its node, and the devices of the pod's claim `name` by request."""
    slots = []
    for slot, granted in zip(claim.slots, claimed_of(claim), strict=True):
        devices: dict[str, dict[str, None]] = {}
        for need, grant in granted:
            if need.startswith(f"{name}/"):
                devices.setdefault(need.partition("/")[2], {})[grant.part] = None
        slots += [{"node": slot.node, "devices": {r: list(found) for r, found in devices.items()}}] * slot.count
    return encode(slots).decode()


def pins_by_claim(decision: Decision) -> dict[str, str]:
    """Returns what changes with the devices of claims, by claim, of those that have devices."""
    found: dict[str, object] = {}
    for claim in decision.claims:
        if devices := devices_of(claim):
            found[claim.id] = [devices, claim.vacated] if claim.vacated else devices
        elif _has_devices(claim):
            found[claim.id] = [[slot.node, slot.count, [grant.part for grant in slot.devices]] for slot in claim.slots]
    return {ident: hashlib.blake2b(encode(devices), digest_size=8).hexdigest() for ident, devices in found.items()}


def short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
