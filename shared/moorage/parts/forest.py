"""Keeps trees of parts as columns, in blocks of neighbouring rows that are in preorder.

A part's row is also its number of entry: a is an ancestor of b, or b itself, exactly if a <= b < leave[a].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import Blocks, grown
from moorage.model.allocations import MAX_INT

from .interning import SetTable

#: The trait of a part that offers its inventories to all trees with which it has an aggregate in common.
SHARES = "MISC_SHARES_VIA_AGGREGATE"
UNLIMITED = MAX_INT


class Inventory(NamedTuple):
    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = UNLIMITED
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.allocation_ratio)


class Take(NamedTuple):
    """What one unit of a class takes of another part: so many units of a class there. Parts are numbered within their node."""

    part: int
    resource: str
    amount: int = 1


class Part(NamedTuple):
    """A part as it is written. `parent` is its parent's id; a root has none."""

    id: str
    parent: str | None = None
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    inventories: Mapping[str, Inventory] = {}
    used: Mapping[str, int] = {}


class ClassColumns:
    """The inventories of one class: a run of entries for each block, in the order of the block's rows."""

    __slots__ = ("_blocks", "_runs", "capacity", "max_unit", "min_unit", "row", "step_size", "used")

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._runs: dict[int, tuple[int, int]] = {}
        self.row: NDArray[np.int64] = np.empty(0, np.int64)
        self.capacity: NDArray[np.int64] = np.empty(0, np.int64)
        self.used: NDArray[np.int64] = np.empty(0, np.int64)
        self.min_unit: NDArray[np.int64] = np.empty(0, np.int64)
        self.max_unit: NDArray[np.int64] = np.empty(0, np.int64)
        self.step_size: NDArray[np.int64] = np.empty(0, np.int64)

    def write(self, block: int, entries: Sequence[tuple[int, Inventory, int]]) -> None:
        """Replaces the entries (row, inventory, used) of a block."""
        had = self._runs.pop(block, None)
        if had is not None:
            start, count = had
            self.row[start : start + count] = -1
            self._blocks.give(start, Blocks.length_for(count))
        if not entries:
            return
        count = len(entries)
        start = self._blocks.take(Blocks.length_for(count))
        self._ensure(self._blocks.top)
        here = slice(start, start + count)
        self.row[here] = [row for row, _, _ in entries]
        self.capacity[here] = [inventory.capacity for _, inventory, _ in entries]
        self.used[here] = [used for _, _, used in entries]
        self.min_unit[here] = [inventory.min_unit for _, inventory, _ in entries]
        self.max_unit[here] = [inventory.max_unit for _, inventory, _ in entries]
        self.step_size[here] = [inventory.step_size for _, inventory, _ in entries]
        self._runs[block] = start, count

    @property
    def is_empty(self) -> bool:
        return not self._runs

    def position(self, block: int, row: int) -> int | None:
        """Returns the place of a row's entry; None if the part does not have the class."""
        start, count = self._runs.get(block, (0, 0))
        at = start + int(np.searchsorted(self.row[start : start + count], row))
        return at if at < start + count and self.row[at] == row else None

    def with_room(self, amount: int) -> NDArray[np.int64]:
        """Returns the rows of which `amount` can be taken now."""
        top = self._blocks.top
        row = self.row[:top]
        ok = self.used[:top] + amount <= self.capacity[:top]
        ok &= row >= 0
        ok &= self.min_unit[:top] <= amount
        ok &= self.max_unit[:top] >= amount
        if amount != 1:
            ok &= amount % self.step_size[:top] == 0
        else:
            ok &= self.step_size[:top] == 1
        return row[ok]

    def _ensure(self, top: int) -> None:
        if top <= len(self.row):
            return
        length = max(top, len(self.row) * 5 // 4, 64)
        self.row = grown(self.row, length, -1)
        self.capacity = grown(self.capacity, length)
        self.used = grown(self.used, length)
        self.min_unit = grown(self.min_unit, length, 1)
        self.max_unit = grown(self.max_unit, length)
        self.step_size = grown(self.step_size, length, 1)


class Forest:
    """All parts. A block holds one or more whole trees and is written as a whole; amounts in use are changed in place."""

    def __init__(self) -> None:
        self.traits = SetTable[str]()
        self.aggregates = SetTable[str]()
        self.classes: dict[str, ClassColumns] = {}
        self.ids: list[str] = []  # by row; "" is an empty row
        self.rows: dict[str, int] = {}
        self.root: NDArray[np.int64] = np.empty(0, np.int64)  # -1: an empty row
        self.leave: NDArray[np.int64] = np.empty(0, np.int64)
        self.parent: NDArray[np.int64] = np.empty(0, np.int64)
        self.trait_set: NDArray[np.int32] = np.empty(0, np.int32)
        self.aggregate_set: NDArray[np.int32] = np.empty(0, np.int32)
        self.block: NDArray[np.int32] = np.empty(0, np.int32)
        self._blocks = Blocks()
        self._runs: dict[int, tuple[int, int]] = {}
        self._classes_of: dict[int, frozenset[str]] = {}
        self._by_aggregate: dict[str, set[int]] = {}
        self._sharing: set[int] = set()

    @property
    def n(self) -> int:
        return self._blocks.top

    def write(self, block: int, parts: Iterable[Part]) -> None:
        """Replaces a block's trees. Raises ValueError for an id twice, an unknown parent or a cycle."""
        ordered = _preorder(parts)
        self._erase(block)
        if not ordered:
            return
        count = len(ordered)
        start = self._blocks.take(Blocks.length_for(count))
        self._ensure(self._blocks.top)
        self._runs[block] = start, count
        here = {part.id: start + i for i, part in enumerate(ordered)}
        entries: dict[str, list[tuple[int, Inventory, int]]] = {}
        leave = list(range(start + 1, start + count + 1))
        roots: list[int] = []
        for i, part in enumerate(ordered):
            row = start + i
            parent = here[part.parent] if part.parent is not None else -1
            roots.append(roots[parent - start] if parent >= 0 else row)
            self.parent[row] = parent
            self.ids[row] = part.id
            self.trait_set[row] = self.traits.acquire(part.traits)
            self.aggregate_set[row] = self.aggregates.acquire(part.aggregates)
            for aggregate in part.aggregates:
                self._by_aggregate.setdefault(aggregate, set()).add(row)
            if SHARES in part.traits:
                self._sharing.add(row)
            for name, inventory in part.inventories.items():
                entries.setdefault(name, []).append((row, inventory, part.used.get(name, 0)))
        for i in range(count - 1, -1, -1):
            parent = int(self.parent[start + i])
            if parent >= 0:
                leave[parent - start] = max(leave[parent - start], leave[i])
        self.root[start : start + count] = roots
        self.leave[start : start + count] = leave
        self.block[start : start + count] = block
        self.rows.update(here)
        for name, found in entries.items():
            self.classes.setdefault(name, ClassColumns()).write(block, found)
        self._classes_of[block] = frozenset(entries)

    def set_used(self, row: int, name: str, used: int) -> None:
        """Sets the amount of a class in use at a part that has it."""
        columns = self.classes[name]
        at = columns.position(int(self.block[row]), row)
        if at is None:
            raise KeyError(f"{self.ids[row]} has no {name}")
        columns.used[at] = used

    def room(self, row: int, name: str) -> int:
        """Returns how much of a class one request may still take of a part: what is free, and no more than its largest unit."""
        columns = self.classes[name]
        at = columns.position(int(self.block[row]), row)
        if at is None:
            return 0
        return min(int(columns.capacity[at] - columns.used[at]), int(columns.max_unit[at]))

    def room_by_row(self, name: str, most: int) -> NDArray[np.int64]:
        """Returns the room of each row, 0 where the class is missing or nothing is left, and no more than `most`."""
        found = np.zeros(self.n, np.int64)
        columns = self.classes[name]
        at = np.flatnonzero(columns.row >= 0)
        room = np.minimum(columns.capacity[at] - columns.used[at], columns.max_unit[at])
        found[columns.row[at]] = np.clip(room, 0, most)
        return found

    def sharing_with(self) -> dict[int, set[int]]:
        """Returns the roots of other trees that each sharing part serves, by row of the part."""
        return {row: self._served(row) for row in self._sharing}

    def _served(self, row: int) -> set[int]:
        names = self.aggregates.sets[int(self.aggregate_set[row])]
        rows = {member for name in names for member in self._by_aggregate.get(name, ())}
        return {int(self.root[member]) for member in rows} - {int(self.root[row])}

    def _erase(self, block: int) -> None:
        had = self._runs.pop(block, None)
        if had is None:
            return
        start, count = had
        for row in range(start, start + count):
            del self.rows[self.ids[row]]
            for aggregate in self.aggregates.sets[int(self.aggregate_set[row])]:
                members = self._by_aggregate[aggregate]
                members.discard(row)
                if not members:
                    del self._by_aggregate[aggregate]
            self._sharing.discard(row)
            self.ids[row] = ""
            self.traits.release(int(self.trait_set[row]))
            self.aggregates.release(int(self.aggregate_set[row]))
        self.root[start : start + count] = -1
        self.leave[start : start + count] = 0
        for name in self._classes_of.pop(block, ()):
            self.classes[name].write(block, ())
            if self.classes[name].is_empty:
                del self.classes[name]
        self._blocks.give(start, Blocks.length_for(count))

    def _ensure(self, top: int) -> None:
        if top <= len(self.root):
            return
        length = max(top, len(self.root) * 5 // 4, 64)
        self.root = grown(self.root, length, -1)
        self.leave = grown(self.leave, length)
        self.parent = grown(self.parent, length, -1)
        self.trait_set = grown(self.trait_set, length)
        self.aggregate_set = grown(self.aggregate_set, length)
        self.block = grown(self.block, length)
        self.ids.extend([""] * (length - len(self.ids)))


def _preorder(parts: Iterable[Part]) -> list[Part]:
    by_id: dict[str, Part] = {}
    children: dict[str | None, list[Part]] = {}
    for part in parts:
        if part.id in by_id:
            raise ValueError(f"{part.id} is there twice")
        by_id[part.id] = part
        children.setdefault(part.parent, []).append(part)
    for parent in children:
        if parent is not None and parent not in by_id:
            raise ValueError(f"{children[parent][0].id} has an unknown parent {parent}")
    ordered: list[Part] = []
    open_parts = list(reversed(children.get(None, [])))
    while open_parts:
        part = open_parts.pop()
        ordered.append(part)
        open_parts.extend(reversed(children.get(part.id, [])))
    if len(ordered) < len(by_id):
        raise ValueError("parents form a cycle: " + ", ".join(sorted(set(by_id) - {p.id for p in ordered})[:5]))
    return ordered
