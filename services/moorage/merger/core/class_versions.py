"""Tells which resource classes slots have their devices by. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.model.claims import Claim
from moorage.model.part_requests import ClassVersion
from moorage.model.shapes import Shape
from moorage.model.slots import DeviceGrant, Slot


def class_versions(
    slots: Sequence[Slot], shape: Shape | None, cluster: str, before: Claim | None
) -> dict[str, ClassVersion]:
    """Returns the classes of these slots, as the shape has them. Where the claim had all devices of a class before, it is the class
    that it was then."""
    granted = {(grant.resource_class, grant.part) for slot in slots for grant in slot.devices if grant.resource_class}
    if not granted:
        return {}
    known = before.classes if before is not None else {}
    had = {(grant.resource_class, grant.part) for grant in _grants(before)}
    asked = {ask.resource_class: ask.versions for group in shape.groups for ask in group.devices} if shape else {}
    found: dict[str, ClassVersion] = {}
    for name in sorted({name for name, _ in granted}):
        versions = asked.get(name, {})
        now = versions.get(cluster) or versions.get("")
        is_new = any(one not in had for one in granted if one[0] == name)
        version = (now or known.get(name)) if is_new else (known.get(name) or now)
        if version is not None:
            found[name] = version
    return found


def _grants(claim: Claim | None) -> list[DeviceGrant]:
    return [grant for slot in claim.slots for grant in slot.devices] if claim is not None else []
