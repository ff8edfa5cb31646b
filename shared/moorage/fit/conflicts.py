"""Finds conflicts: clusters where two sets of pods fit each alone but not together.

A conflict is reported only when proven. The joint assignment on the chosen clusters is the exact answer, so a missed
conflict costs one more attempt there, while a wrong one would exclude a cluster.

A cheap sufficient test and a cheap necessary test run over all clusters first. The clusters that neither decides are
packed in one greedy pass over all of them; where that fails, a few of them are searched exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.collections import LruDict
from moorage.model.shapes import Shape

from .assign import assign
from .cluster_fit import changed_clusters, merge_changed, rows_of_clusters, unsupported_reason
from .cluster_nodes import Unassigned
from .node_filter import eligible
from .protocols import Amounts, Ids, Mask, Rows
from .shared_slots import several_types

#: The exact search runs on at most this many clusters, with this many steps for all of them.
MAX_EXACT_CLUSTERS, MAX_STEPS = 64, 20_000
#: ANDing the terms of several shapes multiplies the number of ORed alternatives; an envelope has at most this many.
MOST_TERMS = 16

_encode = msgspec.json.Encoder().encode


class _JointDemand:
    """The demand of all pods together, and the usable rows of the clusters still undecided with their free amounts."""

    def __init__(self, rows: Rows, shapes: Sequence[Shape], ids: Ids) -> None:
        self.size = rows.size
        self.rows, self.shapes = rows, shapes
        self.clusters: NDArray[np.intp] = rows.cluster[ids].astype(np.intp)
        self.resources = sorted({r for shape in shapes for r, need in shape.resources.items() if need > 0})
        self.free: dict[str, Amounts] = {}
        for resource in self.resources:
            free = rows.free(resource)
            self.free[resource] = np.zeros(len(ids), np.int64) if free is None else free[ids]
        self.feasible = [eligible(rows, shape, ids) for shape in shapes]
        self.groups = [number for number, shape in enumerate(shapes) if not shape.per_node and shape.count > 0]
        self.total = sum(shapes[number].count for number in self.groups)

    def restrict(self, undecided: Mask) -> None:
        """Drops the rows of decided clusters."""
        rows = undecided[self.clusters]
        self.clusters = self.clusters[rows]
        self.free = {resource: free[rows] for resource, free in self.free.items()}
        self.feasible = [able[rows] for able in self.feasible]

    def per_cluster(self, values: Amounts) -> NDArray[np.float64]:
        return np.asarray(np.bincount(self.clusters, values, minlength=self.size), np.float64)

    def place_per_node(self) -> Mask:
        """Subtracts the pods that run on every node, which leave no choice, and returns the clusters where they do not
        fit: conflicts proven."""
        over = np.zeros(self.size, np.bool_)
        for shape, able in zip(self.shapes, self.feasible, strict=True):
            if shape.per_node:
                for resource, need in shape.resources.items():
                    if need > 0:
                        self.free[resource][able] -= need
                        over[self.clusters[able & (self.free[resource] < 0)]] = True
        return over

    def _pods(self, needs: dict[str, int], able: Mask, count: int) -> Amounts:
        """Returns how many pods with these needs each row holds, at most `count`."""
        pods = np.where(able, count, 0).astype(np.int64)
        for resource, need in needs.items():
            if need > 0:
                np.minimum(pods, self.free[resource] // need, out=pods)
        return np.maximum(pods, 0, out=pods)

    def certainly_fit(self) -> Mask:
        """Returns, by a sufficient test, the clusters that hold all pods even if each needed the largest amount of every
        resource."""
        needs = {r: max(self.shapes[g].resources.get(r, 0) for g in self.groups) for r in self.resources}
        able = np.logical_and.reduce([self.feasible[g] for g in self.groups])
        return self.per_cluster(self._pods(needs, able, self.total)) >= self.total

    def cannot_fit(self) -> Mask:
        """Returns, by a necessary test, the clusters where the sum of a resource is below the demand, or that do not hold
        all pods even if each needed the smallest amount of every resource."""
        feasible = np.logical_or.reduce([self.feasible[g] for g in self.groups])
        demands = [(self.shapes[g].resources, self.shapes[g].count) for g in self.groups]
        short = np.zeros(self.size, np.bool_)
        max_rows = np.bincount(self.clusters, minlength=1).max(initial=1)
        for resource in self.resources:
            total = sum(needs.get(resource, 0) * count for needs, count in demands)
            # bincount sums in floating point, which is exact below 2**53; larger sums prove nothing.
            if 0 < total * max_rows < 1 << 53:
                usable = np.where(feasible, np.clip(self.free[resource], 0, total), 0)
                short |= self.per_cluster(usable) < total
        smallest = {r: min(needs.get(r, 0) for needs, _ in demands) for r in self.resources}
        return short | (self.per_cluster(self._pods(smallest, feasible, self.total)) < self.total)

    def fit_greedily(self) -> Mask:
        """Returns the clusters where one best-fit-decreasing pass places all pods. All clusters are packed at once: rows
        are sorted by cluster, and running sums start again at each cluster."""
        placed = np.ones(self.size, np.bool_)
        largest = {resource: max(1, int(free.max(initial=1))) for resource, free in self.free.items()}
        shares = {
            g: max((n / largest[r] for r, n in self.shapes[g].resources.items() if n > 0), default=0)
            for g in self.groups
        }
        for group in sorted(self.groups, key=lambda g: -shares[g]):
            needs, count = self.shapes[group].resources, self.shapes[group].count
            pods = self._pods(needs, self.feasible[group], count)
            order = np.lexsort((pods, self.clusters))
            sorted_pods, clusters = pods[order], self.clusters[order]
            before = np.cumsum(sorted_pods) - sorted_pods
            first = np.flatnonzero(np.r_[True, clusters[1:] != clusters[:-1]])
            before -= np.repeat(before[first], np.diff(np.r_[first, len(clusters)]))
            taken = np.empty_like(pods)
            taken[order] = np.clip(count - before, 0, sorted_pods)
            for resource, need in needs.items():
                if need > 0:
                    self.free[resource] -= taken * need
            placed &= self.per_cluster(taken) >= count
        return placed


def conflicts(rows: Rows, a: Sequence[Shape], b: Sequence[Shape], both: Mask, *, steps: int = MAX_STEPS) -> Mask:
    """Returns the clusters of `both` where the pods of `a` and `b` are proven not to fit together."""
    proven = np.zeros(rows.size, np.bool_)
    shapes = [*a, *b]
    undecided = both[: rows.size].copy()
    if not undecided.any() or not shapes or any(unsupported_reason(shape) for shape in shapes):
        return proven
    ids = rows_of_clusters(rows, np.flatnonzero(undecided))
    joint = _JointDemand(rows, shapes, ids[rows.usable[ids]])
    proven |= joint.place_per_node() & undecided
    undecided &= ~proven
    if not joint.groups:
        return proven
    in_shared_slots = several_types(shapes)  # of which what is free of each type does not tell what fits together
    if not in_shared_slots:
        undecided &= ~joint.certainly_fit()
    if undecided.any():
        joint.restrict(undecided)
        proven |= joint.cannot_fit() & undecided
        undecided &= ~proven
    if undecided.any():
        joint.restrict(undecided)
        if not in_shared_slots:
            undecided &= ~joint.fit_greedily()
        # For few pods the search is complete whatever its bound, so more clusters are searched then.
        limit = MAX_EXACT_CLUSTERS if joint.total <= 4 else MAX_EXACT_CLUSTERS // 4
        mandatory = [_without_optional(shape) for shape in shapes]
        for cluster in np.flatnonzero(undecided)[:limit].tolist():
            result = assign(rows, rows.rows_of(cluster), mandatory, steps=steps // MAX_EXACT_CLUSTERS)
            # A search that was cut off proves nothing.
            proven[cluster] = isinstance(result, Unassigned) and result.code != "SearchBound"
    return proven


def envelope(shapes: Sequence[Shape]) -> Shape | None:
    """Returns a shape at least as hard to place as each of these, with as many pods as all have: where it fits, they fit
    together. None where one shape cannot express that. Its needs are rounded up, so that new shapes mostly share an
    envelope whose fit is cached."""
    pods = [shape for shape in shapes if shape.per_node or shape.count]
    if any(shape.per_node or shape.rules or unsupported_reason(shape) for shape in pods) or not pods:
        return None
    if several_types(pods):
        return None
    alternatives = [{tuple(term) for term in shape.terms} for shape in pods if shape.terms]
    distinct = list({frozenset(terms): terms for terms in alternatives}.values())
    if prod(map(len, distinct)) > MOST_TERMS:
        return None
    resources: dict[str, int] = {}
    for shape in pods:
        for resource, need in shape.resources.items():
            resources[resource] = max(need, resources.get(resource, 0))
    resources = {resource: _rounded(resources[resource]) for resource in sorted(resources)}
    count = sum(shape.count for shape in pods)
    terms = [[r for term in chosen for r in term] for chosen in product(*distinct)] if distinct else []
    tolerations = [t for t in pods[0].tolerations if all(t in shape.tolerations for shape in pods)]
    return Shape(
        key=_encode(("envelope", count, resources, terms, tolerations)).decode(),
        object="",
        count=count,
        resources=resources,
        terms=terms,
        tolerations=tolerations,
    )


def _rounded(need: int) -> int:
    """Rounds up to three significant bits."""
    bits = max(0, need.bit_length() - 3)
    return -(-need >> bits) << bits


def _without_optional(shape: Shape) -> Shape:
    """Returns the shape with its mandatory needs only: an optional need never causes a conflict."""
    return msgspec.structs.replace(shape, optional=[]) if shape.optional else shape


class ConflictCache:
    """Caches conflicts by the keys of both sets of shapes and recomputes only changed clusters, like `FitCache`."""

    def __init__(self, rows: Rows, max_entries: int = 512) -> None:
        self._rows = rows
        self._entries = LruDict[tuple[tuple[str, ...], tuple[str, ...]], tuple[int, Mask]](max_entries)

    def get(self, a: Sequence[Shape], b: Sequence[Shape], both: Mask) -> Mask:
        """Returns the conflicts of `a` and `b` as a read-only mask. `both` is derived from the same rows: the clusters where
        each fits alone, less those where all certainly fit together."""
        rows, tick = self._rows, self._rows.tick
        key = tuple(shape.key for shape in a), tuple(shape.key for shape in b)
        cached = self._entries.use(key)
        if cached is not None and cached[0] == tick and len(cached[1]) == rows.size:
            return cached[1]
        changed = None if cached is None else changed_clusters(rows, cached[0])
        if cached is None or changed is None:
            mask = conflicts(rows, a, b, both)
            mask.setflags(write=False)
        else:
            subset = np.zeros(rows.size, np.bool_)
            subset[changed] = both[changed]
            mask = merge_changed(cached[1], conflicts(rows, a, b, subset), changed)
        self._entries[key] = tick, mask
        return mask
