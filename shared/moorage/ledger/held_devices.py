"""Says what the devices of slots mean for further pods. All pods of a claim are pinned to the devices of all its slots, and no selector
tells devices apart that look alike, so they may get what looks like these. Of claims that pods have together they need nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from moorage.fleet import Fleet
from moorage.model.candidates import OwnClaim
from moorage.model.shapes import Shape
from moorage.model.slots import DeviceGrant, Slot, resized


def further_pods(shape: Shape, slots: Iterable[Slot], fleet: Fleet, cid: int) -> Shape:
    """Returns the shape of further pods of a claim that has these slots."""
    if not any(group.devices for group in shape.groups):
        return shape
    alike = {number for slot in slots if slot.devices for number in _numbers(slot, fleet, cid)}
    return msgspec.structs.replace(shape, alike=sorted(alike)) if alike else shape


def _numbers(slot: Slot, fleet: Fleet, cid: int) -> Iterable[int]:
    row = fleet.row_of(cid, slot.node)
    if row is None:
        return
    _, layout = fleet.inside(row)
    for part in {grant.part for grant in slot.devices}:
        if number := layout.alike(fleet.path_of(row, part, layout)):
            yield number


class CommonUser(Protocol):
    """An object whose pods may have claims together with others."""

    @property
    def shape(self) -> Shape: ...
    @property
    def own(self) -> Sequence[OwnClaim]: ...
    @property
    def beside(self) -> Sequence[OwnClaim]: ...


def hold_common(wanted: Sequence[CommonUser], kept: Sequence[list[Slot]]) -> set[str]:
    """Returns the claims that pods have together and of which slots that stay have the devices: further pods need no others. Where the
    slot that had them does not stay, another one of its node gets them, of its object before those of others. `kept`: by object the
    slots that stay."""
    commons = {one.shape.object: _common(one.shape) for one in wanted}
    held: set[str] = set()
    for one, slots in zip(wanted, kept, strict=True):
        for claim, requests in commons[one.shape.object].items():
            if any(_has(slot, requests) for slot in slots):
                held.add(claim)
    for of_others in (False, True):
        for one, slots in zip(wanted, kept, strict=True):
            for claim, requests in commons[one.shape.object].items():
                if claim in held:
                    continue
                had = _left_by_others(one, commons, claim) if of_others else _had(one.own, requests)
                at = next((i for i, slot in enumerate(slots) if had is not None and slot.node == had.node), None)
                if had is not None and at is not None:
                    slots[at : at + 1] = _given(slots[at], had)
                    held.add(claim)
    return held


def _had(claims: Iterable[OwnClaim], requests: Sequence[str]) -> Slot | None:
    """Returns the slot that had devices for these requests, with these alone."""
    slot = next((slot for claim in claims for slot in claim.slots if _has(slot, requests)), None)
    if slot is None:
        return None
    return _with_devices(slot, [grant for grant in slot.devices if _is_of(grant.need, requests)])


def _left_by_others(one: CommonUser, commons: Mapping[str, Mapping[str, list[str]]], claim: str) -> Slot | None:
    """Returns the slot of another object that had the devices of a claim, with these alone, by the needs of this object. Pods of an object
    that is gone may have called the claim anything: its slot counts if no other one had devices for such requests."""
    needs = {need.partition("/")[2]: need for need in commons[one.shape.object][claim]}
    found: list[Slot] = []
    for other in one.beside:
        theirs = commons.get(other.object)
        if theirs is not None and claim not in theirs:
            continue
        called = {need.partition("/")[0] for need in theirs[claim]} if theirs is not None else None
        for slot in other.slots:
            devices: dict[str, list[DeviceGrant]] = {}
            for grant in slot.devices:
                name, _, asked = grant.need.partition("/")
                request, _, alternative = asked.partition("/")
                if request in needs and (called is None or name in called):
                    need = f"{needs[request]}/{alternative}" if alternative else needs[request]
                    devices.setdefault(name, []).append(msgspec.structs.replace(grant, need=need))
            found += [_with_devices(slot, of_claim) for of_claim in devices.values()]
    return found[0] if len(found) == 1 else None


def _common(shape: Shape) -> dict[str, list[str]]:
    """Returns the requests of each claim that the pods have together with others."""
    found: dict[str, list[str]] = {}
    for group in shape.groups:
        if group.shared:
            found.setdefault(group.shared, []).append(group.suffix)
    return found


def _is_of(need: str, requests: Iterable[str]) -> bool:
    """Returns whether a need of a grant, CLAIM/REQUEST[/ALTERNATIVE], is of one of these requests, CLAIM/REQUEST."""
    return any(need == request or need.startswith(f"{request}/") for request in requests)


def _has(slot: Slot, requests: Iterable[str]) -> bool:
    return any(_is_of(grant.need, requests) for grant in slot.devices)


def _with_devices(slot: Slot, devices: list[DeviceGrant]) -> Slot:
    parts = {grant.part: slot.parts[grant.part] for grant in devices if grant.part in slot.parts}
    return msgspec.structs.replace(slot, devices=devices, parts=parts)


def _given(slot: Slot, had: Slot) -> list[Slot]:
    """Returns the slot with the devices that another one had, for one of its pods."""
    parts, devices = {**slot.parts, **had.parts}, [*slot.devices, *had.devices]
    first = msgspec.structs.replace(slot, count=1, parts=parts, devices=devices)
    return [first, *([resized(slot, slot.count - 1)] if slot.count > 1 else [])]


def without_common(shape: Shape, claims: Collection[str]) -> Shape:
    """Returns the shape without the devices of these claims, which pods have together. They are where the others are by a rule."""
    if not claims or all(group.shared not in claims for group in shape.groups):
        return shape
    return msgspec.structs.replace(shape, groups=[group for group in shape.groups if group.shared not in claims])
