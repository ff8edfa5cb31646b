"""Lays out the rows of nodes: a block of neighbouring rows for each cluster, moved when the cluster outgrows it.

Rows are found by cluster and node name. `Fleet` gives the columns their meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import Blocks, grown, spread
from moorage.model.shapes import EXCLUSIVE

from .columns import PortUse, ResourceColumns
from .delta import SEPARATOR, ClusterDelta


class Table:
    """The rows of all nodes. Node names are one joined string per cluster: two million strings would need more memory than
    all columns."""

    def __init__(self) -> None:
        self.n = 0
        self.size = 0
        self._start: NDArray[np.int64] = np.empty(0, np.int64)
        self._length: NDArray[np.int64] = np.empty(0, np.int64)
        self._nodes: list[str] = []  # by cluster: joined names of the block's rows; "" is an empty row
        self._split: dict[int, list[str]] = {}
        self._extras: dict[int, dict[str, bytes]] = {}
        self.cluster: NDArray[np.int32] = np.empty(0, np.int32)
        self.usable: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.labelset: NDArray[np.int32] = np.empty(0, np.int32)
        self.taintset: NDArray[np.int32] = np.empty(0, np.int32)
        self.portset: NDArray[np.int32] = np.empty(0, np.int32)
        self.host_label: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.flags: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.exclusive: NDArray[np.int64] | None = None  # as reported; allocated when the first node reports one
        self.layout: NDArray[np.int32] | None = None  # of what is inside; allocated when the first node has parts
        self._improved: NDArray[np.int64] = np.empty(0, np.int64)
        self._resources: dict[str, ResourceColumns] = {}
        self._port_uses: dict[str, PortUse] = {}  # of host ports that were asked for
        self._blocks = Blocks()
        self._layout: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None

    def _take_rows(self, other: Table) -> None:
        """Takes over all rows of `other`, which must not be used any more."""
        self.n = other.n
        self.size = other.size
        self._start = other._start
        self._length = other._length
        self._nodes = other._nodes
        self._split = other._split
        self._extras = other._extras
        self.cluster = other.cluster
        self.usable = other.usable
        self.labelset = other.labelset
        self.taintset = other.taintset
        self.portset = other.portset
        self.host_label = other.host_label
        self.flags = other.flags
        self.exclusive = other.exclusive
        self.layout = other.layout
        self._improved = other._improved
        self._resources = other._resources
        self._port_uses = other._port_uses
        self._blocks = other._blocks
        self._layout = other._layout

    def node_name(self, row: int) -> str:
        cid = int(self.cluster[row])
        return self._node_list(cid)[row - int(self._start[cid])] if cid >= 0 else ""

    def nodes_of(self, cid: int) -> list[str]:
        return [name for name in self._node_list(cid) if name]

    def places(self, cid: int) -> dict[str, int]:
        """Returns node → row of a cluster."""
        start = int(self._start[cid])
        return {name: start + i for i, name in enumerate(self._node_list(cid)) if name}

    def row_of(self, cid: int, node: str) -> int | None:
        try:
            return int(self._start[cid]) + self._node_list(cid).index(node) if node else None
        except (ValueError, IndexError):
            return None

    def rows_named(self, name: str) -> NDArray[np.intp]:
        """Returns the rows of the nodes of this name, in all clusters."""
        holding = [cid for cid, block in enumerate(self._nodes) if name in block]
        return np.array([row for cid in holding if (row := self.row_of(cid, name)) is not None], np.intp)

    def first_row(self, cluster: int) -> int:
        """Returns the first row of a cluster's block."""
        return int(self._start[cluster])

    def rows_of(self, cluster: int) -> NDArray[np.intp]:
        if not 0 <= cluster < self.size:
            return np.empty(0, np.intp)
        start = int(self._start[cluster])
        rows = np.arange(start, start + int(self._length[cluster]), dtype=np.intp)
        return rows[self.cluster[rows] >= 0]

    def blocks(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Returns the clusters that have rows, in the order of their rows, and their first rows."""
        if self._layout is None:
            having = np.flatnonzero(self._length[: self.size])
            having = having[self._start[having].argsort()]
            self._layout = having, self._start[having]
        return self._layout

    def rows_in(self, clusters: NDArray[Any]) -> NDArray[np.intp]:
        """Returns the rows of clusters, in the order of the clusters."""
        rows = spread(self._start[clusters], self._length[clusters])
        return rows[self.cluster[rows] >= 0]

    def names_at(self, cid: int, rows: NDArray[np.intp]) -> list[str]:
        """Returns the node names of rows of one cluster."""
        block, start = self._node_list(cid), int(self._start[cid])
        return [block[row - start] for row in rows.tolist()]

    @property
    def stored(self) -> dict[str, ResourceColumns]:
        """Returns the resources that nodes report, by name. Exclusive cores and host ports are not among them."""
        return {n: found for n, found in self._resources.items() if n != EXCLUSIVE and n not in self._port_uses}

    # -- writing -------------------------------------------------------------------------------------------------------

    def _place(self, part: ClusterDelta) -> tuple[NDArray[np.intp], NDArray[np.bool_], bool]:
        """Places the rows of a part. Returns the rows, which of them are new, and whether the set of nodes or their rows
        changed."""
        cid, names = part.id, part.names_list()
        start, length = int(self._start[cid]), int(self._length[cid])
        extras = self._extras.get(cid)
        if extras is not None:
            for node in [n for n in (list(extras) if part.whole else [*part.gone, *names]) if n in extras]:
                del extras[node]
        if part.extras:
            self._extras.setdefault(cid, {}).update(part.extras)
        elif extras is not None and not extras:
            del self._extras[cid]
        if length == 0 and not part.gone:
            length = Blocks.length_for(len(names))
            start = self._blocks.take(length)
            self._ensure_rows(self._blocks.top)
            self._start[cid], self._length[cid] = start, length
            self._layout = None
            self._nodes[cid] = part.names + SEPARATOR * (length - len(names)) if names else ""
            self._split.pop(cid, None)
            rows = np.arange(start, start + len(names), dtype=np.intp)
            self.cluster[rows] = cid
            return rows, np.ones(len(names), np.bool_), bool(names)
        if part.whole and not names:
            self._clear(self.rows_of(cid))
            self._blocks.give(start, length)
            self._start[cid] = self._length[cid] = 0
            self._layout = None
            self._nodes[cid] = ""
            self._split.pop(cid, None)
            return np.empty(0, np.intp), np.empty(0, np.bool_), True
        block = self._node_list(cid) if length else []
        at = {name: i for i, name in enumerate(block) if name}
        leaving = [n for n in at if n not in set(names)] if part.whole else [n for n in part.gone if n in at]
        if leaving:
            places = np.array([at.pop(n) for n in leaving], np.intp)
            for place in places.tolist():
                block[place] = ""
            self._clear(start + places)
        coming = [n for n in names if n not in at]
        holes = [i for i, name in enumerate(block) if not name] if coming else []
        moved = bool(leaving or coming)
        if len(coming) > len(holes):
            start = self._move(cid, len(at) + len(coming))
            more = int(self._length[cid]) - len(block)
            holes += range(len(block), len(block) + more)
            block += [""] * more
        for name, place in zip(coming, holes, strict=False):
            at[name] = place
            block[place] = name
        if moved:
            self._nodes[cid] = SEPARATOR.join(block)
            self._split.pop(cid, None)
        rows = start + np.array([at[n] for n in names], np.intp)
        self.cluster[rows] = cid
        new = np.isin(np.array(names, object), np.array(coming, object)) if coming else np.zeros(len(names), np.bool_)
        return rows, new, moved

    def _move(self, cid: int, rows: int) -> int:
        """Moves a cluster, with what is claimed of its rows, to a longer block."""
        old, had = int(self._start[cid]), int(self._length[cid])
        length = Blocks.length_for(max(rows, had))
        start = self._blocks.take(length)
        self._ensure_rows(self._blocks.top)
        here, there = slice(old, old + had), slice(start, start + had)
        row_columns: tuple[NDArray[Any], ...] = (
            self.labelset,
            self.taintset,
            self.portset,
            self.host_label,
            self.flags,
            self._improved,
        )
        for values in row_columns:
            values[there] = values[here]
        emptied: tuple[tuple[NDArray[Any] | None, Any], ...] = (
            (self.cluster, -1),
            (self.usable, False),
            (self.exclusive, -1),
            (self.layout, 0),
        )
        for column, empty in emptied:
            if column is not None:
                column[there] = column[here]
                column[here] = empty
        for resource in self._resources.values():
            resource.move(here, there)
        self._blocks.give(old, had)
        self._start[cid], self._length[cid] = start, length
        self._layout = None
        return start

    def _clear(self, rows: NDArray[np.intp]) -> None:
        self.cluster[rows] = -1
        self.usable[rows] = False
        self.flags[rows] = 0
        if self.exclusive is not None:
            self.exclusive[rows] = -1
        if self.layout is not None:
            self.layout[rows] = 0
        for resource in self._resources.values():
            resource.clear(rows)

    def _new_resource(self, name: str) -> ResourceColumns:
        found = self._resources[name] = ResourceColumns(len(self.cluster))
        return found

    def _node_list(self, cid: int) -> list[str]:
        found = self._split.get(cid)
        if found is None:
            if len(self._split) >= 1024:
                self._split.clear()
            found = self._split[cid] = self._nodes[cid].split(SEPARATOR)
        return found

    def _ensure_rows(self, top: int) -> None:
        self.n = max(self.n, top)
        if top <= len(self.cluster):
            return
        length = max(top, len(self.cluster) * 5 // 4, 256)
        self.cluster = grown(self.cluster, length, -1)
        self.usable = grown(self.usable, length, False)
        self.labelset = grown(self.labelset, length)
        self.taintset = grown(self.taintset, length)
        self.portset = grown(self.portset, length)
        self.host_label = grown(self.host_label, length, False)
        self.flags = grown(self.flags, length)
        self._improved = grown(self._improved, length)
        if self.exclusive is not None:
            self.exclusive = grown(self.exclusive, length, -1)
        if self.layout is not None:
            self.layout = grown(self.layout, length)
        for resource in self._resources.values():
            resource.grow(length)
