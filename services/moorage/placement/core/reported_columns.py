"""Writes the nodes and parts of a cluster into the forest: as columns, with no loop over nodes or parts but for the ids of
clusters whose parts came, went or moved."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet
from moorage.parts import Forest
from moorage.parts.forest import TreeRows

from .reported_devices import is_counter
from .reported_inventories import ReportedInventories, ShownAmounts
from .reported_rows import ClusterTrees, RowNumbers, order_of_trees, placed
from .reported_traits import ReportedTraits

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


def block_of(cid: int) -> int:
    """Returns the forest's block of a cluster. Blocks of made trees are not negative."""
    return -1 - cid


def cluster_of(block: int) -> int | None:
    """Returns the cluster of a block; None for made trees."""
    return -1 - block if block < 0 else None


class ReportedColumns:
    def __init__(self, fleet: Fleet, forest: Forest) -> None:
        self._fleet, self._forest = fleet, forest
        self.class_names: set[str] = set()
        self.trait_names: set[str] = set()
        self.clusters: dict[int, ClusterTrees] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets what numbers mean: the fleet was replaced."""
        self._tainted: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._rows = RowNumbers(self._fleet)
        self._inventories = ReportedInventories(self._fleet, self._forest)
        self._traits = ReportedTraits(self._fleet, self._forest, self.trait_names)

    def erase(self, cid: int) -> None:
        self._rows.forget(cid)
        self._traits.forget(cid)
        if self.clusters.pop(cid, None) is not None:
            self._forest.write(block_of(cid), ())

    def write(self, cid: int) -> None:
        """Writes a cluster as the fleet has it now."""
        nodes = self._rows.nodes(cid)
        if nodes is None:
            self.erase(cid)
            return
        table = self._fleet.parts.layouts.part
        classes = self._inventories.classes(nodes)
        parent = np.where(nodes.inner, table["parent"][nodes.source], -1) if nodes.inner.any() else -1 - 0 * nodes.of
        leave = np.where(nodes.inner, table["leave"][nodes.source], 1) if nodes.inner.any() else 1 + 0 * nodes.of
        first = nodes.firsts[nodes.of]
        root, parent, leave = placed(nodes, first, parent, leave)
        usable = self._fleet.usable[nodes.rows] & ~self._taints()[self._fleet.taintset[nodes.rows]]
        disabled = ~usable[nodes.of]
        if nodes.common is not None:
            parts = self._fleet.parts.rows_of(cid)
            reached = nodes.common.reached
            there = usable[np.searchsorted(nodes.rows, self._fleet.parts.node[parts])]
            disabled[reached[reached >= 0]] = True
            disabled[reached[(reached >= 0) & there]] = False
        trees = self._rows.trees(nodes, self.clusters.get(cid))
        self.clusters[cid] = trees
        names = self._traits.names(nodes, trees, classes.get("VCPU"), disabled)
        self._forest.write_rows(
            block_of(cid),
            TreeRows(
                trees.ids,
                root,
                parent,
                leave,
                names.traits,
                names.aggregates,
                disabled,
                order_of_trees(nodes, trees, root),
            ),
        )
        self._forest.write_classes(block_of(cid), classes)
        self.class_names.update(name for name in classes if not is_counter(name))

    def shown(self, cid: int) -> list[ShownAmounts] | None:
        """Returns what the providers of a cluster have as the fleet has it now; None if its nodes or parts are not those that were
        written."""
        nodes = self._rows.nodes(cid)
        before = self.clusters.get(cid)
        if nodes is None or before is None or self._rows.trees(nodes, before) is not before:
            return None
        return self._inventories.shown(nodes)

    def _taints(self) -> NDArray[np.bool_]:
        sets = self._fleet.taint_sets
        if len(self._tainted) < len(sets):
            more = [any(taint.effect in _KEEPS_AWAY for taint in taints) for taints in sets[len(self._tainted) :]]
            self._tainted = np.concatenate([self._tainted, np.array(more, np.bool_)])
        return self._tainted
