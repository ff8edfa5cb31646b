"""Sums resources per cluster over usable nodes, and sums again only clusters that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import grown

from .columns import ResourceColumns

if TYPE_CHECKING:
    from .fleet import Fleet


class _ResourceSums:
    """The sums of one resource, current up to the tick `since`."""

    __slots__ = ("allocatable", "free", "since")

    def __init__(self, size: int) -> None:
        self.since = 0
        self.free: NDArray[np.int64] = np.zeros(size, np.int64)
        self.allocatable: NDArray[np.int64] = np.zeros(size, np.int64)


class ClusterSums:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sums: dict[str, _ResourceSums] = {}
        #: By cluster, the tick of its last change other than a claim, which updates the sums at once.
        self._restated: NDArray[np.int64] = np.empty(0, np.int64)
        self._last_restated = 0
        self._cached: tuple[int, int, NDArray[np.int32], NDArray[np.intp]] = self._nothing_cached()

    @staticmethod
    def _nothing_cached() -> tuple[int, int, NDArray[np.int32], NDArray[np.intp]]:
        return -1, -1, np.empty(0, np.int32), np.empty(0, np.intp)

    def grow(self, length: int) -> None:
        self._restated = grown(self._restated, length)

    def restate(self, clusters: NDArray[np.int32]) -> None:
        """Has these clusters summed again."""
        if len(clusters):
            self._restated[clusters] = self._last_restated = self._fleet.tick

    def reset(self, length: int) -> None:
        """Has everything summed again, after all rows were replaced. `length`: of the columns of clusters."""
        self._sums = {}
        self._restated = np.full(length, self._fleet.tick, np.int64)
        self._last_restated = self._fleet.tick
        self._cached = self._nothing_cached()

    def drop(self, resource: str) -> None:
        self._sums.pop(resource, None)

    def claim(self, cid: int, resource: str, before: int, after: int) -> None:
        """Updates the sum of a cluster for a usable node whose free amount changed."""
        sums = self._sums.get(resource)
        if sums is not None and cid < len(sums.free):
            sums.free[cid] = sums.free.item(cid) + max(after, 0) - max(before, 0)

    def read(self, name: str, resource: ResourceColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns free and allocatable amounts per cluster; read-only, and current until the next change."""
        fleet = self._fleet
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _ResourceSums(fleet.size)
        elif sums.since >= self._last_restated and len(sums.free) == fleet.size:
            return sums.free, sums.allocatable
        if len(sums.free) < fleet.size:
            sums.free, sums.allocatable = grown(sums.free, fleet.size), grown(sums.allocatable, fleet.size)
        changed, rows = self._restated_since(sums.since)
        clusters = fleet.cluster[rows]
        for total, column in ((sums.free, resource.free), (sums.allocatable, resource.allocatable)):
            total[changed] = 0
            # An overcommitted node does not reduce what other nodes have free.
            np.add.at(total, clusters, np.maximum(column[rows], 0))
        sums.since = fleet.tick
        return sums.free, sums.allocatable

    def _restated_since(self, since: int) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """Returns the clusters restated after `since` and their usable rows. Cached: all resources need the same at one tick."""
        fleet = self._fleet
        cached_since, tick, changed, rows = self._cached
        if (cached_since, tick) != (since, fleet.tick):
            mask = self._restated[: fleet.size] > since if since else fleet.known
            changed = np.flatnonzero(mask).astype(np.int32)
            rows = fleet.rows_in(changed)
            rows = rows[fleet.usable[rows]]
            self._cached = (since, fleet.tick, changed, rows)
        return changed, rows
