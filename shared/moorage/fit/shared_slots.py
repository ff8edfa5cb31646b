"""Tells which pods nodes hold together in slots that several machine types share. What is free of each type alone is a column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from moorage.model.machine_slots import machine_of, uses_slots
from moorage.model.shapes import Shape
from moorage.model.shared_slots import SharedSlots

from .protocols import Amounts, Ids, Rows


def several_types(shapes: Iterable[Shape]) -> bool:
    """Returns whether the shapes need slots of several kinds, of which one may take what the others could have."""
    return len({name for shape in shapes if shape.machine for name in shape.resources if machine_of(name)}) > 1


class SharedNodes:
    """The nodes of one cluster with shared slots, by position. `taken`: by row, what is not free any more."""

    def __init__(self, rows: Rows, where: Ids, shapes: Sequence[Shape], taken: Mapping[int, Mapping[str, int]]) -> None:
        self._shapes, self._matters = shapes, several_types(shapes)
        self._slots: dict[int, tuple[SharedSlots, ...]] = {}
        self._opened: dict[int, Amounts] = {}  # by shape: the places in slots that others have opened
        if not len(where) or not any(uses_slots(shape.resources) for shape in shapes):
            return
        by_node = rows.shared_slots.get(int(rows.cluster[where[0]]))
        for at, row in enumerate(where.tolist()) if by_node else ():
            found = by_node.get(rows.node_name(row)) if by_node else None
            if found is not None:
                less = taken.get(row)
                self._slots[at] = tuple(slots.with_taken(less) for slots in found) if less else found

    def __bool__(self) -> bool:
        """Returns whether columns do not tell which pods nodes hold."""
        return self._matters and bool(self._slots)

    def free(self) -> dict[int, dict[str, int]]:
        """Returns what is free of each type alone, by position."""
        return {at: {n: a for s in slots for n, a in s.free().items()} for at, slots in self._slots.items()}

    def holds(self, at: int, counts: Sequence[int]) -> bool:
        """Returns whether the node holds so many pods of each shape."""
        found = self._slots.get(at) if self._matters else None
        if found is None:
            return True
        amounts = self._amounts(counts)
        return all(slots.holds(amounts) for slots in found)

    def _amounts(self, counts: Sequence[int]) -> dict[str, int]:
        amounts: dict[str, int] = {}
        for shape, count in zip(self._shapes, counts, strict=True):
            for name, amount in shape.resources.items() if count and shape.machine else ():
                amounts[name] = amounts.get(name, 0) + amount * count
        return amounts

    def lives_in_another(self, number: int) -> bool:
        """Returns whether a node has slots in which pods of the shape live beside others of their type."""
        asked = self._shapes[number].resources
        return any(kind.resource in asked for slots in self._slots.values() for one in slots for kind in one.types[1:])

    def in_opened(self, number: int, packed: Amounts) -> list[Amounts]:
        """Returns how many more pods of a shape nodes hold beside these, by shape and node, in slots that are open already: without
        taking another slot of the type above theirs, then without one of the type above that, and so on."""
        if number not in self._opened:
            self._opened[number] = self._opened_by_others(number, packed.shape[1])
        places = self._opened[number].copy()
        for at in np.flatnonzero(packed.any(axis=0)).tolist():
            of_node = self._opened_on(number, at, packed[:, at].tolist())
            places[: len(of_node), at] = of_node
        return list(places)

    def _opened_by_others(self, number: int, nodes: int) -> Amounts:
        """Returns what `in_opened` does before any pod is placed."""
        known: dict[tuple[SharedSlots, ...], tuple[int, ...]] = {}
        for at, slots in self._slots.items():
            if slots not in known:
                known[slots] = self._opened_on(number, at, [0] * len(self._shapes))
        places = np.zeros((max(map(len, known.values()), default=0), nodes), np.int64)
        for at, slots in self._slots.items():
            places[: len(known[slots]), at] = known[slots]
        return places

    def _opened_on(self, number: int, at: int, counts: Sequence[int]) -> tuple[int, ...]:
        asked = self._shapes[number].resources
        for one in self._slots.get(at, ()):
            for kind in one.types[1:]:
                if kind.resource in asked:
                    return one.with_taken(self._amounts(counts)).in_opened(kind.resource)
        return ()

    def concerns(self, number: int) -> bool:
        return bool(self) and bool(self._shapes[number].machine)

    def state(self, at: int) -> object:
        """Returns a key that is equal for nodes that hold the same."""
        return self._slots.get(at)
