"""Keeps what is inside nodes as columns: a block of neighbouring rows for each cluster that has any, in preorder, and for each
class the parts that have it.

A part's row is also its number of entry: a is an ancestor of b, or b itself, exactly if a <= b < leave[a]. The node itself is the
root of its parts; its amounts are in the columns of nodes only. Nodes of one kind share a layout, from whose columns theirs
are taken, so nothing is done part by part.

A part that several nodes reach has a row at each of them, and one at those where something else takes of the same counters. What is
claimed of it is claimed of all these rows; all but one are marked as copies, so that it counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.classes import Selector
from moorage.collections.blocks import Blocks, grown, spread
from moorage.parts import PropertyTable
from moorage.parts.device_parts import MARK
from moorage.parts.interning import SetTable
from moorage.parts.layout import consumptions

from .part_class import PartClass, Rows
from .part_layouts import PartLayouts

_NO_ROWS: Rows = np.empty(0, np.int64)


class _Block(NamedTuple):
    """The parts of a cluster: those of the nodes at `offsets`, whose first rows are `firsts`. Their `entries` are in a run of
    `reported`, node by node from `begins`."""

    start: int
    length: int
    offsets: NDArray[np.int64]  # of the nodes, from the first row of the cluster's block of nodes
    layouts: NDArray[np.int32]
    firsts: Rows
    entries: slice
    begins: NDArray[np.int64]


class FleetParts:
    """The parts of all nodes. Arrays are replaced when they grow, so read them from here each time."""

    COLUMNS = (
        "node",
        "root",
        "leave",
        "parent",
        "kind",
        "trait_set",
        "aggregate_set",
        "property_set",
        "healthy",
        "closed",
        "copy",
        "unit",
        "unit_size",
    )

    def __init__(self) -> None:
        self.traits = SetTable[str]()
        self.aggregates = SetTable[str]()
        self.properties = PropertyTable()
        self.kinds: list[str] = []
        self.class_names: list[str] = []
        self.classes: dict[str, PartClass] = {}
        self.node: Rows = np.empty(0, np.int64)  # the node's row in the fleet; -1: an empty row
        self.root: Rows = np.empty(0, np.int64)  # the row of the node itself
        self.leave: Rows = np.empty(0, np.int64)
        self.parent: Rows = np.empty(0, np.int64)  # -1: none
        self.kind: NDArray[np.int32] = np.empty(0, np.int32)
        self.trait_set: NDArray[np.int32] = np.empty(0, np.int32)
        self.aggregate_set: NDArray[np.int32] = np.empty(0, np.int32)
        self.property_set: NDArray[np.int32] = np.empty(0, np.int32)
        self.healthy: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.closed: NDArray[np.bool_] = np.empty(0, np.bool_)  # healthy but for taints that keep new pods away
        self.copy: NDArray[np.bool_] = np.empty(0, np.bool_)  # another node has a row for the same part
        #: Of devices: the number of the class that counts them, and how much of it is one. -1: no device, or one that is divided.
        self.unit: NDArray[np.int32] = np.empty(0, np.int32)
        self.unit_size: Rows = np.empty(0, np.int64)
        self.layouts = PartLayouts()
        self._kind_numbers: dict[str, int] = {}
        self._class_numbers: dict[str, int] = {}
        self._blocks = Blocks()
        #: What is used by entry, beside the columns of the classes: most reports change nothing of it, as one look here tells.
        self._reported: Rows = np.empty(0, np.int64)
        self._first_reported: Rows = np.empty(0, np.int64)  # by row of the fleet
        self._runs = Blocks()
        self._clusters: dict[int, _Block] = {}
        self._shared: dict[int, dict[str, Rows]] = {}  # by cluster and id
        self._reaching: dict[int, dict[str, Rows]] = {}  # those rows of them whose nodes reach the part
        self._of_others: dict[int, dict[tuple[str, int], int]] = {}  # by cluster: class and row → what others claim
        self._in_common: dict[int, dict[tuple[str, str], int]] = {}  # by cluster: id and class → what no node claims

    @property
    def n(self) -> int:
        """Returns the number of rows, empty ones among them; 0 if no node has parts."""
        return self._blocks.top

    @property
    def clusters(self) -> list[int]:
        """Returns the clusters with nodes that have parts."""
        return sorted(self._clusters)

    def counts(self) -> dict[str, int]:
        """Returns the number of parts of each kind; nodes are not among them."""
        here = (self.node[: self.n] >= 0) & (self.root[: self.n] != np.arange(self.n)) & ~self.copy[: self.n]
        numbers = np.bincount(self.kind[: self.n][here], minlength=len(self.kinds)).tolist()
        return {kind: count for kind, count in zip(self.kinds, numbers, strict=True) if count}

    def selected(self, selector: Selector, rows: slice | Rows) -> NDArray[np.bool_]:
        """Returns which of the rows have devices that a class selects. Conditions on cluster and node are to be settled before
        (`Selector.at`)."""
        return np.take(self.properties.selected(selector.of_devices), self.property_set[rows], mode="clip")

    def rows_of(self, cluster: int) -> slice:
        """Returns the rows of a cluster's parts."""
        found = self._clusters.get(cluster)
        if found is None:
            return slice(0, 0)
        return slice(found.start, found.start + int(self.layouts.size[found.layouts].sum()))

    def first_rows(self, cluster: int, start: int) -> tuple[NDArray[np.int64], Rows, NDArray[np.int32]]:
        """Returns the cluster's nodes that have parts, as rows of the fleet, the rows of their own parts, and the numbers of
        their layouts. `start` is the first row of the cluster's nodes."""
        found = self._clusters.get(cluster)
        if found is None:
            return _NO_ROWS, _NO_ROWS, np.empty(0, np.int32)
        return start + found.offsets, found.firsts, found.layouts

    # -- parts that several nodes reach ----------------------------------------------------------------------------------

    @property
    def sharing_clusters(self) -> list[int]:
        """Returns the clusters with parts that several nodes reach."""
        return sorted(c for c, shared in self._shared.items() if any(len(rows) > 1 for rows in shared.values()))

    def shared_in(self, cluster: int) -> Mapping[str, Rows]:
        """Returns the parts of a cluster that several nodes may reach, by id: their rows, ascending."""
        return self._shared.get(cluster, {})

    def reaching(self, cluster: int, ident: str) -> Rows:
        """Returns the rows of a part at the nodes that reach it, if several may."""
        return self._reaching.get(cluster, {}).get(ident, _NO_ROWS)

    def claim_of_others(self, cluster: int, ident: str, own: int | None, name: str, amount: int) -> Rows:
        """Claims an amount of a part at all nodes that reach it but the one where its row is `own`. Returns their rows."""
        rows = self._shared.get(cluster, {}).get(ident, _NO_ROWS)
        return self._claim(cluster, rows[rows != own] if own is not None else rows, name, amount)

    def claim_in_common(self, cluster: int, ident: str, name: str, amount: int, rows: Rows) -> Rows:
        """Claims an amount of a part, which has these rows, for somebody who is on none of the nodes that reach it. Returns the
        rows."""
        held = self._in_common.setdefault(cluster, {})
        held[ident, name] = held.get((ident, name), 0) + amount
        return self._claim(cluster, rows, name, amount)

    def claimed_in_common(self, cluster: int) -> Mapping[tuple[str, str], int]:
        """Returns what is claimed of parts for nobody on a node, by id and class."""
        return self._in_common.get(cluster, {})

    def _claim(self, cluster: int, rows: Rows, name: str, amount: int) -> Rows:
        columns = self.classes.get(name)
        if columns is None or not len(rows):
            return _NO_ROWS
        rows, at = columns.having(cluster, rows)
        columns.claimed[at] += amount
        known = self._of_others.setdefault(cluster, {})
        for row in rows.tolist():
            known[name, row] = known.get((name, row), 0) + amount
        return rows

    def claimed_by_others(self, cluster: int, name: str, row: int) -> int:
        """Returns what is claimed of a part at other nodes that reach it."""
        return self._of_others.get(cluster, {}).get((name, row), 0)

    def _index_shared(self, cluster: int, layouts: NDArray[np.int32], firsts: Rows) -> None:
        found: dict[str, list[Rows]] = {}
        reaching: dict[str, list[Rows]] = {}
        for number in np.unique(layouts).tolist():
            of, layout = firsts[layouts == number], self.layouts.found[number]
            for at in layout.shared:
                ident = layout.parts[at].path.removeprefix(MARK)
                found.setdefault(ident, []).append(of + at)
                if not layout.parts[at].is_elsewhere:
                    reaching.setdefault(ident, []).append(of + at)
        self._shared[cluster] = {ident: np.sort(np.concatenate(rows)) for ident, rows in found.items()}
        self._reaching[cluster] = {ident: np.sort(np.concatenate(rows)) for ident, rows in reaching.items()}
        for ident, rows in self._shared[cluster].items():
            self.copy[rows] = True
            self.copy[self.reaching(cluster, ident)[:1]] = False

    # -- dictionaries --------------------------------------------------------------------------------------------------

    def kind_number(self, kind: str) -> int:
        number = self._kind_numbers.setdefault(kind, len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(kind)
        return number

    def class_number(self, name: str) -> int:
        number = self._class_numbers.setdefault(name, len(self.class_names))
        if number == len(self.class_names):
            self.class_names.append(name)
            self.classes[name] = PartClass()
        return number

    # -- writing -------------------------------------------------------------------------------------------------------

    def learn(self, sources: Sequence[bytes]) -> None:
        """Takes in layouts; their numbers follow those that are known."""
        for source in sources:
            self.layouts.append(source, self)

    def renumber(self, sources: list[bytes]) -> list[bytes]:
        """Keeps only these layouts, whose numbers are their places in the list. Returns the list."""
        place = {source: number for number, source in enumerate(sources)}
        numbers = np.array([place.get(source, 0) for source in self.layouts.sources], np.int32)
        self.layouts, self.properties = PartLayouts(), PropertyTable()  # of which many may be of devices that are gone
        self.learn(sources[1:])
        table = self.layouts
        for cluster, block in self._clusters.items():
            layouts = numbers[block.layouts]
            self._clusters[cluster] = block._replace(layouts=layouts)
            rows = spread(table.first[layouts], table.size[layouts])
            self.property_set[block.start : block.start + len(rows)] = table.part["properties"][rows]
        return sources

    def lay_out(self, cluster: int, start: int, rows: NDArray[np.intp], layouts: NDArray[np.int32]) -> bool:
        """Lays out the parts of a cluster's nodes anew: `rows` of the fleet, ascending, whose layouts have these numbers.
        Nodes keep what is used of their parts while their layout stays; nothing is claimed. Returns whether there are or
        were any parts."""
        having = layouts > 0
        rows, layouts = rows[having].astype(np.int64), layouts[having]
        before = self._clusters.get(cluster)
        if before is None and not len(rows):
            return False
        used = self._used_by_entry(cluster, before, rows - start, layouts)
        self._erase(cluster)
        table = self.layouts
        sizes = table.size[layouts]
        total = int(sizes.sum())
        begin = self._blocks.take(length := Blocks.length_for(total))
        self._ensure(self._blocks.top)
        firsts = begin + np.cumsum(sizes) - sizes
        if len(rows):
            run, begins = self._report(rows, table.entries[layouts], used)
            self._clusters[cluster] = _Block(begin, length, rows - start, layouts, firsts, run, begins)
            here, source = slice(begin, begin + total), spread(table.first[layouts], sizes)
            first = np.repeat(firsts, sizes)
            parent = table.part["parent"][source]
            self.node[here] = np.repeat(rows, sizes)
            self.root[here] = first
            self.leave[here] = first + table.part["leave"][source]
            self.parent[here] = np.where(parent < 0, -1, first + parent)
            self.kind[here] = table.part["kind"][source]
            self.trait_set[here] = table.part["traits"][source]
            self.aggregate_set[here] = table.part["aggregates"][source]
            self.property_set[here] = table.part["properties"][source]
            self.healthy[here] = table.part["healthy"][source]
            self.closed[here] = table.part["closed"][source]
            self.unit[here] = table.part["unit"][source]
            self.unit_size[here] = table.part["unit_size"][source]
            self.copy[here] = False
            if (sharing := table.shares[layouts] > 0).any():
                self._index_shared(cluster, layouts[sharing], firsts[sharing])
        entry, part_rows = self._entries(layouts, firsts)
        resource = table.entry["resource"][entry]
        for number in np.unique(resource).tolist():
            of = resource == number
            pick = entry[of]
            self.classes[self.class_names[number]].write(
                cluster,
                row=part_rows[of],
                capacity=table.entry["capacity"][pick],
                used=used[of],
                min_unit=table.entry["min_unit"][pick],
                max_unit=table.entry["max_unit"][pick],
                step_size=table.entry["step_size"][pick],
                of_node=table.entry["of_node"][pick],
            )
        return True

    def _report(self, rows: Rows, counts: NDArray[np.int64], used: Rows) -> tuple[slice, Rows]:
        """Keeps what is used of the parts of these nodes beside the classes. Returns its place, and where each node begins."""
        start = self._runs.take(Blocks.length_for(len(used)))
        if self._runs.top > len(self._reported):
            self._reported = grown(self._reported, max(self._runs.top, len(self._reported) * 5 // 4, 64))
        run = slice(start, start + len(used))
        self._reported[run] = used
        if int(rows[-1]) >= len(self._first_reported):
            length = max(int(rows[-1]) + 1, len(self._first_reported) * 5 // 4, 64)
            self._first_reported = grown(self._first_reported, length)
        begins = self._first_reported[rows] = start + np.cumsum(counts) - counts
        return run, begins

    def differing(self, rows: Rows, counts: NDArray[np.int64], used: Rows) -> NDArray[np.bool_]:
        """Returns of which nodes another amount is used than was reported before. `used` has their entries node by node."""
        found = np.zeros(len(rows), np.bool_)
        changed = np.flatnonzero(self._reported[spread(self._first_reported[rows], counts)] != used)
        if len(changed):
            found[np.repeat(np.arange(len(rows)), counts)[changed]] = True
        return found

    def use(self, cluster: int, offsets: NDArray[np.int64], used: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Writes what is used of the parts of some nodes that have parts: the amounts of their entries, node by node.
        Returns which of the nodes have more free than before."""
        block = self._clusters[cluster]
        order = np.searchsorted(block.offsets, offsets)
        layouts = block.layouts[order]
        counts = self.layouts.entries[layouts]
        places = spread(block.begins[order], counts)
        entry, part_rows = self._entries(layouts, block.firsts[order])
        resource = self.layouts.entry["resource"][entry]
        better = np.zeros(len(offsets), np.bool_)
        better[np.repeat(np.arange(len(offsets)), counts)[used < self._reported[places]]] = True
        for number in np.unique(resource).tolist():
            of = resource == number
            columns = self.classes[self.class_names[number]]
            columns.used[columns.positions(cluster, part_rows[of])] = used[of]
        self._reported[places] = used
        return better

    def used(self, cluster: int, offsets: NDArray[np.int64], *, claimed: bool = False) -> NDArray[np.int64]:
        """Returns what is used of the parts of some nodes that have parts, in the form of `use`; or what is used or claimed."""
        block = self._clusters[cluster]
        order = np.searchsorted(block.offsets, offsets)
        layouts, firsts = block.layouts[order], block.firsts[order]
        used: NDArray[np.int64] = self._reported[spread(block.begins[order], self.layouts.entries[layouts])]
        if not claimed:
            return used
        entry, part_rows = self._entries(layouts, firsts)
        resource = self.layouts.entry["resource"][entry]
        for number in np.unique(resource).tolist():
            of = resource == number
            columns = self.classes[self.class_names[number]]
            used[of] += columns.claimed[columns.positions(cluster, part_rows[of])]
        self._add_consumed(cluster, layouts, firsts, used)
        return used

    def _add_consumed(self, cluster: int, layouts: NDArray[np.int32], firsts: Rows, used: NDArray[np.int64]) -> None:
        """Adds what is claimed of parts to what is used of those that they take of. `used` has the entries node by node."""
        counts = self.layouts.entries[layouts]
        begins = np.cumsum(counts) - counts
        for number in np.unique(layouts).tolist():
            layout, of = self.layouts.found[number], layouts == number
            for entry, consumed, amount in consumptions(layout):
                part, name = layout.entries[entry]
                columns = self.classes[name]
                claimed = columns.claimed[columns.positions(cluster, firsts[of] + part)]
                used[begins[of] + consumed] += claimed * amount

    def _entries(self, layouts: NDArray[np.int32], firsts: Rows) -> tuple[NDArray[np.intp], Rows]:
        """Returns the entries of nodes with these layouts, and the rows of their parts."""
        counts = self.layouts.entries[layouts]
        entry = spread(self.layouts.first_entry[layouts], counts)
        return entry, np.repeat(firsts, counts) + self.layouts.entry["part"][entry]

    def _used_by_entry(
        self, cluster: int, before: _Block | None, offsets: NDArray[np.int64], layouts: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        counts = self.layouts.entries[layouts]
        used = np.zeros(int(counts.sum()), np.int64)
        if before is None:
            return used
        at = np.searchsorted(before.offsets, offsets)
        at[at == len(before.offsets)] = 0
        same = (before.offsets[at] == offsets) & (before.layouts[at] == layouts)
        if same.any():
            ends = np.cumsum(counts)
            used[spread((ends - counts)[same], counts[same])] = self.used(cluster, offsets[same])
        return used

    def _erase(self, cluster: int) -> None:
        found = self._clusters.pop(cluster, None)
        self._shared.pop(cluster, None)
        self._reaching.pop(cluster, None)
        self._of_others.pop(cluster, None)
        self._in_common.pop(cluster, None)
        if found is None:
            return
        here = slice(found.start, found.start + found.length)
        self.node[here] = self.root[here] = self.parent[here] = -1
        self.copy[here] = False
        self.leave[here] = 0
        self._blocks.give(found.start, found.length)
        self._runs.give(found.entries.start, Blocks.length_for(found.entries.stop - found.entries.start))
        for columns in self.classes.values():
            columns.write(cluster, row=_NO_ROWS)

    def _ensure(self, top: int) -> None:
        if top <= len(self.node):
            return
        length = max(top, len(self.node) * 5 // 4, 64)
        for name in self.COLUMNS:
            setattr(self, name, grown(getattr(self, name), length, -1 if name in ("node", "root", "parent") else 0))
