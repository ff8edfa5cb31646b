"""Keeps the inventories of one class as columns, with a run of entries for each block of the forest's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import Blocks, grown
from moorage.model.allocations import MAX_INT
from moorage.parsing import CAPACITY_MAX

UNLIMITED = MAX_INT
Rows = NDArray[np.int64]


class Inventory(NamedTuple):
    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = UNLIMITED
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def capacity(self) -> int:
        return min(int((self.total - self.reserved) * self.allocation_ratio), CAPACITY_MAX)


class ClassRows(NamedTuple):
    """The inventories of a class in a block, as columns; `row` ascends from the block's first row, and so does `above`: the next
    part upwards from which all that is taken is taken, too (-1: none). `pool` is what the whole tree still has of it (-1: it
    has no such limit). `takes` is the number of what a unit takes of the part's parent (`Forest.takes`)."""

    row: Rows
    capacity: Rows
    used: Rows
    min_unit: Rows
    max_unit: Rows
    step_size: Rows
    above: Rows
    pool: Rows
    takes: Rows


class Run(NamedTuple):
    """Neighbouring places: `size` of `length` are in use."""

    start: int
    size: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.size


def with_gap(column: NDArray[Any], at: int, end: int) -> None:
    """Moves what is from `at` to `end` one place on."""
    column[at + 1 : end + 1] = column[at:end].copy()


def closed_up(column: NDArray[Any], at: int, end: int) -> None:
    """Moves what follows `at`, up to `end`, one place back."""
    column[at : end - 1] = column[at + 1 : end].copy()


_NO_RUN = Run(0, 0, 0)


class ClassColumns:
    """The inventories of one class: a run of entries for each block, in the order of the block's rows. `any_takes` tells that units
    of some part took of its parent."""

    COLUMNS = ("row", "capacity", "used", "min_unit", "max_unit", "step_size", "above", "pool", "takes")
    __slots__ = (*COLUMNS, "_blocks", "_runs", "any_takes")

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._runs: dict[int, Run] = {}
        self.row: NDArray[np.int64] = np.empty(0, np.int64)
        self.capacity: NDArray[np.int64] = np.empty(0, np.int64)
        self.used: NDArray[np.int64] = np.empty(0, np.int64)
        self.min_unit: NDArray[np.int64] = np.empty(0, np.int64)
        self.max_unit: NDArray[np.int64] = np.empty(0, np.int64)
        self.step_size: NDArray[np.int64] = np.empty(0, np.int64)
        self.above: NDArray[np.int64] = np.empty(0, np.int64)
        self.pool: NDArray[np.int64] = np.empty(0, np.int64)
        self.takes: NDArray[np.int64] = np.empty(0, np.int64)
        self.any_takes = False

    def write_columns(self, block: int, first: int, columns: ClassRows) -> None:
        """Replaces the entries of a block whose first row is `first`."""
        count = len(columns.row)
        run = self._runs.get(block, _NO_RUN)
        if run.size != count:
            self.write(block, ())
            run = self._take(block, count)
        here = slice(run.start, run.end)
        for name, values in zip(self.COLUMNS, columns, strict=True):
            getattr(self, name)[here] = values
        self.row[here] += first
        self.above[here] = np.where(columns.above < 0, -1, columns.above + first)
        self.any_takes |= bool(columns.takes.any())

    def write(self, block: int, entries: Sequence[tuple[int, Inventory, int]]) -> None:
        """Replaces the entries (row, inventory, used) of a block."""
        had = self._runs.pop(block, None)
        if had is not None:
            self.row[had.start : had.end] = -1
            self._blocks.give(had.start, had.length)
        if not entries:
            return
        run = self._take(block, len(entries))
        here = slice(run.start, run.end)
        self.row[here] = [row for row, _, _ in entries]
        self.capacity[here] = [inventory.capacity for _, inventory, _ in entries]
        self.used[here] = [used for _, _, used in entries]
        self.min_unit[here] = [inventory.min_unit for _, inventory, _ in entries]
        self.max_unit[here] = [inventory.max_unit for _, inventory, _ in entries]
        self.step_size[here] = [inventory.step_size for _, inventory, _ in entries]
        self.above[here] = self.pool[here] = -1
        self.takes[here] = 0

    def put(self, block: int, row: int, inventory: Inventory, used: int) -> None:
        """Writes the entry of one row, which takes and is taken of nothing else."""
        at = self.position(block, row)
        if at is None:
            at = self._insert(block, row)
        values = row, inventory.capacity, used, inventory.min_unit, inventory.max_unit, inventory.step_size, -1, -1, 0
        for name, value in zip(self.COLUMNS, values, strict=True):
            getattr(self, name)[at] = value

    def _insert(self, block: int, row: int) -> int:
        run = self._runs.get(block, _NO_RUN)
        if run.size == run.length:
            run = self._move(block, run)
        at = run.start + int(np.searchsorted(self.row[run.start : run.end], row))
        for name in self.COLUMNS:
            with_gap(getattr(self, name), at, run.end)
        self._runs[block] = run._replace(size=run.size + 1)
        return at

    def _move(self, block: int, run: Run) -> Run:
        """Gives a run more places."""
        new = self._take(block, run.size + 1)._replace(size=run.size)
        for name in self.COLUMNS:
            column = getattr(self, name)
            column[new.start : new.end] = column[run.start : run.end]
        self.row[run.start : run.end] = -1
        self._blocks.give(run.start, run.length)
        self._runs[block] = new
        return new

    def remove(self, block: int, row: int) -> None:
        """Removes the entry of a row, if it has one."""
        at = self.position(block, row)
        if at is None:
            return
        run = self._runs[block]
        for name in self.COLUMNS:
            closed_up(getattr(self, name), at, run.end)
        self.row[run.end - 1] = -1
        if run.size == 1:
            del self._runs[block]
            self._blocks.give(run.start, run.length)
        else:
            self._runs[block] = run._replace(size=run.size - 1)

    def shift(self, block: int, first: int, by: int) -> None:
        """Moves the rows of a block's entries, from `first` on."""
        run = self._runs.get(block, _NO_RUN)
        for column in (self.row, self.above):
            here = column[run.start : run.end]
            here[here >= first] += by

    @property
    def is_empty(self) -> bool:
        return not self._runs

    def position(self, block: int, row: int) -> int | None:
        """Returns the place of a row's entry; None if the part does not have the class."""
        run = self._runs.get(block, _NO_RUN)
        at = run.start + int(np.searchsorted(self.row[run.start : run.end], row))
        return at if at < run.end and self.row[at] == row else None

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

    def has(self, block: int) -> bool:
        return block in self._runs

    def _take(self, block: int, count: int) -> Run:
        length = Blocks.length_for(count)
        run = self._runs[block] = Run(self._blocks.take(length), count, length)
        self._ensure(self._blocks.top)
        return run

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
        self.above = grown(self.above, length, -1)
        self.pool = grown(self.pool, length, -1)
        self.takes = grown(self.takes, length)
