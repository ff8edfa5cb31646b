"""Open places of objects on a cluster: slots that no pod covers, and where they are to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from moorage.ledger import Family, NodeAmounts
from moorage.ledger.families import add
from moorage.model.claims import Claim, Slot
from moorage.model.slots import PodPlace, followed, moved, with_parts

if TYPE_CHECKING:
    from .settlement_draft import Draft


@dataclass(slots=True)
class Place:
    """One open place of an object. `claim` is the object's newest one there, of the `group`, `members` are the slots that its claims have for
    the place, `resources` the larger of them. A place that only older claims have is `withdrawn`."""

    group: str
    claim: Claim
    family: Family
    withdrawn: bool
    members: dict[str, Slot]
    resources: Mapping[str, int]
    node: str
    host: str
    inside: PodPlace | None = None  # what it takes of parts where it moves to; None: as its slots say, if it stays
    stray: bool = False  # a pod stands for it on its new node
    dropped: bool = False  # of a DaemonSet, on a node that needs no pod of it any more
    leaves: bool = False  # a device that failed, and no other one of its node takes its place

    def slot(self, ident: str) -> Slot:
        """Returns the slot that a claim has for the place where it is now."""
        slot = (followed if self.stray else moved)(self.members[ident], self.node, self.host)
        return slot if self.inside is None else with_parts(slot, [self.inside])[0]

    @property
    def moved(self) -> bool:
        slot = next(iter(self.members.values()))
        return (self.node, self.host) != (slot.node, slot.host)


class OpenPlaces:
    """The open places of a draft by node, and what is free beside them and the pods."""

    def __init__(self, draft: Draft) -> None:
        self.nodes: dict[str, dict[int, Place]] = {}
        places = draft.open()
        for place in places:
            if place.node in draft.rows:
                self.nodes.setdefault(place.node, {})[id(place)] = place
        self._room = draft.room_beside(places)

    def leave(self, place: Place) -> None:
        """Takes a place out, as a pod stands for it now."""
        self._room.take(place.node, place.resources, -1)
        self.nodes.get(place.node, {}).pop(id(place), None)

    def is_overfull(self, node: str) -> bool:
        """Returns whether pods and open places leave too little of something that an open place there takes."""
        taken: dict[str, int] = {}
        for place in self.nodes.get(node, {}).values():
            taken |= {name: amount for name, amount in place.resources.items() if amount}
        return bool(taken) and self._room.lacks(node, taken)


def add_on(total: NodeAmounts, node: str, amounts: Mapping[str, int], times: int = 1) -> None:
    add(total.setdefault(node, {}), amounts, times)


def is_per_node(claim: Claim | Family) -> bool:
    return claim.object.startswith("DaemonSet/")


def merged_slots(slots: Iterable[Slot]) -> list[Slot]:
    """Joins equal slots, in the order of nodes."""
    joined: dict[bytes, Slot] = {}
    for slot in sorted(slots, key=lambda slot: slot.node):
        key = msgspec.json.encode(msgspec.structs.replace(slot, count=0), order="sorted")
        before = joined.get(key)
        count = slot.count + (before.count if before is not None else 0)
        joined[key] = msgspec.structs.replace(slot, count=count)
    return list(joined.values())
