"""Gives places in slots of a parent type to guests of a type that depends on it.

A slot of the parent holds `per_parent` children. The first one takes the slot, in whose name it is counted; the others take nothing.
Which children share a slot does not matter: those on one node need as few slots as their number says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from moorage.machine_groups.guest_rules import PlacedGuests
from moorage.model.machine_slots import GrantedSlot, slot_resource
from moorage.model.machines import Allow, GuestReport

from .grants import ANYWHERE, GrantPlan, Offered, SlotUse, granted_slot, may_use, refusal_of, short_of, sort_key
from .layout import NodeKey


class ChildUse(NamedTuple):
    """A machine type that lives in slots of `parent`, in a cluster. `most`: how many of its guests may run there."""

    machine: str
    parent: str
    cluster: str
    per_parent: int
    most: int
    slots: Mapping[str, int]
    allow: Allow = Allow()
    usable: frozenset[str] = frozenset()

    @property
    def as_use(self) -> SlotUse:
        return SlotUse(self.machine, self.cluster, self.most, self.slots, allow=self.allow, usable=self.usable)


def plan_child_grants(
    use: ChildUse, guests: Iterable[GuestReport], held: Mapping[str, GrantedSlot], offered: Offered, now: float,
    placed: PlacedGuests = ANYWHERE,
) -> GrantPlan:  # fmt: skip
    """Plans for the guests of one child type in one cluster. `held`: the places that guests of it have by the ledger."""
    plan, as_use = GrantPlan(), use.as_use
    known = {guest.uid: guest for guest in guests}
    stays: dict[str, GrantedSlot] = {}
    for uid, slot in held.items():
        guest = known.get(uid)
        if guest is None or guest.ended or (guest.state == "waiting" and guest.not_before > slot.at):
            plan.withdrawn.append(uid)
        else:
            stays[uid] = slot
    for guest in known.values():
        if guest.state == "used" and not guest.ended and guest.node and guest.uid not in stays:
            slot = granted_slot(as_use, guest, guest.node, now, apart=True)
            stays[guest.uid] = msgspec.structs.replace(slot, parent=use.parent)
            plan.observed.append(stays[guest.uid])
    by_node: dict[str, list[GrantedSlot]] = {}
    for uid in sorted(stays):
        by_node.setdefault(stays[uid].node, []).append(stays[uid])
    plan.observed = _balanced(use, by_node, plan.observed)
    if plan.withdrawn or plan.observed:
        return plan  # what is free is known once this is in the log
    counts = {node: len(slots) for node, slots in by_node.items()}
    waiting = [guest for guest in known.values() if guest.uid not in stays and not guest.ended]
    opened: dict[str, int] = {}
    for guest in sorted(waiting, key=sort_key):
        refusal = refusal_of(as_use, guest, now)
        if refusal is not None:
            plan.waiting.append(refusal)
            continue
        if sum(counts.values()) >= use.most:
            plan.waiting.append(short_of(guest, f"{use.most} of {use.most} slots of {use.machine} are in use"))
            continue
        nodes = [n for n in use.slots if n in use.usable and may_use(guest, n, placed)]
        node = next((n for n in nodes if counts.get(n, 0) % use.per_parent), None)
        apart = node is not None
        if node is None:
            resource = slot_resource(use.parent)
            node = next((n for n in nodes if offered(NodeKey(use.cluster, n), resource) > opened.get(n, 0)), None)
        if node is None:
            plan.waiting.append(short_of(guest, f"no slot of {use.parent} is free for it"))
            continue
        if not apart:
            opened[node] = opened.get(node, 0) + 1
        counts[node] = counts.get(node, 0) + 1
        placed.put(guest.uid, node)
        slot = granted_slot(as_use, guest, node, now, apart=apart)
        plan.granted.append(msgspec.structs.replace(slot, parent=use.parent))
    return plan


def _balanced(
    use: ChildUse, by_node: Mapping[str, list[GrantedSlot]], observed: list[GrantedSlot]
) -> list[GrantedSlot]:
    """Returns the grants that change, so that on each node as many children take a slot as are needed for all of them."""
    changed = {slot.uid: slot for slot in observed}
    for slots in by_node.values():
        takers = -(-len(slots) // use.per_parent)
        ordered = sorted(slots, key=lambda slot: (slot.apart, slot.uid))
        for number, slot in enumerate(ordered):
            wanted = msgspec.structs.replace(slot, apart=number >= takers)
            if wanted != slot or slot.uid in changed:
                changed[slot.uid] = wanted
    return [changed[uid] for uid in sorted(changed)]
