"""Lets the slots of DaemonSets follow the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from moorage.fit.budget import BudgetExceeded
from moorage.fit.inner_nodes import InnerNodes
from moorage.fit.node_filter import eligible
from moorage.model.claims import Slot
from moorage.model.shapes import Shape
from moorage.model.slots import moved, part_resources, place_in, resized, taken_by, with_parts

from .open_places import Place, is_per_node
from .settlement_draft import Draft


def follow_nodes(draft: Draft) -> dict[str, Mapping[str, int]]:
    """Gives each DaemonSet a slot on every node that it selects, and none elsewhere unless a pod is there. Returns the
    groups for which a node has no room, with the amounts of such a pod."""
    short: dict[str, Mapping[str, int]] = {}
    for ident, active in draft.active.items():
        claim = active.claim
        if draft.is_older(ident) or not is_per_node(claim) or not claim.slots:
            continue
        shape = draft.shape_of(claim, active.group)
        if shape is None:
            continue
        wanted = set(draft.fleet.names_at(draft.cid, draft.where[eligible(draft.fleet, shape, draft.where)]))
        for place in draft.places:
            if place.family == active.family and place.node not in wanted and _is_left(draft, place.node):
                place.dropped = True
        model, have = claim.slots[0], {slot.node for slot in claim.slots}
        strays = draft.strays.get(active.family, {})
        if wanted <= have:
            continue
        room = draft.room_beside(draft.open())
        for node, amounts in draft.held():
            room.take(node, amounts)
        for node in sorted(wanted - have):
            plain = resized(moved(model, node, draft.host(node)), 1, surge=False)
            slot = _with_parts(draft, plain, shape) if model.parts else plain
            if slot is not None and slot.parts:
                for known in (draft.room, room):
                    known.know(node, part_resources(slot.parts))
            if strays.get(node):
                draft.covered[ident].append(slot or plain)
            elif slot is not None and room.has(node, taken_by(slot)):
                room.take(node, taken_by(slot))
                none = {ident: msgspec.structs.replace(slot, node="", host="")}
                place = Place(active.group, claim, active.family, False, none, taken_by(slot), node, slot.host)
                place.inside = place_in(slot) if slot.parts else None
                draft.places.append(place)
            else:
                short[active.group] = plain.resources
    return short


def _with_parts(draft: Draft, slot: Slot, shape: Shape) -> Slot | None:
    """Returns the slot with parts of its node; None if the node has none for it."""
    row = draft.rows[slot.node]
    try:
        found = InnerNodes(draft.fleet, np.array([row], np.intp), [shape]).assign(0, [1], [[]])
    except BudgetExceeded:
        return None
    if found is None:
        return None
    return with_parts(slot, found[0])[0]


def short_daemon_sets(draft: Draft) -> dict[str, Mapping[str, int]]:
    """Returns the groups of DaemonSets with a slot that lacks room even once everything that is on its way out is gone,
    with the amounts of such a slot."""
    left = draft.room_beside(p for p in draft.open() if not (p.withdrawn and draft.leaves(p.group)))
    for node, amounts in draft.leaving.items():
        left.take(node, amounts, -1)
    return {
        place.group: place.resources
        for place in draft.open()
        if is_per_node(place.claim)
        and not place.withdrawn
        and draft.is_usable(place.node)
        and left.lacks(place.node, place.resources)
    }


def _is_left(draft: Draft, node: str) -> bool:
    """A node that is only not ready for a while keeps its slot."""
    return draft.is_lost(node) or draft.is_usable(node)
