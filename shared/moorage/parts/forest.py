"""Keeps trees of parts as columns, in blocks of neighbouring rows that are in preorder.

A part's row is also its number of entry: a is an ancestor of b, or b itself, exactly if a <= b < leave[a].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import Blocks, grown

from .class_columns import ClassColumns, ClassRows, Inventory, Rows, Run, closed_up, with_gap
from .interning import SetTable

#: The trait of a part that offers its inventories to all trees with which it has an aggregate in common.
SHARES = "MISC_SHARES_VIA_AGGREGATE"
#: Classes whose units are taken of another class of the same tree, too.
POOLS = {"PCPU": "VCPU"}


class Take(NamedTuple):
    """The amount that one unit of a class takes of another part: so many units of a class there. Parts are numbered within their node."""

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


class TreeRows(NamedTuple):
    """The parts of a block in preorder, as columns. `root`, `parent` (-1: none) and `leave` count from the block's first row;
    `traits` and `aggregates` are numbers of the forest's sets. Nothing is offered by parts that are `disabled`. `order` tells of
    roots which trees come first, whatever rows they have."""

    ids: list[str]
    root: Rows
    parent: Rows
    leave: Rows
    traits: NDArray[np.int32]
    aggregates: NDArray[np.int32]
    disabled: NDArray[np.bool_]
    order: Rows


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
        self.disabled: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.order: NDArray[np.int64] = np.empty(0, np.int64)
        self._blocks = Blocks()
        self._runs: dict[int, Run] = {}
        self._classes_of: dict[int, frozenset[str]] = {}
        self._sharing: set[int] = set()
        self._able: Rows | None = None  # of the sharing parts those that are not disabled; None: to be found anew
        self._served_by: dict[int, set[int]] | None = None  # by sharing part
        self._takes: list[tuple[tuple[str, int], ...]] = [()]
        self._take_numbers: dict[tuple[tuple[str, int], ...], int] = {(): 0}

    @property
    def n(self) -> int:
        return self._blocks.top

    def write(self, block: int, parts: Iterable[Part], order: int = 0) -> None:
        """Replaces a block's trees. Raises ValueError for an id twice, an unknown parent or a cycle."""
        ordered = _preorder(parts)
        self._erase(block)
        if not ordered:
            return
        count = len(ordered)
        start = self._take(block, count).start
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
        self.disabled[start : start + count] = False
        self.order[start : start + count] = order
        self.rows.update(here)
        for name, found in entries.items():
            self.classes.setdefault(name, ClassColumns()).write(block, found)
        self._classes_of[block] = frozenset(entries)

    def change(self, part: Part) -> None:
        """Replaces what a part has, and what of it is used. Its parent is as before."""
        row = self.rows[part.id]
        block = int(self.block[row])
        traits, aggregates = self.traits.acquire(part.traits), self.aggregates.acquire(part.aggregates)
        before = int(self.trait_set[row]), int(self.aggregate_set[row])
        if before != (traits, aggregates):
            self._forget_sharing()
            self.trait_set[row], self.aggregate_set[row] = traits, aggregates
        self.traits.release(before[0])
        self.aggregates.release(before[1])
        (self._sharing.add if SHARES in part.traits else self._sharing.discard)(row)
        self._put_classes(block, row, part)

    def add(self, part: Part, before: str | None = None) -> None:
        """Adds a part below its parent, before another child or as the last."""
        assert part.parent is not None
        parent = self.rows[part.parent]
        block = int(self.block[parent])
        run = self._runs[block]
        if run.size == run.length:
            run = self._move(block, run)
            parent = self.rows[part.parent]
        row = int(self.leave[parent]) if before is None else self.rows[before]
        self.ids[row + 1 : run.end + 1] = self.ids[row : run.end]
        for column in self._columns():
            with_gap(column, row, run.end)
        self._runs[block] = run._replace(size=run.size + 1)
        self._moved(block, row, row + 1, run.end + 1, 1)
        self.ids[row], self.rows[part.id] = part.id, row
        self.root[row], self.parent[row], self.leave[row] = self.root[parent], parent, row + 1
        self.block[row], self.disabled[row], self.order[row] = block, False, self.order[parent]
        self.trait_set[row] = self.traits.acquire(part.traits)
        self.aggregate_set[row] = self.aggregates.acquire(part.aggregates)
        if SHARES in part.traits:
            self._sharing.add(row)
        while parent >= 0:
            self.leave[parent] += 1
            parent = int(self.parent[parent])
        self._put_classes(block, row, part)

    def remove(self, ident: str) -> None:
        """Removes a part without children, which is no root."""
        row = self.rows.pop(ident)
        block, parent = int(self.block[row]), int(self.parent[row])
        run = self._runs[block]
        self._put_classes(block, row, Part(ident))
        self._sharing.discard(row)
        self.traits.release(int(self.trait_set[row]))
        self.aggregates.release(int(self.aggregate_set[row]))
        self.ids[row : run.end - 1] = self.ids[row + 1 : run.end]
        for column in self._columns():
            closed_up(column, row, run.end)
        self._runs[block] = run._replace(size=run.size - 1)
        self._moved(block, row, row, run.end - 1, -1)
        self.ids[run.end - 1], self.root[run.end - 1], self.leave[run.end - 1] = "", -1, 0
        while parent >= 0:
            self.leave[parent] -= 1
            parent = int(self.parent[parent])

    def _moved(self, block: int, first: int, begin: int, end: int, by: int) -> None:
        """Corrects what counts rows after those of a block moved from `first` on: they are from `begin` to `end` now. The ends of
        the trees above are left to the caller."""
        here = slice(begin, end)
        self.rows.update(zip(self.ids[here], range(begin, end), strict=True))
        self.leave[here] += by
        for column in (self.parent[here], self.root[here]):
            column[column >= first] += by
        last = end - by
        self._sharing = {row + by if first <= row < last else row for row in self._sharing}
        for name in self._classes_of.get(block, ()):
            self.classes[name].shift(block, first, by)
        self._forget_sharing()

    def _put_classes(self, block: int, row: int, part: Part) -> None:
        """Writes the inventories of one part."""
        for name in self._classes_of.get(block, frozenset()) - part.inventories.keys():
            self.classes[name].remove(block, row)
        for name, inventory in part.inventories.items():
            self.classes.setdefault(name, ClassColumns()).put(block, row, inventory, part.used.get(name, 0))
        names = self._classes_of.get(block, frozenset()) | part.inventories.keys()
        self._classes_of[block] = frozenset(name for name in names if self.classes[name].has(block))
        for name in names:
            if self.classes[name].is_empty:
                del self.classes[name]

    def _move(self, block: int, run: Run) -> Run:
        """Gives a block more rows."""
        new = self._take(block, run.size + 1)._replace(size=run.size)
        self._runs[block] = new
        by = new.start - run.start
        self.ids[new.start : new.end] = self.ids[run.start : run.end]
        self.ids[run.start : run.end] = [""] * run.size
        for column in self._columns():
            column[new.start : new.end] = column[run.start : run.end]
        self.root[run.start : run.end] = -1
        self.leave[run.start : run.end] = 0
        self._moved(block, run.start, new.start, new.end, by)
        self._blocks.give(run.start, run.length)
        return new

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return (
            self.root,
            self.leave,
            self.parent,
            self.trait_set,
            self.aggregate_set,
            self.block,
            self.disabled,
            self.order,
        )

    def _take(self, block: int, count: int) -> Run:
        length = Blocks.length_for(count)
        run = self._runs[block] = Run(self._blocks.take(length), count, length)
        self._ensure(self._blocks.top)
        return run

    def write_rows(self, block: int, trees: TreeRows) -> int:
        """Replaces a block's trees, whose inventories follow by `write_classes`. Returns its first row."""
        count = len(trees.ids)
        run = self._runs.get(block)
        start = run.start if run is not None else 0
        if run is None or run.size != count or self.ids[start : start + count] != trees.ids:
            self._erase(block)
            start = self._take(block, count).start
            self.ids[start : start + count] = trees.ids
            self.rows.update(zip(trees.ids, range(start, start + count), strict=True))
        here = slice(start, start + count)
        if not self._shares_as_before(here, trees):
            self._forget_sharing()
        self._sharing.difference_update([row for row in self._sharing if start <= row < start + count])
        self.root[here] = trees.root + start
        self.parent[here] = np.where(trees.parent < 0, -1, trees.parent + start)
        self.leave[here] = trees.leave + start
        self.trait_set[here] = trees.traits
        self.aggregate_set[here] = trees.aggregates
        self.disabled[here] = trees.disabled
        self.block[here] = block
        self.order[here] = trees.order
        shares = self.traits.where("shares", lambda traits: SHARES in traits)[trees.traits]
        self._sharing.update((start + np.flatnonzero(shares)).tolist())
        return start

    def _shares_as_before(self, here: slice, trees: TreeRows) -> bool:
        """Returns whether a block serves, and is served by, the same parts once these trees are written."""
        return (
            bool((self.root[here] == trees.root + here.start).all())
            and bool((self.aggregate_set[here] == trees.aggregates).all())
            and bool((self.trait_set[here] == trees.traits).all())
            and bool((self.disabled[here] == trees.disabled).all())
        )

    def _forget_sharing(self) -> None:
        self._able = self._served_by = None

    def write_classes(self, block: int, classes: Mapping[str, ClassRows]) -> None:
        """Replaces the inventories of a block that was written by `write_rows`."""
        first = self._runs[block].start
        for name in self._classes_of.get(block, frozenset()) - classes.keys():
            self.classes[name].write(block, ())
        for name, columns in classes.items():
            self.classes.setdefault(name, ClassColumns()).write_columns(block, first, columns)
        self._classes_of[block] = frozenset(classes)

    def add_names(self, row: int, traits: Iterable[str], aggregates: Iterable[str]) -> None:
        """Gives a part more traits and aggregates."""
        names = self.traits.sets[int(self.trait_set[row])].union(traits)
        self.trait_set[row] = self.traits.number(names)
        members = self.aggregates.sets[int(self.aggregate_set[row])].union(aggregates)
        self.aggregate_set[row] = self.aggregates.number(members)
        self._forget_sharing()
        if SHARES in names:
            self._sharing.add(row)

    def first_row(self, block: int) -> int | None:
        """Returns the first row of a block; None if it has no trees."""
        return self._runs[block].start if block in self._runs else None

    def block_of(self, ident: str) -> int | None:
        """Returns the block of a part; None if there is no such part."""
        row = self.rows.get(ident)
        return None if row is None else int(self.block[row])

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

    def pools(self, row: int, name: str) -> Iterator[tuple[tuple[int, str], int, int]]:
        """Yields from where else each unit of a class is taken that is taken of a part, how much of it is there, and how much of it
        a unit takes."""
        columns = self.classes[name]
        at = columns.position(int(self.block[row]), row)
        if at is None:
            return
        if columns.pool[at] >= 0:
            yield (~int(self.root[row]), POOLS.get(name, name)), int(columns.pool[at]), 1
            yield from self._pools_of_parts(row, name)
        parent = int(self.parent[row])
        for taken, amount in self._takes[int(columns.takes[at])]:
            yield (parent, taken), self.room(parent, taken), amount
        while (above := int(columns.above[at])) >= 0:
            yield (above, name), self.room(above, name), 1
            at = columns.position(int(self.block[above]), above)
            assert at is not None  # an ancestor from which it is taken has the class

    def takes_number(self, takes: tuple[tuple[str, int], ...]) -> int:
        """Returns the number of what units take of a parent: classes there, and how much of each."""
        number = self._take_numbers.setdefault(takes, len(self._takes))
        if number == len(self._takes):
            self._takes.append(takes)
        return number

    def takes(self, number: int) -> tuple[tuple[str, int], ...]:
        return self._takes[number]

    def taken_with(self, names: Iterable[str]) -> list[str]:
        """Returns the classes of which units of these classes take."""
        numbers = {n for name in names for n in np.unique(self.classes[name].takes).tolist()}
        return sorted({taken for number in numbers for taken, _ in self._takes[number] if taken in self.classes})

    def _pools_of_parts(self, row: int, name: str) -> Iterator[tuple[tuple[int, str], int, int]]:
        """Yields what a part, and those above it, have of a class whose units they give as units of another class, too."""
        pool, block = POOLS.get(name, name), int(self.block[row])
        columns = self.classes.get(pool)
        if pool not in POOLS.values() or columns is None:
            return
        at = columns.position(block, row)
        while at is not None:
            yield (row, f"{pool} in all"), self.room(row, pool), 1
            row = int(columns.above[at])
            at = columns.position(block, row) if row >= 0 else None

    def room_by_row(self, name: str, most: int) -> list[Rows]:
        """Returns columns that say, by row, how much of a class can be taken of the parts of a tree together: the room of each
        row, 0 where nothing is, how far above units are taken, too (0: nowhere), what the tree has in all, and the number of what a
        unit takes of the parent. No amount is more than `most`."""
        columns = self.classes[name]
        at = np.flatnonzero(columns.row >= 0)
        return self._rooms(columns, at, columns.row[at], self.n, most)

    def room_of(self, name: str, rows: Rows, most: int) -> list[Rows]:
        """Returns `room_by_row` of a few rows."""
        columns = self.classes[name]
        found = [
            columns.position(block, row) for block, row in zip(self.block[rows].tolist(), rows.tolist(), strict=True)
        ]
        at = np.array([p for p in found if p is not None], np.intp)
        place = np.array([i for i, p in enumerate(found) if p is not None], np.intp)
        return self._rooms(columns, at, place, len(rows), most)

    @staticmethod
    def _rooms(columns: ClassColumns, at: NDArray[np.intp], place: NDArray[Any], length: int, most: int) -> list[Rows]:
        row, above = columns.row[at], columns.above[at]
        room = np.minimum(columns.capacity[at] - columns.used[at], columns.max_unit[at])
        values = (
            np.clip(room, 0, most),
            np.where(above >= 0, row - above, 0),
            np.minimum(columns.pool[at], most) + 1,
            columns.takes[at],
        )
        found = [np.zeros(length, np.int64) for _ in values]
        for column, value in zip(found, values, strict=True):
            column[place] = value
        return found

    def sharing(self) -> Rows:
        """Returns the rows of the parts that serve other trees."""
        if self._able is None:
            rows = np.array(sorted(self._sharing), np.int64)
            self._able = rows[~self.disabled[rows]]
        return self._able

    def sharing_with(self) -> dict[int, set[int]]:
        """Returns the roots of other trees that each sharing part serves, by row of the part. Equal sets are one."""
        if self._served_by is None:
            able = self.sharing().tolist()
            self._served_by = dict(zip(able, self._served(able), strict=True)) if able else {}
        return self._served_by

    def _served(self, sharing: Sequence[int]) -> Iterator[set[int]]:
        """Yields the roots of other trees that have an aggregate in common with each of these parts."""
        there = np.flatnonzero(self.root[: self.n] >= 0)
        order = there[np.argsort(self.aggregate_set[there], kind="stable")]
        distinct, first = np.unique(self.aggregate_set[order], return_index=True)
        rows_of = dict(zip(distinct.tolist(), np.split(order, first[1:]), strict=True))
        members: dict[str, list[int]] = {}
        for number in rows_of:
            for name in self.aggregates.sets[number]:
                members.setdefault(name, []).append(number)
        known: dict[frozenset[int], set[int]] = {}
        for row in sharing:
            own, root = int(self.aggregate_set[row]), int(self.root[row])
            of_name = (members[name] for name in self.aggregates.sets[own])
            found = frozenset(number for numbers in of_name for number in numbers)
            if len(rows_of[own]) == 1:
                found -= {own}  # only the part itself
            if found not in known:
                known[found] = {r for number in found for r in np.unique(self.root[rows_of[number]]).tolist()}
            served = known[found]
            yield served - {root} if root in served else served

    def _erase(self, block: int) -> None:
        self._forget_sharing()
        had = self._runs.pop(block, None)
        if had is None:
            return
        for row in range(had.start, had.end):
            del self.rows[self.ids[row]]
            self._sharing.discard(row)
            self.ids[row] = ""
            self.traits.release(int(self.trait_set[row]))
            self.aggregates.release(int(self.aggregate_set[row]))
        self.root[had.start : had.end] = -1
        self.leave[had.start : had.end] = 0
        for name in self._classes_of.pop(block, ()):
            self.classes[name].write(block, ())
            if self.classes[name].is_empty:
                del self.classes[name]
        self._blocks.give(had.start, had.length)

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
        self.disabled = grown(self.disabled, length, False)
        self.order = grown(self.order, length)
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
