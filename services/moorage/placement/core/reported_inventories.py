"""Reads what the nodes and parts of a cluster have and have free, by resource class: as columns of the rows of its block."""

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
from moorage.parts.class_columns import UNLIMITED, ClassRows, Rows
from moorage.parts.layout import ANY

from .reported_devices import DeviceTable, is_offered
from .reported_names import class_of, units_of
from .reported_rows import ClusterNodes


class ShownAmounts(NamedTuple):
    """The amounts of a class that rows of a block, counted from its first, are shown to have. Use is rounded up, as a provider's is."""

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


class _Inner(NamedTuple):
    """The parts of a cluster, from their first row on: the nodes that they are of, where they are shown, and their rows in the table of
    layouts."""

    start: int
    node: Rows
    shown: Rows
    source: Rows


class ReportedInventories:
    """The inventories of clusters by class. Tables by layout are kept, so that a change of what is free costs no loop over parts."""

    def __init__(self, fleet: Fleet, forest: Forest) -> None:
        self._fleet = fleet
        self._tied: dict[int, frozenset[str]] = {}
        self._capacities: dict[str, Rows] = {}
        self._hidden: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._hidden_layouts = 1
        self._devices = DeviceTable(fleet, forest)

    def classes(self, nodes: ClusterNodes) -> dict[str, ClassRows]:
        """Returns the inventories of a cluster by class."""
        found = _Found()
        self._read(nodes, found)
        return {name: _merged(runs) for name, runs in found.runs.items()}

    def shown(self, nodes: ClusterNodes) -> list[ShownAmounts] | None:
        """Returns the same as providers show them."""
        found = _Found(showing=True)
        self._read(nodes, found)
        return found.shown

    def _read(self, nodes: ClusterNodes, found: _Found) -> None:
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

    def _tied_names(self, nodes: ClusterNodes) -> dict[str, NDArray[np.bool_]]:
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
        nodes: ClusterNodes,
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
        nodes: ClusterNodes,
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
