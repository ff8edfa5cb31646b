"""Tells which devices pods of a claim may get because they look like those of its other slots. All pods of a claim are pinned to the
devices of all its slots, and no selector tells devices apart that look alike.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from moorage.fleet import Fleet
from moorage.model.shapes import Shape
from moorage.model.slots import Slot


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
        at = layout.at.get(fleet.path_of(row, part, layout))
        device = layout.parts[at].device if at is not None else -1
        if device >= 0 and layout.inside.devices[device].alike:
            yield layout.inside.devices[device].alike
