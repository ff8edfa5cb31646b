"""Numbers the rows that the nodes and parts of a cluster have in its block of the forest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet
from moorage.parts.class_columns import Rows
from moorage.parts.layout import part_id

from .reported_names import TREES, first_of_cluster, uuids_of


class ClusterTrees(NamedTuple):
    """The nodes of a cluster as they were written: their names and layouts, by row of the block the node and the position in its
    layout, the block's ids, and the order of the nodes, by row."""

    names: list[str]
    sources: list[bytes]
    of: Rows
    place: Rows
    ids: list[str]
    order: Rows


class CommonParts(NamedTuple):
    """The rows of parts that several nodes reach: each is shown once, in a row among those of the first node that has it."""

    layouts: bytes  # of the nodes
    kept: NDArray[np.bool_]  # by row if no part were left out
    rank: Rows  # how many rows there are before it
    shown: Rows  # by row of the cluster's parts, the row where its amounts are shown; -1: those of another node are
    reached: Rows  # the same at all nodes that reach a part which others reach, too; -1: no others do


class ClusterNodes(NamedTuple):
    """The nodes of a cluster, and the rows that they and their parts get in its block."""

    cid: int
    rows: NDArray[np.intp]  # of the fleet
    layouts: NDArray[np.int32]
    firsts: Rows
    of: Rows  # by row, the node
    place: Rows  # by row, the position in the layout
    source: Rows  # by row, the row in the table of layouts; 0 where the node has no parts
    inner: NDArray[np.bool_]  # by row, whether the node has parts
    common: CommonParts | None = None  # None: no part is left out


class RowNumbers:
    """Numbers rows as the fleet has its nodes and parts now."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._common: dict[int, CommonParts] = {}

    def forget(self, cid: int) -> None:
        self._common.pop(cid, None)

    def nodes(self, cid: int) -> ClusterNodes | None:
        """Returns the nodes of a cluster with their rows; None if it has none."""
        fleet = self._fleet
        if not (cid < fleet.size and fleet.known[cid]):
            return None
        rows = fleet.rows_of(cid)
        if not len(rows):
            return None
        layouts = np.zeros(len(rows), np.int32) if fleet.layout is None else fleet.layout[rows]
        table = fleet.parts.layouts
        sizes = np.where(layouts > 0, table.size[layouts], 1)
        firsts = np.cumsum(sizes) - sizes
        of = np.repeat(np.arange(len(rows), dtype=np.int64), sizes)
        place = np.arange(len(of), dtype=np.int64) - firsts[of]
        inner = (layouts > 0)[of]
        source = np.where(inner, table.first[layouts][of] + place, 0)
        if all(len(found) < 2 for found in fleet.parts.shared_in(cid).values()):
            return ClusterNodes(cid, rows, layouts, firsts, of, place, source, inner)
        common = self._common.get(cid)
        if common is None or common.layouts != layouts.tobytes():
            common = self._common[cid] = self._read_common(cid, rows, layouts, firsts, len(of))
        kept = common.kept
        firsts = common.rank[firsts]
        return ClusterNodes(cid, rows, layouts, firsts, of[kept], place[kept], source[kept], inner[kept], common)

    def _read_common(
        self, cid: int, rows: NDArray[np.intp], layouts: NDArray[np.int32], firsts: Rows, count: int
    ) -> CommonParts:
        parts = self._fleet.parts
        here = parts.rows_of(cid)
        own = np.arange(here.start, here.stop)
        at = firsts[np.searchsorted(rows, parts.node[own])] + own - parts.root[own]
        # Parts that take of the same counters have rows at the same nodes, so that the first of these has all of a tree.
        kept = np.ones(count, np.bool_)
        shared = parts.shared_in(cid)
        kept[at[np.concatenate([found[1:] for found in shared.values()]) - here.start]] = False
        rank = np.concatenate([[0], np.cumsum(kept)])
        shown, reached = np.where(kept[at], rank[at], -1), np.full(len(at), -1, np.int64)
        for ident, found in shared.items():
            row, reaching = int(shown[found[0] - here.start]), parts.reaching(cid, ident)
            shown[found - here.start] = -1
            shown[reaching[:1] - here.start] = reached[reaching - here.start] = row
        return CommonParts(layouts.tobytes(), kept, rank, shown, reached)

    def trees(self, nodes: ClusterNodes, before: ClusterTrees | None) -> ClusterTrees:
        """Returns the trees of a cluster's nodes: those from `before` if they are the same."""
        names = self._fleet.names_at(nodes.cid, nodes.rows)
        all_layouts = self._fleet.layout_sets
        sources = [all_layouts[number] for number in nodes.layouts.tolist()]
        if before is not None and before.names == names and before.sources == sources:
            return before
        cluster = self._fleet.names[nodes.cid]
        of = uuids_of(cluster)
        rank = np.empty(len(names), np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        order = first_of_cluster(cluster) + rank[nodes.of]
        if nodes.common is not None:
            ids = [
                of(
                    part_id(
                        names[node],
                        self._fleet.parts.layouts.found[nodes.layouts[node]].parts[at].path if inner else "",
                    )
                )
                for node, at, inner in zip(nodes.of.tolist(), nodes.place.tolist(), nodes.inner.tolist(), strict=True)
            ]
            return ClusterTrees(names, sources, nodes.of, nodes.place, ids, order)
        ids = []
        paths: dict[int, list[str]] = {0: [""]}
        for name, number in zip(names, nodes.layouts.tolist(), strict=True):
            found = paths.get(number)
            if found is None:
                found = paths[number] = [part.path for part in self._fleet.parts.layouts.found[number].parts]
            ids += [of(part_id(name, path)) for path in found]
        return ClusterTrees(names, sources, nodes.of, nodes.place, ids, order)


def order_of_trees(nodes: ClusterNodes, trees: ClusterTrees, root: Rows) -> Rows:
    """Returns the order of the trees, by row of their roots: nodes by name, then parts that several nodes reach."""
    if nodes.common is None:
        return trees.order
    order, cluster = trees.order.copy(), trees.order[0] & -2 * TREES
    common = np.flatnonzero((root == np.arange(len(root))) & (nodes.place > 0))
    order[common] = [cluster + TREES + int(trees.ids[row][:5], 16) for row in common.tolist()]
    return order


def placed(nodes: ClusterNodes, first: Rows, parent: Rows, leave: Rows) -> tuple[Rows, Rows, Rows]:
    """Returns root, parent and end of each row. Parts that several nodes reach are roots, or below others of them."""
    if nodes.common is None:
        return first, np.where(parent < 0, -1, first + parent), first + leave
    # Where the rows of the nodes would begin if no part were left out.
    rank = nodes.common.rank
    begins = np.searchsorted(rank, nodes.firsts, side="right") - 1
    begin, own = begins[nodes.of], np.arange(len(nodes.of))
    common = nodes.place >= leave[first]
    parent = np.where(parent < 0, -1, rank[begin + np.maximum(parent, 0)])
    root = np.where(common, np.where(parent < 0, own, parent), first)
    return root, parent, rank[begin + leave]
