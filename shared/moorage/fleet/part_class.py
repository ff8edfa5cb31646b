"""Keeps the inventories of one class of parts as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import Blocks, grown

Rows = NDArray[np.int64]


class PartClass:
    """The inventories of one class: a run for each cluster, in the order of the parts' rows. Row -1 is an empty entry."""

    COLUMNS = ("row", "capacity", "used", "claimed", "min_unit", "max_unit", "step_size", "of_node")
    __slots__ = (*COLUMNS, "_blocks", "_runs")

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._runs: dict[int, tuple[int, int]] = {}
        self.row: Rows = np.empty(0, np.int64)
        self.capacity: Rows = np.empty(0, np.int64)
        self.used: Rows = np.empty(0, np.int64)  # as reported
        self.claimed: Rows = np.empty(0, np.int64)
        self.min_unit: Rows = np.empty(0, np.int64)
        self.max_unit: Rows = np.empty(0, np.int64)
        self.step_size: Rows = np.empty(0, np.int64)
        self.of_node: NDArray[np.bool_] = np.empty(0, np.bool_)  # what is taken is taken of the node, too

    @property
    def n(self) -> int:
        """Returns the number of entries, empty ones among them."""
        return self._blocks.top

    def with_room(self, amount: int) -> Rows:
        """Returns the rows of which `amount` can be taken now, not regarding what they consume of their ancestors."""
        top = self.n
        row, step = self.row[:top], self.step_size[:top]
        ok = self.used[:top] + self.claimed[:top] + amount <= self.capacity[:top]
        ok &= (row >= 0) & (self.min_unit[:top] <= amount) & (self.max_unit[:top] >= amount)
        ok &= amount % np.maximum(step, 1) == 0
        return row[ok]

    def run(self, cluster: int) -> slice:
        """Returns where the entries of a cluster are."""
        start, count = self._runs.get(cluster, (0, 0))
        return slice(start, start + count)

    def having(self, cluster: int, rows: Rows) -> tuple[Rows, Rows]:
        """Returns those of a cluster's rows that have the class, and their entries."""
        run = self.run(cluster)
        if run.stop == run.start:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at = run.start + np.minimum(np.searchsorted(self.row[run], rows), run.stop - run.start - 1)
        there = self.row[at] == rows
        return rows[there], at[there]

    def positions(self, cluster: int, rows: Rows) -> Rows:
        """Returns the entries of rows of a cluster that all have the class."""
        run = self.run(cluster)
        places: Rows = run.start + np.searchsorted(self.row[run], rows)
        return places

    def position(self, cluster: int, row: int) -> int | None:
        """Returns the entry of a row; None if the part does not have the class."""
        run = self.run(cluster)
        at = run.start + int(np.searchsorted(self.row[run], row))
        return at if at < run.stop and self.row[at] == row else None

    def write(self, cluster: int, **columns: NDArray[Any]) -> None:
        """Replaces the entries of a cluster. Nothing is claimed of them."""
        start, had = self._runs.pop(cluster, (0, 0))
        if had:
            self.row[start : start + had] = -1
            self._blocks.give(start, Blocks.length_for(had))
        count = len(columns["row"])
        if not count:
            return
        start = self._blocks.take(Blocks.length_for(count))
        if self._blocks.top > len(self.row):
            length = max(self._blocks.top, len(self.row) * 5 // 4, 64)
            for name in self.COLUMNS:
                setattr(self, name, grown(getattr(self, name), length, -1 if name == "row" else 0))
        here = slice(start, start + count)
        self._runs[cluster] = start, count
        self.claimed[here] = 0
        for name, values in columns.items():
            getattr(self, name)[here] = values
