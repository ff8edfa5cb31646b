"""Tells which slots of a claim stay, and where a DaemonSet lacks some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moorage.fit.node_filter import eligible
from moorage.fleet import Fleet
from moorage.model.candidates import OwnClaim
from moorage.model.shapes import Shape
from moorage.model.slots import Slot, part_and_class, resized, taken_by

from .families import CountedClaim
from .room import free_of


def kept_slots(slots: Sequence[Slot], claim: str, count: int, cid: int | None, fleet: Fleet) -> tuple[list[Slot], int]:
    """Returns the slots of a claim that stay for `count` pods, and how many pods still need one. The hash of the template is
    part of the claim's id, so claims of one id have pods of one size. Slots with pods come first; open ones are kept only
    where they fit on a usable node."""
    left = [slot.count for slot in slots]
    if cid is not None:
        left = CountedClaim.reported(slots, claim, cid, fleet).open
    kept: dict[int, int] = {}  # number of the slot → pods
    missing = count
    for number, slot in enumerate(slots):
        kept[number] = min(missing, slot.count - left[number])
        missing -= kept[number]
    for number, slot in enumerate(slots):
        pods = min(missing, left[number])
        if pods and (cid is None or (may_start(slot, claim, cid, fleet) and _has_room(slot, cid, fleet))):
            kept[number] += pods
            missing -= pods
    return with_counts(slots, kept), missing


def daemon_set_fits(claim: OwnClaim, cid: int, fleet: Fleet) -> bool:
    """Returns whether the open slots of a DaemonSet's claim have room where they are."""
    left = CountedClaim.reported(claim.slots, claim.id, cid, fleet).open
    return all(not count or _has_room(slot, cid, fleet) for slot, count in zip(claim.slots, left, strict=True))


def nodes_without_slot(shape: Shape, claim: OwnClaim, cid: int, fleet: Fleet) -> list[str]:
    """Returns the nodes that a DaemonSet selects and on which its claim has no slot."""
    rows = fleet.rows_of(cid)
    selected = fleet.names_at(cid, rows[eligible(fleet, shape, rows)])
    have = {slot.node for slot in claim.slots}
    return [node for node in selected if node not in have]


def with_counts(slots: Sequence[Slot], counts: Mapping[int, int]) -> list[Slot]:
    """Returns the slots, in their order, each for so many pods."""
    return [resized(slots[number], pods) for number, pods in sorted(counts.items()) if pods]


def may_start(slot: Slot, claim: str, cid: int, fleet: Fleet) -> bool:
    """Returns whether pods of the claim could start on the slot's node: it is usable, and did not refuse one. A settlement would
    take an open slot back from any other node, and the next decision would give it there again."""
    row = fleet.row_of(cid, slot.node)
    return row is not None and bool(fleet.usable[row]) and slot.node not in fleet.pods.refused_of(cid).get(claim, ())


def _has_room(slot: Slot, cid: int, fleet: Fleet) -> bool:
    """Returns whether an open slot fits on its node. It is taken from what the node has free already."""
    row = fleet.row_of(cid, slot.node)
    if row is None:
        return False
    return all(_is_free(fleet, row, name) for name, amount in taken_by(slot).items() if amount)


def _is_free(fleet: Fleet, row: int, name: str) -> bool:
    """Returns whether a node lacks nothing of what is taken of it. A part that is gone has no room."""
    free = free_of(fleet, row, name)
    return part_and_class(name) is None if free is None else free >= 0
