"""Moves a cluster's open places to nodes where they fit together: as few as possible, else all of them are assigned anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec
import numpy as np

from moorage.fit import Assigned, assign
from moorage.fit.protocols import Amounts
from moorage.fleet import Fleet
from moorage.ledger.held_devices import further_pods
from moorage.ledger.room import of_node
from moorage.model.claims import Shortfall, Slot
from moorage.model.part_names import is_class
from moorage.model.shapes import Shape
from moorage.model.shared_slots import SharedSlots
from moorage.model.slots import part_and_class, part_resources, place_in

from .node_room import NodeRoom
from .open_places import Place
from .settlement_draft import Draft

Move = tuple[Place, Slot]  # to the slot's node
#: Places of one group on failed devices that are tried one by one where they do not fit together.
MOST_LEAVING = 64


@dataclass(slots=True)
class _AdjustedRows:
    """The fleet's rows with other amounts free. Explains nothing and keeps no caches."""

    fleet: Fleet
    amounts: dict[str, Amounts]
    shared_slots: dict[int, dict[str, tuple[SharedSlots, ...]]]

    @property
    def open_pods(self) -> dict[int, object]:
        """Returns none: places that move are among the fleet's. Those that stay count where they are expected."""
        return {}

    def __getattr__(self, name: str) -> object:
        return getattr(self.fleet, name)

    def free(self, resource: str) -> Amounts | None:
        return self.amounts.get(resource)


class Relocation:
    """`groups` have open places of standing decisions, the oldest first."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._bad = draft.bad_nodes()
        self._movable: dict[str, list[Place]] = {}
        for place in draft.movable():
            self._movable.setdefault(place.group, []).append(place)
        self.groups = sorted(self._movable, key=self.age)

    def age(self, group: str) -> tuple[str, str]:
        document = self._draft.around.documents.get(group)
        return (document.instantiated if document is not None else "", group)

    def fits(self, groups: Sequence[str], gone: AbstractSet[str]) -> bool:
        """Returns whether the groups' open places fit together once everything that is on its way out is gone."""
        return self._assign(groups, lenient=True, gone=gone) is not None

    def move(self, groups: Sequence[str], *, lenient: bool, gone: AbstractSet[str] = frozenset()) -> bool:
        """Moves the groups' open places to where they fit together. Returns whether they do."""
        found = self._assign(groups, lenient=lenient, gone=gone)
        for place, slot in found or ():
            place.node, place.host, place.inside, place.leaves = slot.node, slot.host, place_in(slot), False
            place.resources = of_node(place.resources) | part_resources(slot.parts)
        return found is not None

    def leave_behind(self, kept: Sequence[str], group: str, gone: AbstractSet[str]) -> bool:
        """Lets places of a group that leave failed devices wait where they are, as few as it finds, so that its others fit beside
        these groups. Returns whether any that leaves fits then."""
        places = self._movable[group]
        fitting, hopeless = [place for place in places if not place.leaves], set[tuple[str, str]]()
        staying = len(fitting)
        for place in [place for place in places if place.leaves][:MOST_LEAVING]:
            kind = place.claim.id, repr(sorted(place.resources.items()))
            if kind in hopeless:
                continue
            self._movable[group] = [*fitting, place]
            if self.fits([*kept, group], gone):
                fitting.append(place)
            else:
                hopeless.add(kind)
        self._movable[group] = fitting if len(fitting) > staying else places
        return len(fitting) > staying

    def shortfall(self, group: str) -> Shortfall:
        """Returns what the group's largest open place lacks most while all other places stay where they are."""
        places = self._movable.get(group, [])
        largest = max((place.resources for place in places), key=lambda r: sorted(r.values(), reverse=True))
        lack = self.shortfall_of(group, largest)
        refused = next((place for place in places if self._draft.is_refused(place)), None)
        if refused is None:
            return lack
        return msgspec.structs.replace(lack, refused=f"{refused.node}: {self._draft.refusal_words(refused.claim)}")

    def shortfall_of(self, group: str, resources: Mapping[str, int]) -> Shortfall:
        room = self._free(lenient=False, gone=frozenset())
        for other, places in self._movable.items():
            for place in places if other != group else ():
                room.take(place.node, place.resources)
        free, nodes = room.free, [node for node in room.free if self._draft.is_usable(node)]
        needs = {name: amount for name, amount in sorted(of_node(resources).items()) if amount}
        for node in nodes:
            free[node] |= room.free_of_shared(node)
        best = {name: max((max(0, free[node].get(name, 0)) for node in nodes), default=0) for name in needs}
        for name, amount in self._of_parts(resources).items():
            needs[name], best[name] = amount, self._most_free(name, nodes, room)
        worst = max(needs, key=lambda name: (needs[name] - best[name]) / needs[name])
        return Shortfall(resource=worst, needed=needs[worst], free=best[worst])

    @staticmethod
    def _of_parts(resources: Mapping[str, int]) -> dict[str, int]:
        """Returns the amounts of parts among these, by class. Kubernetes resources are counted by the node."""
        found: dict[str, int] = {}
        for name, amount in resources.items():
            of_part = part_and_class(name)
            if of_part is not None and amount and is_class(of_part[1]):
                found[of_part[1]] = found.get(of_part[1], 0) + amount
        return found

    def _most_free(self, name: str, nodes: Sequence[str], room: NodeRoom) -> int:
        """Returns the most that the parts of one of these nodes have free of a class."""
        draft, parts = self._draft, self._draft.fleet.parts
        columns = parts.classes[name]
        run = columns.run(draft.cid)
        rows, free = columns.row[run], columns.capacity[run] - columns.used[run] - columns.claimed[run]
        for row, amounts in room.beyond_fleet().items():
            for taken, amount in amounts.items():
                ident, kind = part_and_class(taken) or ("", "")
                if kind == name:
                    own = draft.fleet.part_row(row, ident)
                    free[np.isin(rows, parts.shared_in(draft.cid).get(ident, own or 0))] -= amount
        free = np.where(parts.healthy[rows], np.maximum(free, 0), 0)
        return max((int(free[parts.node[rows] == draft.rows[node]].sum()) for node in nodes), default=0)

    def _free(self, *, lenient: bool, gone: AbstractSet[str]) -> NodeRoom:
        """Returns what is free without the movable places."""
        draft = self._draft
        free = draft.room.copy()
        moving = {id(place) for places in self._movable.values() for place in places}
        stays = self._restored(gone)
        for place in draft.open():
            waits = lenient and place.withdrawn and draft.leaves(place.group)
            if (id(place) not in moving or not stays.isdisjoint(place.members)) and not waits:
                free.take(place.node, place.resources)
        for node, amounts in draft.held():
            free.take(node, amounts)
        if lenient:
            for node, amounts in draft.leaving.items():
                free.take(node, amounts, -1)
            for ident, active in draft.active.items():
                if active.group in gone and not active.withdrawn and ident not in stays:
                    for node, amounts in draft.running.get(ident, {}).items():
                        free.take(node, amounts, -1)
        return free

    def _restored(self, gone: AbstractSet[str]) -> set[str]:
        """Returns the claims of the decisions that stand again when those of these groups end, and those of groups whose objects
        these were to take over."""
        previous, active = self._draft.ledger.previous, self._draft.active
        again = {claim.id for group in gone if group in previous for claim in previous[group][-1].claims}
        kept = {i for group in gone for place in self._movable.get(group, ()) for i in place.members}
        return again | {i for i in kept if active[i].group not in gone and not active[i].withdrawn}

    def _assign(self, groups: Sequence[str], *, lenient: bool, gone: AbstractSet[str]) -> list[Move] | None:
        free = self._free(lenient=lenient, gone=gone)
        draft = self._draft
        for few in (True, False):
            left = free.copy()
            moving: list[Place] = []
            # Where nothing is wrong places stay before others are assigned; on the other nodes the oldest and largest do.
            order = [place for group in groups for place in self._movable[group]]
            order.sort(key=lambda place: place.node in self._bad)
            for place in order:
                may_stay = place.node in left.free and not draft.must_leave(place)
                known = draft.shape(place) is not None
                pinned = not known or not draft.is_usable(place.node)
                fits = may_stay and left.has(place.node, place.resources)
                if may_stay and ((few and fits) or pinned):
                    if not fits and draft.is_usable(place.node):
                        return None
                    left.take(place.node, place.resources)
                elif not known:
                    return None
                else:
                    moving.append(place)
            found = self._assigned(moving, left)
            if found is not None:
                return found
        return None

    def _assigned(self, moving: Sequence[Place], left: NodeRoom) -> list[Move] | None:
        """Assigns the places with all rules of `fit`; None if they do not fit together."""
        if not moving:
            return []
        draft, fleet = self._draft, self._draft.fleet
        runs: dict[tuple[str, bytes], list[Place]] = {}
        for place in moving:
            size = msgspec.json.encode(of_node(place.resources), order="sorted")
            runs.setdefault((place.claim.id, size), []).append(place)
        shapes: list[Shape] = []
        for places in runs.values():
            shape = draft.shape(places[0])
            if shape is None:
                return None
            resources = of_node(places[0].resources)
            if any(group.devices for group in shape.groups):
                shape = further_pods(shape, self._staying([places[0].claim.id], moving)[0], fleet, draft.cid)
            shapes.append(
                msgspec.structs.replace(shape, count=len(places), resources=resources, optional=[], per_node=False)
            )
        columns: dict[str, Amounts] = {}
        for name in {name for shape in shapes for name in shape.resources}:
            column = fleet.free(name)
            if column is None:
                continue
            column = columns[name] = column.copy()
            for node, row in draft.rows.items():
                column[row] = (left.free[node] | left.free_of_shared(node)).get(name, 0)
        kept: list[list[Slot]] | None = None
        if any(shape.rules for shape in shapes):
            idents = list(dict.fromkeys(places[0].claim.id for places in runs.values()))
            others = self._others({place.group for place in moving}, idents)
            shapes += [shape for _, shape in others]
            kept = self._staying([places[0].claim.id for places in runs.values()], moving)
            kept += self._staying([ident for ident, _ in others], moving)
        shared = {node: types for node in draft.rows if (types := left.shared(node))}
        rows = _AdjustedRows(fleet, columns, {draft.cid: shared})
        found = assign(rows, draft.where, shapes, kept=kept, taken=left.beyond_fleet())  # type: ignore[arg-type]
        if not isinstance(found, Assigned):
            return None
        moves: list[Move] = []
        for places, slots in zip(runs.values(), found.slots, strict=False):
            targets = [slot for slot in slots for _ in range(slot.count)]
            # Those that may stay on their node do.
            for place in list(places):
                same = next((slot for slot in targets if (slot.node, slot.host) == (place.node, place.host)), None)
                if same is not None:
                    targets.remove(same)
                    places.remove(place)
                    if same.parts:
                        moves.append((place, same))
            moves += zip(places, targets, strict=True)
        return moves

    def _others(self, groups: AbstractSet[str], moving: Sequence[str]) -> list[tuple[str, Shape]]:
        """Returns the other claims of the groups, none of whose pods is to be assigned: the rules of pods about each other
        concern them, too."""
        draft = self._draft
        found = (
            (ident, draft.shape_of(active.claim, active.group))
            for ident, active in draft.active.items()
            if active.group in groups and not active.withdrawn and ident not in moving
        )
        return [
            (ident, msgspec.structs.replace(shape, count=0, per_node=False, optional=[]))
            for ident, shape in found
            if shape is not None
        ]

    def _staying(self, idents: Sequence[str], moving: Sequence[Place]) -> list[list[Slot]]:
        """Returns the slots of each claim that stay where they are. Of a claim that comes twice, the second has none."""
        draft, moved = self._draft, {id(place) for place in moving}
        result: list[list[Slot]] = []
        for at, ident in enumerate(idents):
            slots = list(draft.covered[ident]) if ident not in idents[:at] else []
            if ident not in idents[:at]:
                slots += [
                    place.slot(ident)
                    for place in draft.places
                    if ident in place.members and id(place) not in moved and not place.dropped
                ]
            result.append(slots)
        return result
