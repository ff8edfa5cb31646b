"""Keeps when clusters and nodes changed, and when they got better, by tick."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import grown

from .change import NONE
from .cluster_columns import ClusterColumns


class ChangeTicks(ClusterColumns):
    """Clusters and nodes with the tick of their newest change. A node is improved when it may fit something that it did not
    fit before."""

    def __init__(self) -> None:
        super().__init__()
        self.tick = 1
        self.resets = 0
        self._reset_tick = 0
        self._changed: NDArray[np.int64] = np.empty(0, np.int64)
        self._improved_cluster: NDArray[np.int64] = np.empty(0, np.int64)

    def changed_since(self, tick: int) -> NDArray[np.int32] | None:
        """Returns the clusters that changed after `tick`; None if everything was replaced since."""
        if tick == self.tick:
            return NONE
        if tick < self._reset_tick:
            return None
        return np.flatnonzero(self._changed[: self.size] > tick).astype(np.int32)

    def improved_since(self, tick: int) -> NDArray[np.intp] | None:
        """Returns the rows that may fit something since `tick` that they did not before: they have more free, other
        labels or taints, are usable again or admit pods again. None if everything was replaced since."""
        if tick < self._reset_tick:
            return None
        rows = self.rows_in(np.flatnonzero(self._improved_cluster[: self.size] > tick))
        return rows[self._improved[rows] > tick]

    def note_improved(self, cid: int, node: str) -> None:
        """Lets whoever waits be tested against a node again: something else than its capacity changed in their favour."""
        row = self.row_of(cid, node)
        if row is not None:
            self.tick += 1
            self._changed[cid] = self._improved[row] = self._improved_cluster[cid] = self.tick

    def _improve(self, rows: NDArray[np.intp]) -> None:
        self._improved[rows] = self.tick
        self._improved_cluster[self.cluster[rows]] = self.tick

    def _reset_ticks(self, tick: int) -> None:
        """Lets everything count as replaced at this tick."""
        self.tick = self._reset_tick = tick
        self.resets += 1
        self._changed[: self.size] = self._improved_cluster[: self.size] = tick
        self._improved[: self.n] = tick

    def _ensure_clusters(self, size: int) -> int:
        before, length = len(self._start), super()._ensure_clusters(size)
        if length > before:
            self._changed = grown(self._changed, length)
            self._improved_cluster = grown(self._improved_cluster, length)
        return length
