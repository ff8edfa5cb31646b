"""Says what the devices of slots mean for further pods. All pods of a claim are pinned to the devices of all its slots, and no selector
tells devices apart that look alike, so they may get what looks like these. Of claims that pods have together they need nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from moorage.fleet import Fleet
from moorage.model.candidates import OwnClaim
from moorage.model.shapes import Shape
from moorage.model.slots import Slot, resized


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


def hold_common(wanted: Sequence[CommonUser], kept: Sequence[list[Slot]]) -> set[str]:
    """Returns the claims that pods have together and of which slots that stay have the devices: further pods need no others. Where the
    slot that had them does not stay, another one of its object and node gets them. `kept`: by object the slots that stay."""
    held: set[str] = set()
    for one, slots in zip(wanted, kept, strict=True):
        for claim, requests in _common(one.shape).items():
            if any(_has(slot, requests) for slot in slots):
                held.add(claim)
    for one, slots in zip(wanted, kept, strict=True):
        before = [slot for claim in one.own for slot in claim.slots]
        for claim, requests in _common(one.shape).items():
            had = next((slot for slot in before if _has(slot, requests)), None) if claim not in held else None
            at = next((i for i, slot in enumerate(slots) if had is not None and slot.node == had.node), None)
            if had is not None and at is not None:
                slots[at : at + 1] = _given(slots[at], had, requests)
                held.add(claim)
    return held


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


def _given(slot: Slot, had: Slot, requests: Iterable[str]) -> list[Slot]:
    """Returns the slot with what another one had for these requests, for one of its pods."""
    devices = [grant for grant in had.devices if _is_of(grant.need, requests)]
    parts = {grant.part: had.parts[grant.part] for grant in devices if grant.part in had.parts}
    first = msgspec.structs.replace(slot, count=1, parts={**slot.parts, **parts}, devices=[*slot.devices, *devices])
    return [first, *([resized(slot, slot.count - 1)] if slot.count > 1 else [])]


def without_common(shape: Shape, claims: Collection[str]) -> Shape:
    """Returns the shape without the devices of these claims, which pods have together. They are where the others are by a rule."""
    if not claims or all(group.shared not in claims for group in shape.groups):
        return shape
    return msgspec.structs.replace(shape, groups=[group for group in shape.groups if group.shared not in claims])
