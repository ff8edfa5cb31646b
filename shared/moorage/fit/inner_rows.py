"""Reads what is free inside of nodes, and counts the pods that they hold there: once per distinct state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections import LruDict, unique_rows
from moorage.model.part_names import is_class
from moorage.model.shapes import Shape
from moorage.parts.layout import InnerPart, Layout, layout_of
from moorage.qos.role_locks import ROLE_LOCK, fits_beside

from .asked_parts import Asked
from .budget import BudgetExceeded
from .class_scope import depends_on_cluster, within_cluster
from .node_state import NodeState, OpenPods
from .protocols import Ids, Mask, Rows
from .static_inside import StaticInside

#: The parts of up to this many clusters are read cluster by cluster; of more, all are.
_MAX_CLUSTERS = 64
EMPTY = layout_of(b"")


class LayoutNodes(NamedTuple):
    """Nodes of one layout: their positions among the rows that were asked for, and what is free by node and entry."""

    layout: Layout
    at: NDArray[np.intp]
    free: NDArray[np.int64]


def nodes_by_layout(
    rows: Rows,
    ids: Ids,
    classes_of: Callable[[Layout], Collection[str]] | None = None,
    asked: Sequence[Asked] = (),
) -> Iterator[LayoutNodes]:
    """Yields the nodes of each layout among these rows. `classes_of`: the classes that are read, None for all; 0 is free of
    others. Layouts that differ only in identities of devices are one, but for those that `asked` depends on."""
    if rows.layout is None:
        yield LayoutNodes(EMPTY, np.arange(len(ids)), np.zeros((len(ids), 0), np.int64))
        return
    numbers = rows.layout[ids]
    clusters = _clusters_of(rows, ids)
    firsts = _first_parts(rows, ids, clusters) if numbers.any() else np.zeros(len(ids), np.int64)
    places: dict[str, NDArray[np.int64]] = {}
    for layout, at in _by_layout(rows, numbers, asked):
        read = _FreeReader(rows, ids[at], firsts[at], clusters, places)
        yield LayoutNodes(layout, at, read.free(layout, classes_of(layout) if classes_of is not None else None))


def _by_layout(
    rows: Rows, numbers: NDArray[np.int32], asked: Sequence[Asked]
) -> Iterator[tuple[Layout, NDArray[np.intp]]]:
    """Yields layouts with the positions of their numbers."""
    layouts = rows.parts.layouts
    common = layouts.common[numbers]
    for number in np.unique(common).tolist():
        at = np.flatnonzero(common == number)
        layout = layouts.found[number] if number else EMPTY
        reading = [one for one in asked if one.reads_identities(layout)]
        if reading:
            own, of = np.unique(numbers[at], return_inverse=True)
            sources = (layouts.sources[each] for each in own.tolist())
            depends = np.array(
                [any(one.depends_on_identities(layout, s) for one in reading) for s in sources], np.bool_
            )
            for place in np.flatnonzero(depends).tolist():
                yield layouts.own(int(own[place])), at[of == place]
            at = at[~depends[of]]
        if len(at):
            yield layout, at


def _clusters_of(rows: Rows, ids: Ids) -> list[int] | None:
    """Returns the clusters of these rows; None if there are many."""
    clusters = np.unique(rows.cluster[ids])
    return clusters.tolist() if len(clusters) <= _MAX_CLUSTERS else None


def _first_parts(rows: Rows, ids: Ids, clusters: list[int] | None) -> NDArray[np.int64]:
    """Returns the row of each node among the parts; 0 for a node without parts."""
    parts = rows.parts
    slices = [slice(0, parts.n)] if clusters is None else [parts.rows_of(cluster) for cluster in clusters]
    own = [here.start + np.flatnonzero(parts.root[here] == np.arange(here.start, here.stop)) for here in slices]
    roots = np.concatenate(own) if own else np.empty(0, np.int64)
    nodes = parts.node[roots]
    there = nodes >= 0
    nodes, roots = nodes[there], roots[there]
    if not len(roots):
        return np.zeros(len(ids), np.int64)
    low = int(nodes.min())
    place = np.zeros(max(int(nodes.max()), int(ids.max())) + 1 - low, np.int64)
    place[nodes - low] = roots
    offsets = ids - low
    found: NDArray[np.int64] = np.where(offsets >= 0, place[np.maximum(offsets, 0)], 0)
    return found


class _FreeReader:
    """Reads what is free of the parts of nodes of one layout. `places` keeps, for each class, the entries by row of part, if
    the nodes are of many clusters."""

    def __init__(
        self,
        rows: Rows,
        ids: Ids,
        firsts: NDArray[np.int64],
        clusters: list[int] | None,
        places: dict[str, NDArray[np.int64]],
    ) -> None:
        self._rows, self._ids, self._firsts, self._clusters, self._places = rows, ids, firsts, clusters, places

    def free(self, layout: Layout, names: Collection[str] | None) -> NDArray[np.int64]:
        free = np.zeros((len(self._ids), len(layout.entries)), np.int64, order="F")  # written and read by column
        consumers = StaticInside.of(layout).consumers
        claimed: dict[int, NDArray[np.int64]] = {}
        read = [i for i, entry in enumerate(layout.entries) if names is None or entry.resource in names]
        takers = {entry for column in read for entry in consumers.get(column, ())}
        for column in sorted(takers.union(read)):
            part, name = layout.entries[column]
            entries = self._rows.parts.classes[name]
            at = self._positions(name, self._firsts + part)
            claimed[column] = entries.claimed[at]
            free[:, column] = entries.capacity[at] - entries.used[at] - claimed[column]
        for column in read:
            for entry, amount in consumers.get(column, {}).items():
                free[:, column] -= claimed[entry] * amount
        for column in read:
            part, name = layout.entries[column]
            if _is_of_node_resource(layout.parts[part], name) and (of_node := self._rows.free(name)) is not None:
                # What others have of it is known of the node alone.
                free[:, column] = np.minimum(free[:, column], np.maximum(of_node[self._ids], 0))
        return free

    def _positions(self, name: str, part_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the entries of rows of parts that all have the class."""
        rows, entries = self._rows, self._rows.parts.classes[name]
        if self._clusters is None:
            place = self._places.get(name)
            if place is None:
                place = self._places[name] = np.zeros(rows.parts.n, np.int64)
                there = np.flatnonzero(entries.row[: entries.n] >= 0)
                place[entries.row[there]] = there
            return place[part_rows]
        if len(self._clusters) == 1:
            return entries.positions(self._clusters[0], part_rows)
        at = np.zeros(len(part_rows), np.int64)
        of = rows.cluster[self._ids]
        for cluster in self._clusters:
            own = of == cluster
            at[own] = entries.positions(cluster, part_rows[own])
        return at


def open_pods_on(rows: Rows, row: int) -> OpenPods:
    """Returns the pods that may still arrive at a node, by what their slots take of its parts."""
    by_node = rows.open_pods.get(int(rows.cluster[row]))
    node = rows.node_name(row) if by_node else ""
    pods = by_node.get(node, {}) if by_node else {}
    return tuple(sorted((tuple((part[len(node) :], takes) for part, takes in parts), n) for parts, n in pods.items()))


def holds_open_pods(rows: Rows, row: int) -> bool:
    """Returns whether the node's kubelet admits all pods that may still arrive, in whatever order they do."""
    opened = open_pods_on(rows, row)
    if not opened:
        return True
    ((layout, _, free),) = nodes_by_layout(rows, np.array([row], np.intp))
    return NodeState.of(layout, tuple(free[0].tolist()), opened).holds_open_pods()


class InnerCounts:
    """Keeps how many pods of a shape nodes hold inside, by their state."""

    def __init__(self) -> None:
        self._known: LruDict[tuple[object, ...], int] = LruDict(65536)

    def pods(self, rows: Rows, asked: Asked, ids: Ids, limit: int) -> NDArray[np.int64]:
        """Returns how many such pods each node holds inside, at most `limit`; where that was not
        found out in time, `limit`."""
        found = np.zeros(len(ids), np.int64)
        if depends_on_cluster(asked.shape):
            for cluster in np.unique(rows.cluster[ids]).tolist():
                at = np.flatnonzero(rows.cluster[ids] == cluster)
                shape = within_cluster(asked.shape, rows.names[cluster])
                found[at] = self.pods(rows, Asked(shape, asked.granted), ids[at], limit)
            return found
        allowed = in_trees(rows, asked.shape, ids)
        there = ids if allowed is None else ids[allowed]
        by_layout = nodes_by_layout(rows, there, lambda layout: asked.units(layout, limit), [asked])
        for layout, at, free in by_layout:
            states = _reduced(layout, free, asked, limit)
            distinct, inverse = unique_rows(states)
            counts = [self._most(layout, tuple(state), asked, limit) for state in states[distinct].tolist()]
            pods = np.array(counts, np.int64)[inverse]
            found[at if allowed is None else np.flatnonzero(allowed)[at]] = pods
        if rows.open_pods and asked.shape.containers:
            self._beside_open_pods(rows, asked, ids, limit, found)
        return found

    def _beside_open_pods(self, rows: Rows, asked: Asked, ids: Ids, limit: int, found: NDArray[np.int64]) -> None:
        """Counts again where pods may still arrive that the kubelet puts into other zones than expected."""
        opened = [rows.row_of(cid, node) for cid, nodes in rows.open_pods.items() for node in nodes]
        there = np.isin(ids, np.array([row for row in opened if row is not None], np.intp))
        for position in np.flatnonzero(there & (found > 0)).tolist():
            here = ids[position : position + 1]
            ((layout, _, free),) = nodes_by_layout(rows, here, asked=[asked])
            state = NodeState.of(layout, tuple(free[0].tolist()), open_pods_on(rows, int(ids[position])))
            try:
                found[position] = state.most(asked, limit)
            except BudgetExceeded:
                found[position] = limit

    def _most(self, layout: Layout, free: tuple[int, ...], asked: Asked, limit: int) -> int:
        key = (asked.key, layout.source, free, limit)
        known = self._known.use(key)
        if known is None:
            try:
                known = NodeState.of(layout, free).most(asked, limit)
            except BudgetExceeded:
                known = limit  # the exact assignment says so
            self._known[key] = known
        return known


def _is_of_node_resource(part: InnerPart, name: str) -> bool:
    """Returns whether the class of a part is devices that the node counts as a resource, too."""
    return part.device >= 0 and name == part.unit[0] and not is_class(name)


def _reduced(layout: Layout, free: NDArray[np.int64], asked: Asked, limit: int) -> NDArray[np.int64]:
    """Returns what is free without what makes no difference: other classes, remainders, and more than all pods take."""
    units = asked.units(layout, limit)
    reduced = np.zeros_like(free)
    for column, (part, name) in enumerate(layout.entries):
        if name not in units:
            continue
        unit, most = units[name]
        if name == ROLE_LOCK:
            capacity = layout.parts[part].inventories[name].capacity
            reduced[:, column] = np.where(fits_beside(capacity - free[:, column], unit), capacity, 0)
        else:
            reduced[:, column] = np.clip(free[:, column] // unit * unit, 0, most)
    return reduced


def in_trees(rows: Rows, shape: Shape, ids: Ids) -> Mask | None:
    """Returns the rows of the nodes that the shape's groups name; None: they name none."""
    named = [group.in_tree for group in shape.groups if group.in_tree and not group.optional]
    if not named:
        return None
    return np.fromiter(
        (all(tree_node(n) == rows.node_name(int(row)) for n in named) for row in ids), np.bool_, len(ids)
    )


def tree_node(part: str) -> str:
    """Returns the node of a part by its id."""
    return part.partition("/")[0]
