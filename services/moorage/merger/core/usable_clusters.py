"""Finds changes of clusters that may help waiting apps: a cluster opened, or labels changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet


class UsableClusters:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._labels: dict[int, object] = {}
        self._usable: set[int] = set()

    def reset(self) -> None:
        """Remembers all clusters, so that the first change of each is noticed."""
        known = np.flatnonzero(self._fleet.known)
        usable = self._fleet.usable_clusters[known]
        self._labels = {cid: self._fleet.cluster_labels(cid) for cid in known.tolist()}
        self._usable = set(known[usable].tolist())

    def update(self, clusters: NDArray[np.int32]) -> tuple[list[int], bool]:
        """Returns the clusters that became usable, and whether one has other labels."""
        opened: list[int] = []
        relabelled = False
        for cid, usable in zip(clusters.tolist(), self._fleet.usable_clusters[clusters].tolist(), strict=True):
            labels = self._fleet.cluster_labels(cid)
            # Label sets are shared objects: other labels are another object.
            relabelled |= self._labels.get(cid, labels) is not labels
            self._labels[cid] = labels
            if not usable:
                self._usable.discard(cid)
            elif cid not in self._usable:
                self._usable.add(cid)
                opened.append(cid)
        return opened, relabelled
