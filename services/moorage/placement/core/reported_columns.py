"""Writes the nodes and parts of a cluster into the forest: as columns, with no loop over nodes or parts but for the ids of
clusters whose parts came, went or moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet
from moorage.model.part_names import is_class
from moorage.model.shapes import EXCLUSIVE
from moorage.parsing import CAPACITY_MAX
from moorage.parts import Forest
from moorage.parts.forest import UNLIMITED, ClassRows, Rows, TreeRows
from moorage.parts.layout import ANY, part_id

from .reported_devices import DeviceTable, is_counter, is_offered
from .reported_names import (
    DISABLED,
    aggregate_of,
    class_of,
    cluster_aggregate,
    cpu_traits,
    node_traits,
    trait_of,
    units_of,
    uuids_of,
)

_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_ADDED = b'"added":'


class ClusterTrees(NamedTuple):
    """The nodes of a cluster as they were written: their names and layouts, by row of the block the node and the position in its
    layout, and the block's ids."""

    names: list[str]
    sources: list[bytes]
    of: Rows
    place: Rows
    ids: list[str]


class ShownAmounts(NamedTuple):
    """What rows of a block, counted from its first, are shown to have of a class. Use is rounded up, as a provider's is."""

    resource: str
    row: Rows
    capacity: Rows
    used: Rows


class _Found:
    """The inventories of a cluster by class; of a class that a row has twice, the first counts. `shown`: the same as providers show
    them, if that is asked."""

    def __init__(self, *, showing: bool = False) -> None:
        self.runs: dict[str, list[ClassRows]] = {}
        self.shown: list[ShownAmounts] | None = [] if showing else None

    def add(self, native: str, rows: ClassRows, capacity: Rows, native_capacity: Rows, free: Rows) -> None:
        resource = class_of(native)
        if self.shown is not None:
            before = [run.row for run in self.runs.get(resource, ())]
            new = ~np.isin(rows.row, np.concatenate(before)) if before else slice(None)
            used = -(-(native_capacity - free) // units_of(native))
            self.shown.append(ShownAmounts(resource, rows.row[new], capacity[new], used[new]))
        self.runs.setdefault(resource, []).append(rows)


class _Common(NamedTuple):
    """Where parts that several nodes reach are shown: each once, in a row among those of the first node that has it."""

    layouts: bytes  # of the nodes
    kept: NDArray[np.bool_]  # by row if no part were left out
    rank: Rows  # how many rows there are before it
    shown: Rows  # by row of the cluster's parts, the row where its amounts are shown; -1: those of another node are
    reached: Rows  # the same at all nodes that reach a part which others reach, too; -1: no others do


class _Nodes(NamedTuple):
    """The nodes of a cluster, and the rows that they and their parts get in its block."""

    cid: int
    rows: NDArray[np.intp]  # of the fleet
    layouts: NDArray[np.int32]
    firsts: Rows
    of: Rows  # by row, the node
    place: Rows  # by row, the position in the layout
    source: Rows  # by row, the row in the table of layouts; 0 where the node has no parts
    inner: NDArray[np.bool_]  # by row, whether the node has parts
    common: _Common | None = None  # None: no part is left out


class _Inner(NamedTuple):
    """The parts of a cluster, from their first row on: the nodes that they are of, where they are shown, and their rows in the table of
    layouts."""

    start: int
    node: Rows
    shown: Rows
    source: Rows


class _Names(NamedTuple):
    """By row, the numbers of the traits and of the aggregates of a cluster's nodes and parts, and what these follow from."""

    source: tuple[list[str], bytes, bytes, bytes, bytes]
    traits: NDArray[np.int32]
    aggregates: NDArray[np.int32]


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
        self._tied: dict[int, frozenset[str]] = {}
        self._tainted: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._with_additions: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._trait_numbers: dict[int, int] = {}
        self._names: dict[int, _Names] = {}
        self._capacities: dict[str, Rows] = {}
        self._hidden: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._hidden_layouts = 1
        self._common: dict[int, _Common] = {}
        self._devices = DeviceTable(self._fleet, self._forest)

    def erase(self, cid: int) -> None:
        self._names.pop(cid, None)
        self._common.pop(cid, None)
        if self.clusters.pop(cid, None) is not None:
            self._forest.write(block_of(cid), ())

    def write(self, cid: int) -> None:
        """Writes a cluster as the fleet has it now."""
        nodes = self._nodes(cid)
        if nodes is None:
            self.erase(cid)
            return
        table = self._fleet.parts.layouts.part
        classes = self._classes(nodes)
        parent = np.where(nodes.inner, table["parent"][nodes.source], -1) if nodes.inner.any() else -1 - 0 * nodes.of
        leave = np.where(nodes.inner, table["leave"][nodes.source], 1) if nodes.inner.any() else 1 + 0 * nodes.of
        first = nodes.firsts[nodes.of]
        root, parent, leave = _placed(nodes, first, parent, leave)
        usable = self._fleet.usable[nodes.rows] & ~self._taints()[self._fleet.taintset[nodes.rows]]
        disabled = ~usable[nodes.of]
        if nodes.common is not None:
            parts = self._fleet.parts.rows_of(cid)
            reached = nodes.common.reached
            there = usable[np.searchsorted(nodes.rows, self._fleet.parts.node[parts])]
            disabled[reached[reached >= 0]] = True
            disabled[reached[(reached >= 0) & there]] = False
        trees = self._trees(nodes)
        self.clusters[cid] = trees
        names = self._names_of(nodes, trees, classes.get("VCPU"), disabled)
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
            ),
        )
        self._forest.write_classes(block_of(cid), classes)
        self.class_names.update(name for name in classes if not is_counter(name))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _nodes(self, cid: int) -> _Nodes | None:
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
            return _Nodes(cid, rows, layouts, firsts, of, place, source, inner)
        common = self._common.get(cid)
        if common is None or common.layouts != layouts.tobytes():
            common = self._common[cid] = self._read_common(cid, rows, layouts, firsts, len(of))
        kept = common.kept
        firsts = common.rank[firsts]
        return _Nodes(cid, rows, layouts, firsts, of[kept], place[kept], source[kept], inner[kept], common)

    def _read_common(
        self, cid: int, rows: NDArray[np.intp], layouts: NDArray[np.int32], firsts: Rows, count: int
    ) -> _Common:
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
        return _Common(layouts.tobytes(), kept, rank, shown, reached)

    def _trees(self, nodes: _Nodes) -> ClusterTrees:
        names = self._fleet.names_at(nodes.cid, nodes.rows)
        all_layouts = self._fleet.layout_sets
        sources = [all_layouts[number] for number in nodes.layouts.tolist()]
        before = self.clusters.get(nodes.cid)
        if before is not None and before.names == names and before.sources == sources:
            return before
        of = uuids_of(self._fleet.names[nodes.cid])
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
            return ClusterTrees(names, sources, nodes.of, nodes.place, ids)
        ids = []
        paths: dict[int, list[str]] = {0: [""]}
        for name, number in zip(names, nodes.layouts.tolist(), strict=True):
            found = paths.get(number)
            if found is None:
                found = paths[number] = [part.path for part in self._fleet.parts.layouts.found[number].parts]
            ids += [of(part_id(name, path)) for path in found]
        return ClusterTrees(names, sources, nodes.of, nodes.place, ids)

    # -- inventories --------------------------------------------------------------------------------------------------

    def shown(self, cid: int) -> list[ShownAmounts] | None:
        """Returns what the providers of a cluster have as the fleet has it now; None if its nodes or parts are not those that were
        written."""
        nodes = self._nodes(cid)
        if nodes is None or self._trees(nodes) is not self.clusters.get(cid):
            return None
        found = _Found(showing=True)
        self._read_classes(nodes, found)
        return found.shown

    def _classes(self, nodes: _Nodes) -> dict[str, ClassRows]:
        found = _Found()
        self._read_classes(nodes, found)
        return {name: _merged(runs) for name, runs in found.runs.items()}

    def _read_classes(self, nodes: _Nodes, found: _Found) -> None:
        fleet = self._fleet
        free: dict[str, Rows] = {}
        tied = self._tied_names(nodes)
        for name, column in fleet.stored.items():
            total = column.allocatable[nodes.rows]
            free[name] = column.free[nodes.rows]
            self._of_nodes(found, nodes, name, total, free[name], tied)
        exclusive = fleet.exclusive
        if exclusive is not None:
            total = np.maximum(exclusive[nodes.rows], 0)
            column_of = fleet.free(EXCLUSIVE)
            assert column_of is not None
            free[EXCLUSIVE] = np.minimum(column_of[nodes.rows], free.get("cpu", total * 0) // 1000)
            self._of_nodes(found, nodes, EXCLUSIVE, total, free[EXCLUSIVE], tied, free.get("cpu"))
        parts = fleet.parts.rows_of(nodes.cid)
        if parts.start == parts.stop:
            return
        self._devices.learn()
        own = np.arange(parts.start, parts.stop)
        node = np.searchsorted(nodes.rows, fleet.parts.node[parts])
        place = own - fleet.parts.root[parts]
        inner = _Inner(
            parts.start,
            node,
            nodes.firsts[node] + place if nodes.common is None else nodes.common.shown,
            fleet.parts.layouts.first[nodes.layouts[node]] + place,
        )
        counters = self._devices.counters_in(nodes.cid, inner.source)
        for name in fleet.parts.class_names:
            self._of_parts(found, nodes, inner, name, free, counters)
        if found.shown is None:
            for name, (total, left) in counters.items():
                found.runs[name] = [self._counter_rows(nodes.cid, inner, name, total, left)]

    def _counter_rows(self, cid: int, inner: _Inner, name: str, total: Rows, free: Rows) -> ClassRows:
        at = inner.shown[self._devices.rows_of(cid, name) - inner.start]
        one, there = np.ones(len(at), np.int64), np.flatnonzero(at >= 0)
        there = there[np.argsort(at[there])]
        columns = ClassRows(at, total, total - free, one, one * CAPACITY_MAX, one, -one, -one, 0 * one)
        return ClassRows(*(column[there] for column in columns))

    def _tied_names(self, nodes: _Nodes) -> dict[str, NDArray[np.bool_]]:
        """Returns, by resource, the nodes whose zones offer it, so that the nodes themselves do not."""
        tied: dict[str, list[int]] = {}
        for number in np.unique(nodes.layouts).tolist():
            if number not in self._tied:
                layout = self._fleet.parts.layouts.found[number]
                at = layout.at.get(f"/{ANY}")
                names = set() if at is None else set(layout.parts[at].inventories)
                if any(resource == EXCLUSIVE for _, resource in layout.entries):
                    names.add(EXCLUSIVE)
                self._tied[number] = frozenset(names)
            for name in self._tied[number]:
                tied.setdefault(name, []).append(number)
        return {name: np.isin(nodes.layouts, numbers) for name, numbers in tied.items()}

    def _of_nodes(
        self,
        found: _Found,
        nodes: _Nodes,
        name: str,
        total: Rows,
        free: Rows,
        tied: dict[str, NDArray[np.bool_]],
        pool: Rows | None = None,
    ) -> None:
        offering = total > 0
        if name in tied:
            offering &= ~tied[name]
        at = np.flatnonzero(offering)
        if not len(at):
            return
        units = units_of(name)
        capacity = total[at] // units
        one = np.ones(len(at), np.int64)
        pools = free if name == "cpu" else pool
        columns = ClassRows(
            nodes.firsts[at],
            capacity,
            capacity - free[at] // units,
            one,
            one * UNLIMITED,
            one,
            -one,
            -one if pools is None else np.maximum(pools[at] // 1000, 0),
            0 * one,
        )
        found.add(name, columns, capacity, total[at], free[at])

    def _of_parts(
        self,
        found: _Found,
        nodes: _Nodes,
        inner: _Inner,
        name: str,
        of_nodes: dict[str, Rows],
        counters: Mapping[str, tuple[Rows, Rows]],
    ) -> None:
        parts = self._fleet.parts
        columns = parts.classes[name]
        run = columns.run(nodes.cid)
        rows = columns.row[run]
        if not len(rows):
            return
        node, here, source = (column[rows - inner.start] for column in (inner.node, inner.shown, inner.source))
        free = columns.capacity[run] - columns.used[run] - columns.claimed[run]
        above = np.full(len(rows), -1, np.int64)
        if not is_class(name):
            free, above = _nested(parts.parent, rows, parts.leave[rows], free, columns.claimed[run])
        takes = self._devices.takes(name)
        takes = np.zeros(len(rows), np.int64) if takes is None else takes[source]
        free = self._devices.limited(nodes.cid, takes, rows, free, counters)
        free = np.where(parts.healthy[rows], free, np.minimum(free, 0))
        if nodes.common is not None:  # the reports of the nodes may differ for a moment
            reached = nodes.common.reached[rows - inner.start]
            least = np.full(len(nodes.of), UNLIMITED * UNLIMITED)
            np.minimum.at(least, reached[reached >= 0], free[reached >= 0])
            free = np.where(reached >= 0, least[reached], free)
        pool = np.full(len(rows), -1, np.int64)
        units = units_of(name)
        of_node = columns.of_node[run]
        if of_node.any() and name in of_nodes:
            there = of_nodes[name][node]
            free = np.where(of_node, np.minimum(free, there), free)
            pool = np.where(of_node, np.maximum(there // units, 0), pool)
        if name == EXCLUSIVE:
            there = of_nodes.get("cpu", np.zeros(len(nodes.rows), np.int64))[node] // 1000
            free = np.minimum(free, there)
            exclusive = of_nodes.get(EXCLUSIVE, np.zeros(len(nodes.rows), np.int64))[node]
            free = np.minimum(np.minimum(free, exclusive), self._cores_of(nodes.cid, rows))
            pool = np.maximum(there, 0)
        capacity = columns.capacity[run] // units
        hidden = self._is_hidden()[source] | (here < 0)
        least, step = -(-columns.min_unit[run] // units), -(-columns.step_size[run] // units)
        most = columns.max_unit[run] // units
        if (limits := self._devices.limits(name)) is not None:
            least, step = np.maximum(least, limits[0][source]), np.maximum(step, limits[1][source])
            most = np.minimum(most, limits[2][source])
        upwards = np.where(above < 0, -1, here[above])
        shown = ClassRows(here, capacity, capacity - free // units, least, most, step, upwards, pool, takes)
        native = columns.capacity[run]
        if hidden.any():
            there = np.flatnonzero(~hidden)
            # Common parts are shown beside those of another node than the one that their amounts are from.
            there = there[np.argsort(here[there])]
            shown = ClassRows(*(column[there] for column in shown))
            source, native, free = source[there], native[there], free[there]
        if len(shown.row):
            offered = self._offered(name)[source] if found.shown is not None else shown.capacity
            found.add(name, shown, offered, native, free)

    def _cores_of(self, cid: int, rows: Rows) -> Rows:
        """Returns how many cores parts have free, of which their exclusive ones are; without limit where they have none."""
        parts, found = self._fleet.parts, np.full(len(rows), UNLIMITED, np.int64)
        columns = parts.classes.get("cpu")
        if columns is None:
            return found
        run = columns.run(cid)
        having, claimed = columns.row[run], columns.claimed[run]
        free = columns.capacity[run] - columns.used[run] - claimed
        free, _ = _nested(parts.parent, having, parts.leave[having], free, claimed)
        _, here, there = np.intersect1d(rows, having, assume_unique=True, return_indices=True)
        found[here] = free[there] // 1000
        return found

    def _offered(self, name: str) -> Rows:
        """Returns, by row in the table of layouts, the capacity of a class as providers show it: total and reserve are rounded
        each."""
        layouts, units = self._fleet.parts.layouts, units_of(name)
        known = self._capacities.get(name)
        if known is None or len(known) < layouts.part.n:
            found = np.zeros(layouts.part.n, np.int64)
            for number in range(1, len(layouts.found)):
                first = int(layouts.first[number])
                for at, part in enumerate(layouts.found[number].parts):
                    inventory = part.inventories.get(name)
                    if inventory is not None:
                        rest = inventory.total // units - -(-inventory.reserved // units)
                        found[first + at] = int(rest * inventory.allocation_ratio)
            known = self._capacities[name] = found
        return known

    # -- traits and aggregates ------------------------------------------------------------------------------------------

    def _is_hidden(self) -> NDArray[np.bool_]:
        """Tells, by row in the table of layouts, which parts are not offered."""
        layouts = self._fleet.parts.layouts
        if len(self._hidden) < layouts.part.n:
            numbers = range(self._hidden_layouts, len(layouts.found))
            parts = (part for number in numbers for part in layouts.found[number].parts)
            more = [not is_offered(part) for part in parts]
            self._hidden = np.concatenate([self._hidden, np.array(more, np.bool_)])
            self._hidden_layouts = len(layouts.found)
        return self._hidden

    def _taints(self) -> NDArray[np.bool_]:
        sets = self._fleet.taint_sets
        if len(self._tainted) < len(sets):
            more = [any(taint.effect in _KEEPS_AWAY for taint in taints) for taints in sets[len(self._tainted) :]]
            self._tainted = np.concatenate([self._tainted, np.array(more, np.bool_)])
        return self._tainted

    def _names_of(
        self, nodes: _Nodes, trees: ClusterTrees, cpus: ClassRows | None, disabled: NDArray[np.bool_]
    ) -> _Names:
        """Returns the traits and aggregates of the rows. Most changes are of what is free, so they are made only if what they
        follow from is another."""
        labels, offering = self._fleet.labelset[nodes.rows], b"" if cpus is None else cpus.row.tobytes()
        source = trees.ids, nodes.layouts.tobytes(), labels.tobytes(), disabled.tobytes(), offering
        before = self._names.get(nodes.cid)
        if before is None or before.source != source:
            before = _Names(source, self._traits(nodes, cpus, disabled), self._aggregates(nodes))
            self._names[nodes.cid] = before
        return before

    def _own(self, nodes: _Nodes, kind: str) -> Rows:
        """Returns, by row, the number of the part's own traits or aggregates. REST's additions are not among them."""
        parts = self._fleet.parts
        base = parts.traits if kind == "traits" else parts.aggregates
        numbers = (
            np.where(nodes.inner, parts.layouts.part[kind][nodes.source], 0) if nodes.inner.any() else 0 * nodes.of
        )
        sets = self._fleet.layout_sets
        if len(self._with_additions) < len(sets):
            more = [_ADDED in source for source in sets[len(self._with_additions) :]]
            self._with_additions = np.concatenate([self._with_additions, np.array(more, np.bool_)])
        for number in np.unique(nodes.layouts[self._with_additions[nodes.layouts]]).tolist():
            for at, part in enumerate(parts.layouts.found[number].parts):
                own = part.traits - part.added_traits if kind == "traits" else part.aggregates - part.added_aggregates
                numbers[(nodes.layouts == number)[nodes.of] & (nodes.place == at)] = base.number(own)
        return numbers

    def _traits(self, nodes: _Nodes, cpus: ClassRows | None, disabled: NDArray[np.bool_]) -> NDArray[np.int32]:
        own = self._own(nodes, "traits")
        offers = np.zeros(len(nodes.of), np.bool_)
        if cpus is not None:
            offers[cpus.row] = True
        root = nodes.place == 0
        labels = np.where(offers | root, self._fleet.labelset[nodes.rows][nodes.of], 0).astype(np.int64)
        flags = offers + 2 * root + 4 * (root & disabled)
        keys, rows = np.unique((labels << 32) + (own << 3) + flags, return_inverse=True)
        numbers = [self._trait_number(key) for key in keys.tolist()]
        return np.array(numbers, np.int32)[rows.reshape(-1)]

    def _trait_number(self, key: int) -> int:
        found = self._trait_numbers.get(key)
        if found is None:
            labels, own, flags = self._fleet.label_sets[key >> 32], (key & 0xFFFFFFFF) >> 3, key & 7
            names = {trait_of(name) for name in self._fleet.parts.traits.sets[own]}
            names |= cpu_traits(labels) if flags & 1 else set()
            names |= node_traits(labels) if flags & 2 else set()
            names |= {DISABLED} if flags & 4 else set()
            self.trait_names |= names
            found = self._trait_numbers[key] = self._forest.traits.number(names)
        return found

    def _aggregates(self, nodes: _Nodes) -> NDArray[np.int32]:
        cluster = self._fleet.names[nodes.cid]
        own = self._own(nodes, "aggregates") * 2 + (nodes.place == 0)
        keys, rows = np.unique(own, return_inverse=True)
        numbers: list[int] = []
        for key in keys.tolist():
            names = {aggregate_of(cluster, name) for name in self._fleet.parts.aggregates.sets[key >> 1]}
            numbers.append(self._forest.aggregates.number(names | ({cluster_aggregate(cluster)} if key & 1 else set())))
        return np.array(numbers, np.int32)[rows.reshape(-1)]


def _placed(nodes: _Nodes, first: Rows, parent: Rows, leave: Rows) -> tuple[Rows, Rows, Rows]:
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


def _nested(parents: Rows, rows: Rows, leave: Rows, free: Rows, claimed: Rows) -> tuple[Rows, Rows]:
    """Returns what parts have free of a resource that ancestors have, too: what is claimed below is taken of them, and what
    they have not is not there. And the next entry upwards, -1 if there is none."""
    ends = np.searchsorted(rows, leave)
    sums = np.concatenate([[0], np.cumsum(claimed)])
    free = free - (sums[ends] - sums[1:])
    above = np.full(len(rows), -1, np.int64)
    if (ends - np.arange(len(rows)) == 1).all():
        return free, above
    upwards = parents[rows]
    while (going := np.flatnonzero((upwards >= 0) & (above < 0))).size:
        at = np.minimum(np.searchsorted(rows, upwards[going]), len(rows) - 1)
        hit = rows[at] == upwards[going]
        above[going[hit]] = at[hit]
        upwards[going[~hit]] = parents[upwards[going[~hit]]]
    limited = free.copy()
    at = above.copy()
    while (going := np.flatnonzero(at >= 0)).size:
        limited[going] = np.minimum(limited[going], free[at[going]])
        at[going] = above[at[going]]
    return limited, above


def _merged(runs: list[ClassRows]) -> ClassRows:
    """Joins runs of one class. A row that is in several keeps its first entry."""
    if len(runs) == 1:
        return runs[0]
    columns: list[Any] = [np.concatenate(column) for column in zip(*runs, strict=True)]
    _, first = np.unique(columns[0], return_index=True)
    return ClassRows(*(column[first] for column in columns))
