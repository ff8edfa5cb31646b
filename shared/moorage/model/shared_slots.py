"""Counts the slots of machine types that live in slots of another type, on one node.

A slot holds so many pods of a type that depends on its own, and none of any other type; it is taken as long as one of them is there.
Which pods share a slot does not matter: those of one type need as few slots as their number says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class SharedType(NamedTuple):
    """`resource` is what one slot of the type is of its node. `above`: the type in whose slots it lives, by number; `per_parent`: how many
    of it one of these holds. `most`: how many there may be; None: as many as fit. `offered`: how many the totals of a node offer of it."""

    resource: str
    above: int = -1
    per_parent: int = 1
    most: int | None = None
    offered: int = 0


class SharedSlots(NamedTuple):
    """Slots of the first type, in which all others live; each type stands after the one above it. `taken`: pods of each type."""

    slots: int
    types: tuple[SharedType, ...]
    taken: tuple[int, ...]

    def with_taken(self, amounts: Mapping[str, int], times: int = 1) -> SharedSlots:
        """Returns the slots with so many more pods, by resource."""
        taken = zip(self.types, self.taken, strict=True)
        return self._replace(taken=tuple(n + times * amounts.get(kind.resource, 0) for kind, n in taken))

    def used(self) -> list[int]:
        """Returns how many slots of each type are taken, by its own pods or by those of types that live in them."""
        used = list(self.taken)
        for number in range(len(used) - 1, 0, -1):
            used[self.types[number].above] += self._opened(number, used)
        return used

    def free(self) -> dict[str, int]:
        """Returns how many more pods of each type there may be, if none of another comes; below zero: as many too many."""
        used, left = self.used(), [0] * len(self.types)
        for number, kind in enumerate(self.types):
            if number:
                room = kind.per_parent * (left[kind.above] + self._opened(number, used)) - used[number]
            else:
                room = self.slots - used[0]
            left[number] = room if kind.most is None else min(room, kind.most - used[number])
        return {kind.resource: free for kind, free in zip(self.types, left, strict=True)}

    def in_opened(self, resource: str) -> tuple[int, ...]:
        """Returns how many more pods of a type there may be if no slot of the type above it is taken for them; then, if none of the
        type above that one is; and so on. Empty for the first type, which lives in no other."""
        number = next((n for n, kind in enumerate(self.types) if kind.resource == resource), 0)
        used, chain, found = self.used(), [number], list[int]()
        while (above := self.types[chain[-1]].above) >= 0:
            left = 0
            for below in reversed(chain):
                kind = self.types[below]
                room = kind.per_parent * (left + self._opened(below, used)) - used[below]
                left = room if kind.most is None else min(room, kind.most - used[below])
            found.append(max(0, left))
            chain.append(above)
        return tuple(found)

    def holds(self, amounts: Mapping[str, int]) -> bool:
        """Returns whether so many more pods, by resource, may come together."""
        added = {kind.resource for kind in self.types if amounts.get(kind.resource, 0) > 0}
        return not added or all(left >= 0 for name, left in self.with_taken(amounts).free().items() if name in added)

    def _opened(self, number: int, used: list[int]) -> int:
        """Returns how many slots of the type above a type has taken."""
        return -(-used[number] // self.types[number].per_parent)
