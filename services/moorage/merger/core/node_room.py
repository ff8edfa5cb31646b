"""Counts what the nodes of one cluster and the parts in them have free while places are moved.

What is taken of a part is taken of the parts that it takes of, too, and of a part that several nodes reach at each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from moorage.fit.static_inside import consumed_entries
from moorage.fleet import Fleet
from moorage.ledger import NodeAmounts
from moorage.ledger.families import add
from moorage.ledger.room import unclaimed_of
from moorage.model.shared_slots import SharedSlots
from moorage.model.slots import part_and_class, part_resources, resource_of_part
from moorage.parts.layout import part_id

_BOUNDLESS = 1 << 62


class PartLinks:
    """Tells what a unit of a part takes of parts, itself among them, at each node. `rows`: those of the cluster's nodes."""

    def __init__(self, fleet: Fleet, cid: int, rows: Mapping[str, int]) -> None:
        self._fleet, self.cid, self.rows = fleet, cid, rows
        self._shared = fleet.parts.shared_in(cid) if fleet.layout is not None else {}
        self._known: dict[tuple[str, str], list[tuple[str, str, int]]] = {}

    def spread(self, node: str, amounts: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
        """Yields what these amounts of a node take: node, name and amount."""
        for name, amount in amounts.items():
            if part_and_class(name) is None:
                yield node, name, amount
                continue
            for where, other, units in self._of(node, name):
                yield where, other, amount * units

    def _of(self, node: str, name: str) -> list[tuple[str, str, int]]:
        if node not in self.rows:
            return [(node, name, 1)]
        found = self._known.get((node, name))
        if found is None:
            found = [(node, name, 1), *((node, above, units) for above, units in self._consumed(node, name))]
            for _, of, units in found.copy():
                found += ((other, of, units) for other in self._reaching(of) if other != node)
            self._known[node, name] = found
        return found

    def _consumed(self, node: str, name: str) -> Iterator[tuple[str, int]]:
        of_part, row = part_and_class(name), self.rows[node]
        if of_part is None:
            return
        _, layout = self._fleet.inside(row)
        at = layout.at.get(self._fleet.path_of(row, of_part[0], layout))
        for entry, units in () if at is None else consumed_entries(layout, layout.parts[at], of_part[1]):
            above, resource = layout.entries[entry]
            yield resource_of_part(part_id(node, layout.parts[above].path), resource), units

    def _reaching(self, name: str) -> list[str]:
        """Returns the nodes that have a part, if several may."""
        of_part = part_and_class(name)
        found = self._shared.get(of_part[0], ()) if of_part is not None else ()
        return [self._fleet.node_name(int(self._fleet.parts.node[row])) for row in found]


class NodeRoom:
    """The room of nodes: what is free of the resources of claims, and of the parts that their slots name. `taken` is what is taken of the parts
    themselves, at the nodes for which it is taken. Of machine types that share slots, `free` has what each of them takes, and offers,
    for itself."""

    def __init__(self, fleet: Fleet, links: PartLinks, free: NodeAmounts, taken: NodeAmounts | None = None) -> None:
        self._fleet, self._links = fleet, links
        self.free, self.taken = free, taken if taken is not None else {}

    def copy(self) -> NodeRoom:
        free, taken = ({node: dict(of) for node, of in total.items()} for total in (self.free, self.taken))
        return NodeRoom(self._fleet, self._links, free, taken)

    def know(self, node: str, amounts: Mapping[str, int]) -> None:
        """Reads what the parts among these have free that no claim has, if that is not known yet. A part that is gone lacks
        nothing: a claim on it stays."""
        for where, name, _ in self._links.spread(node, amounts):
            row = self._links.rows.get(where)
            if row is None or name in self.free[where] or part_and_class(name) is None:
                continue
            free = unclaimed_of(self._fleet, row, name)
            self.free[where][name] = _BOUNDLESS if free is None else free - self._taken_of(where, name)

    def _taken_of(self, node: str, name: str) -> int:
        spread = (found for where, amounts in self.taken.items() for found in self._links.spread(where, amounts))
        return sum(amount for where, other, amount in spread if (where, other) == (node, name))

    def take(self, node: str, amounts: Mapping[str, int], times: int = 1) -> None:
        """Takes amounts so many times. Of a node that is not there nothing is taken."""
        if node not in self.free:
            return
        parts = {name: amount for name, amount in amounts.items() if part_and_class(name) is not None}
        if parts:
            add(self.taken.setdefault(node, {}), parts, times)
        for where, name, amount in self._links.spread(node, amounts):
            of_node = self.free.get(where, {})
            if name in of_node:
                of_node[name] -= amount * times

    def has(self, node: str, amounts: Mapping[str, int]) -> bool:
        """Returns whether the node, and what else the amounts take of, have so much."""
        needed: dict[tuple[str, str], int] = {}
        for where, name, amount in self._links.spread(node, amounts):
            needed[where, name] = needed.get((where, name), 0) + amount
        shared = self.shared(node)
        of_shared = {kind.resource for slots in shared for kind in slots.types}
        return all(slots.holds(amounts) for slots in shared) and all(
            amount <= self.free[where].get(name, 0)
            for (where, name), amount in needed.items()
            if amount and where in self.free and name not in of_shared
        )

    def shared(self, node: str) -> tuple[SharedSlots, ...]:
        """Returns the slots of a node that several machine types share, with what is taken of each."""
        found = []
        free = self.free.get(node, {})
        for slots in self._fleet.shared_slots.get(self._links.cid, {}).get(node, ()):
            taken = (kind.offered - free.get(kind.resource, 0) for kind in slots.types)
            found.append(slots._replace(taken=tuple(taken)))
        return tuple(found)

    def free_of_shared(self, node: str) -> dict[str, int]:
        """Returns what is free of each machine type that shares slots of a node with others."""
        return {name: amount for slots in self.shared(node) for name, amount in slots.free().items()}

    def lacks(self, node: str, amounts: Mapping[str, int]) -> bool:
        """Returns whether more was taken than there is of something that these amounts take of."""
        shared = self.free_of_shared(node)
        return any(
            amount and where in self.free and shared.get(name, self.free[where].get(name, -1)) < 0
            for where, name, amount in self._links.spread(node, amounts)
        )

    def beyond_fleet(self) -> dict[int, dict[str, int]]:
        """Returns by how much more of parts is taken than the fleet says, by row. What is taken of a part that is gone stays."""
        found: dict[int, dict[str, int]] = {}
        for node, row in self._links.rows.items() if self._fleet.layout is not None else ():
            if node not in self.taken and not any(part_and_class(name) is not None for name in self.free[node]):
                continue
            here = self.taken.get(node, {})
            more = {name: amount for name, amount in here.items() if unclaimed_of(self._fleet, row, name) is not None}
            add(more, part_resources(self._fleet.parts_taken(row)), -1)
            if any(more.values()):
                found[row] = {name: amount for name, amount in more.items() if amount}
        return found
