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
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from moorage.classes import Selector
from moorage.collections.blocks import Blocks, grown, spread
from moorage.parts import PropertyTable
from moorage.parts.device_parts import MARK
from moorage.parts.inside import Layout, check_identities, common_source, consumptions, layout_of
from moorage.parts.interning import SetTable

Rows = NDArray[np.int64]
_NO_ROWS: Rows = np.empty(0, np.int64)


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
            return _NO_ROWS, _NO_ROWS
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


class _Columns:
    """Columns of equal length that are appended to."""

    def __init__(self, *names: str) -> None:
        self.n = 0
        self.columns: dict[str, Rows] = dict.fromkeys(names, _NO_ROWS)

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Appends rows that have a value for each column, in their order."""
        first, self.n = self.n, self.n + len(rows)
        if not rows:
            return
        for (name, column), values in zip(self.columns.items(), np.array(rows, np.int64).T, strict=True):
            if self.n > len(column):
                column = self.columns[name] = grown(column, max(self.n, 2 * len(column), 64))
            column[first : self.n] = values

    def __getitem__(self, name: str) -> Rows:
        return self.columns[name]


class _LayoutList(Sequence[Layout]):
    """Layouts by number, without the identities of devices. They are read again when they are needed."""

    def __init__(self) -> None:
        self._sources: list[bytes] = [b""]

    def append(self, source: bytes) -> None:
        self._sources.append(source)

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, number: int) -> Layout: ...
    @overload
    def __getitem__(self, number: slice) -> list[Layout]: ...
    def __getitem__(self, number: int | slice) -> Layout | list[Layout]:
        found = self._sources[number]
        return layout_of(found) if isinstance(found, bytes) else [layout_of(source) for source in found]


class _Common(NamedTuple):
    """What layouts have in common that differ only in the identities of devices. `number`: of the first of them."""

    source: bytes
    devices: int
    columns: tuple[int, ...]
    number: int


class _Layouts:
    """The columns of all layouts, one after the other. Number 0 is a node without parts. Layouts that differ only in the
    identities of devices share their columns, which do not have these."""

    def __init__(self) -> None:
        self.found = _LayoutList()
        self.sources: list[bytes] = [b""]
        self.any_aligns = False  # the kubelet of a node does
        self.extended_resources: set[str] = set()  # that a DeviceClass serves on some node, or has served
        self.any_gives_exclusive = False  # the agent of a node gives CPUs of zones
        self._layouts = _Columns("first", "size", "first_entry", "entries", "aligns", "shares", "common")
        self._layouts.append([(0, 0, 0, 0, 0, 0, 0)])
        self._common: dict[bytes, _Common] = {}  # by source without identities
        self.part = _Columns(
            "parent", "leave", "kind", "traits", "aggregates", "properties", "healthy", "unit", "unit_size"
        )
        self.entry = _Columns("part", "resource", "capacity", "min_unit", "max_unit", "step_size", "of_node")

    @property
    def first(self) -> Rows:
        """Returns, by number, the first of the layout's rows in `part`."""
        return self._layouts["first"]

    @property
    def size(self) -> Rows:
        return self._layouts["size"]

    @property
    def first_entry(self) -> Rows:
        return self._layouts["first_entry"]

    @property
    def entries(self) -> Rows:
        """Returns, by number, how many inventories the layout has."""
        return self._layouts["entries"]

    @property
    def common(self) -> Rows:
        """Returns, by number, the first number of those that differ only in the identities of devices."""
        return self._layouts["common"]

    def own(self, number: int) -> Layout:
        """Returns a layout with the identities of its devices."""
        return layout_of(self.sources[number])

    @property
    def aligns(self) -> NDArray[np.bool_]:
        """Returns, by number, whether the kubelet of such nodes aligns pods with zones."""
        found: NDArray[np.bool_] = self._layouts["aligns"][: self._layouts.n] > 0
        return found

    @property
    def shares(self) -> Rows:
        """Returns, by number, how many parts of the layout other nodes reach, too."""
        return self._layouts["shares"]

    def append(self, source: bytes, parts: FleetParts) -> None:
        source_in_common = common_source(source)
        common = self._common.get(source_in_common)
        if common is None:
            layout = layout_of(source_in_common)
            columns = self._append_columns(layout, parts)
            common = _Common(source_in_common, len(layout.inside.devices), columns, len(self.sources))
            self._common[source_in_common] = common
        check_identities(source, common.devices)
        self._layouts.append([(*common.columns, common.number)])
        self.found.append(common.source)
        self.sources.append(source)

    def _append_columns(self, layout: Layout, parts: FleetParts) -> tuple[int, ...]:
        self.any_aligns |= layout.aligns
        self.any_gives_exclusive |= layout.gives_exclusive
        self.extended_resources |= layout.inside.extended_resources
        leave = list(range(1, len(layout.parts) + 1))
        for i in range(len(layout.parts) - 1, 0, -1):
            above = layout.parts[i].parent
            if above >= 0:
                leave[above] = max(leave[above], leave[i])
        first, first_entry = self.part.n, self.entry.n
        self.part.append(
            [
                (
                    found.parent,
                    end,
                    parts.kind_number(found.kind),
                    parts.traits.number(found.traits),
                    parts.aggregates.number(found.aggregates),
                    parts.properties.number(found.properties),
                    found.healthy,
                    parts.class_number(found.unit[0]) if found.unit[0] else -1,
                    found.unit[1],
                )
                for found, end in zip(layout.parts, leave, strict=True)
            ]
        )
        self.entry.append([self._entry(layout, at, resource, parts) for at, resource in layout.entries])
        return first, len(layout.parts), first_entry, len(layout.entries), int(layout.aligns), len(layout.shared)

    def _entry(self, layout: Layout, at: int, resource: str, parts: FleetParts) -> tuple[int, ...]:
        inventory = layout.parts[at].inventories[resource]
        of_node = any(not take.part for take in layout.parts[at].consumes.get(resource, ()))
        limits = inventory.min_unit, inventory.max_unit, inventory.step_size
        return at, parts.class_number(resource), inventory.capacity, *limits, of_node


class _Block(NamedTuple):
    """The parts of a cluster: those of the nodes `nodes` (rows of the fleet), whose first rows are `firsts`."""

    start: int
    length: int
    offsets: NDArray[np.int64]  # of the nodes, from the first row of the cluster's block of nodes
    layouts: NDArray[np.int32]
    firsts: Rows


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
        self.copy: NDArray[np.bool_] = np.empty(0, np.bool_)  # another node has a row for the same part
        #: Of devices: the number of the class that counts them, and how much of it is one. -1: no device, or one that is divided.
        self.unit: NDArray[np.int32] = np.empty(0, np.int32)
        self.unit_size: Rows = np.empty(0, np.int64)
        self.layouts = _Layouts()
        self._kind_numbers: dict[str, int] = {}
        self._class_numbers: dict[str, int] = {}
        self._blocks = Blocks()
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
        self.layouts, self.properties = _Layouts(), PropertyTable()  # of which many may be of devices that are gone
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
            self._clusters[cluster] = _Block(begin, length, rows - start, layouts, firsts)
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

    def use(self, cluster: int, offsets: NDArray[np.int64], used: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Writes what is used of the parts of some nodes that have parts: the amounts of their entries, node by node.
        Returns which of the nodes have more free than before."""
        block = self._clusters[cluster]
        order = np.searchsorted(block.offsets, offsets)
        layouts = block.layouts[order]
        counts = self.layouts.entries[layouts]
        entry, part_rows = self._entries(layouts, block.firsts[order])
        resource = self.layouts.entry["resource"][entry]
        nodes = np.repeat(np.arange(len(offsets)), counts)
        better = np.zeros(len(offsets), np.bool_)
        for number in np.unique(resource).tolist():
            of = resource == number
            found = self.classes[self.class_names[number]]
            at = found.positions(cluster, part_rows[of])
            better[nodes[of][used[of] < found.used[at]]] = True
            found.used[at] = used[of]
        return better

    def used(self, cluster: int, offsets: NDArray[np.int64], *, claimed: bool = False) -> NDArray[np.int64]:
        """Returns what is used of the parts of some nodes that have parts, in the form of `use`; or what is used or claimed."""
        block = self._clusters[cluster]
        order = np.searchsorted(block.offsets, offsets)
        entry, part_rows = self._entries(block.layouts[order], block.firsts[order])
        resource = self.layouts.entry["resource"][entry]
        used = np.zeros(len(entry), np.int64)
        for number in np.unique(resource).tolist():
            of = resource == number
            found = self.classes[self.class_names[number]]
            at = found.positions(cluster, part_rows[of])
            used[of] = found.used[at] + found.claimed[at] if claimed else found.used[at]
        if claimed:
            self._add_consumed(cluster, block.layouts[order], block.firsts[order], used)
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
        for columns in self.classes.values():
            columns.write(cluster, row=_NO_ROWS)

    def _ensure(self, top: int) -> None:
        if top <= len(self.node):
            return
        length = max(top, len(self.node) * 5 // 4, 64)
        for name in self.COLUMNS:
            setattr(self, name, grown(getattr(self, name), length, -1 if name in ("node", "root", "parent") else 0))
