"""Finds, claims and releases the parts inside nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from moorage.model.slots import part_and_class, resource_of_part
from moorage.parts.layout import Layout, layout_of, part_id, path_of

from .change_ticks import ChangeTicks
from .parts import FleetParts


class NodeParts(ChangeTicks):
    """The nodes of the fleet with what is inside them: each has the number of a layout, and rows among the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layout_sets: list[bytes] = [b""]
        self.parts = FleetParts()

    def take_parts(self, row: int, parts: Mapping[str, Mapping[str, int]], sign: int = 1) -> bool:
        """Claims amounts of the parts of a node (sign 1) or releases them (sign -1), in place: by the id of the part, by class.
        What other nodes reach, too, is claimed of them as well. Returns whether the node has all of them; what it does not have
        takes nothing of it."""
        cid, complete = int(self.cluster[row]), True
        for ident, amounts in parts.items():
            part = self.part_row(row, ident)
            for name, amount in amounts.items():
                found = self.parts.classes.get(name)
                at = found.position(cid, part) if found is not None and part is not None else None
                if found is None or at is None:
                    complete = False
                else:
                    found.claimed[at] += sign * amount
                others = self.parts.claim_of_others(cid, ident, part, name, sign * amount)
                if len(others) and sign < 0:
                    self._improved[self.parts.node[others]] = self.tick + 1
        self.tick += 1
        self._changed[cid] = self.tick
        if sign < 0:
            self._improved[row] = self._improved_cluster[cid] = self.tick
        return complete

    def take_in_common(self, cid: int, amounts: Mapping[str, int], sign: int = 1) -> None:
        """Claims amounts (`resource_of_part`) of parts that several nodes of a cluster reach, or releases them (sign -1), for
        somebody who is on none of these nodes."""
        self.tick += 1
        for name, amount in amounts.items():
            part, kind = part_and_class(name) or (name, "")
            rows = self.parts.claim_in_common(cid, part, kind, sign * amount, self.rows_of_part(cid, part))
            if sign < 0:
                self._improved[self.parts.node[rows]] = self._improved_cluster[cid] = self.tick
        self._changed[cid] = self.tick

    def taken_in_common(self, cid: int) -> dict[str, int]:
        """Returns what is claimed of parts of a cluster for nobody on a node."""
        held = self.parts.claimed_in_common(cid)
        return {resource_of_part(part, kind): amount for (part, kind), amount in held.items() if amount}

    def rows_of_part(self, cid: int, ident: str) -> NDArray[np.int64]:
        """Returns the rows of a part among the parts, at all nodes that have it."""
        shared = self.parts.shared_in(cid).get(ident)
        if shared is not None:
            return shared
        found = (self.part_row(int(row), ident) for row in self.rows_of(cid))  # it is of one node now, or gone
        return np.array([row for row in found if row is not None], np.int64)

    def parts_taken(self, row: int) -> dict[str, dict[str, int]]:
        """Returns what is claimed of the parts of a node, by id and class. What other nodes claim of those that they reach, too, is
        not among it."""
        first, layout = self.inside(row)
        cid = int(self.cluster[row])
        taken: dict[str, dict[str, int]] = {}
        for part, name in layout.entries:
            found = self.parts.classes[name]
            amount = int(found.claimed[found.position(cid, first + part)])
            amount -= self.parts.claimed_by_others(cid, name, first + part)
            if amount:
                taken.setdefault(part_id(self.node_name(row), layout.parts[part].path), {})[name] = amount
        return taken

    def inside(self, row: int) -> tuple[int, Layout]:
        """Returns the row of a node among the parts, which those of its own parts follow, and its layout without the identities of
        devices; -1 and a layout without parts if it has none."""
        if self.layout is None or not self.layout[row]:
            return -1, self.parts.layouts.found[0]
        cid = int(self.cluster[row])
        nodes, firsts, layouts = self.parts.first_rows(cid, int(self._start[cid]))
        at = int(np.searchsorted(nodes, row))
        return int(firsts[at]), self.parts.layouts.found[int(layouts[at])]

    def own_layout(self, row: int) -> Layout:
        """Returns the layout of a node with the identities of its devices."""
        return layout_of(self.inside_source(row))

    def inside_source(self, row: int) -> bytes:
        """Returns the source of a node's layout."""
        return self.layout_sets[0 if self.layout is None else int(self.layout[row])]

    def part_row(self, row: int, ident: str) -> int | None:
        """Returns the row of a node's part among the parts; None if the node has no such part."""
        first, layout = self.inside(row)
        at = layout.at.get(self.path_of(row, ident, layout))
        return None if at is None else first + at

    def path_of(self, row: int, ident: str, layout: Layout) -> str:
        """Returns the path in the layout of a node of the part with this id."""
        return path_of(self.node_name(row), ident, layout)

    def part_id(self, part: int) -> str:
        """Returns the id of the part at a row among the parts."""
        row = int(self.parts.node[part])
        first, layout = self.inside(row)
        return part_id(self.node_name(row), layout.parts[part - first].path)
