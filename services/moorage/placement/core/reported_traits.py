"""Numbers the traits and aggregates of a cluster's nodes and parts, by the row of its block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet
from moorage.parts import Forest
from moorage.parts.class_columns import ClassRows, Rows

from .reported_names import DISABLED, aggregate_of, cluster_aggregate, cpu_traits, node_traits, trait_of
from .reported_rows import ClusterNodes, ClusterTrees

_ADDED = b'"added":'


class RowNames(NamedTuple):
    """By row, the numbers of the traits and of the aggregates of a cluster's nodes and parts, and what these follow from."""

    source: tuple[list[str], bytes, bytes, bytes, bytes]
    traits: NDArray[np.int32]
    aggregates: NDArray[np.int32]


class ReportedTraits:
    def __init__(self, fleet: Fleet, forest: Forest, known: set[str]) -> None:
        """`known` gets the names of all traits that are given."""
        self._fleet, self._forest, self._known = fleet, forest, known
        self._with_additions: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._numbers: dict[int, int] = {}
        self._names: dict[int, RowNames] = {}

    def forget(self, cid: int) -> None:
        self._names.pop(cid, None)

    def names(
        self, nodes: ClusterNodes, trees: ClusterTrees, cpus: ClassRows | None, disabled: NDArray[np.bool_]
    ) -> RowNames:
        """Returns the traits and aggregates of the rows. Most changes are of what is free, so they are made only if what they
        follow from is another."""
        labels, offering = self._fleet.labelset[nodes.rows], b"" if cpus is None else cpus.row.tobytes()
        source = trees.ids, nodes.layouts.tobytes(), labels.tobytes(), disabled.tobytes(), offering
        before = self._names.get(nodes.cid)
        if before is None or before.source != source:
            before = RowNames(source, self._traits(nodes, cpus, disabled), self._aggregates(nodes))
            self._names[nodes.cid] = before
        return before

    def _own(self, nodes: ClusterNodes, kind: str) -> Rows:
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

    def _traits(self, nodes: ClusterNodes, cpus: ClassRows | None, disabled: NDArray[np.bool_]) -> NDArray[np.int32]:
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
        found = self._numbers.get(key)
        if found is None:
            labels, own, flags = self._fleet.label_sets[key >> 32], (key & 0xFFFFFFFF) >> 3, key & 7
            names = {trait_of(name) for name in self._fleet.parts.traits.sets[own]}
            names |= cpu_traits(labels) if flags & 1 else set()
            names |= node_traits(labels) if flags & 2 else set()
            names |= {DISABLED} if flags & 4 else set()
            self._known |= names
            found = self._numbers[key] = self._forest.traits.number(names)
        return found

    def _aggregates(self, nodes: ClusterNodes) -> NDArray[np.int32]:
        cluster = self._fleet.names[nodes.cid]
        own = self._own(nodes, "aggregates") * 2 + (nodes.place == 0)
        keys, rows = np.unique(own, return_inverse=True)
        numbers: list[int] = []
        for key in keys.tolist():
            names = {aggregate_of(cluster, name) for name in self._fleet.parts.aggregates.sets[key >> 1]}
            numbers.append(self._forest.aggregates.number(names | ({cluster_aggregate(cluster)} if key & 1 else set())))
        return np.array(numbers, np.int32)[rows.reshape(-1)]
