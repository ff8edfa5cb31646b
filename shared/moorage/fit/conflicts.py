"""Clusters where two lots of pods fit each alone but not together. Only what is proven counts: the joint assignment on
the chosen clusters is the exact answer, so a conflict that is not seen costs a try and one that is not there a cluster.

Cheap tests over all clusters first, sufficient ones and necessary ones; what neither settles is packed in one greedy pass
over all such clusters; only where that fails, and only on a few, exactly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import product
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import Shape

from .assign import Unassigned, assign
from .fit_cache import few_changed, renewed, rows_in, unsupported_reason
from .node_filter import eligible
from .protocols import Amounts, Ids, Mask, Rows

#: The exact search is tried on so many clusters, with so many steps together.
EXACT, STEPS = 64, 20_000
#: Terms that are ORed multiply when several shapes' are joined.
MOST_TERMS = 16

_encode = msgspec.json.Encoder().encode


class _Joint:
    """The rows of the clusters in question, what is free there, and what all pods together ask for."""

    def __init__(self, rows: Rows, shapes: Sequence[Shape], ids: Ids) -> None:
        self.size = rows.size
        self.rows, self.shapes = rows, shapes
        self.clusters: NDArray[np.intp] = rows.cluster[ids].astype(np.intp)
        self.resources = sorted({r for shape in shapes for r, need in shape.resources.items() if need > 0})
        self.free: dict[str, Amounts] = {}
        for resource in self.resources:
            free = rows.free(resource)
            self.free[resource] = np.zeros(len(ids), np.int64) if free is None else free[ids]
        self.able = [eligible(rows, shape, ids) for shape in shapes]
        self.groups = [number for number, shape in enumerate(shapes) if not shape.per_node and shape.count > 0]
        self.total = sum(shapes[number].count for number in self.groups)

    def narrowed(self, keep: Mask) -> None:
        """Forget the rows of settled clusters."""
        rows = keep[self.clusters]
        self.clusters = self.clusters[rows]
        self.free = {resource: free[rows] for resource, free in self.free.items()}
        self.able = [able[rows] for able in self.able]

    def per_cluster(self, values: Amounts) -> NDArray[np.float64]:
        return np.asarray(np.bincount(self.clusters, values, minlength=self.size), np.float64)

    def take_per_node(self) -> Mask:
        """Pods that run on every node have no choice: take theirs. Clusters where that cannot be are proven."""
        over = np.zeros(self.size, np.bool_)
        for shape, able in zip(self.shapes, self.able, strict=True):
            if shape.per_node:
                for resource, need in shape.resources.items():
                    if need > 0:
                        self.free[resource][able] -= need
                        over[self.clusters[able & (self.free[resource] < 0)]] = True
        return over

    def _pods(self, needs: dict[str, int], able: Mask, count: int) -> Amounts:
        """How many pods with these needs each row takes, at most `count`."""
        pods = np.where(able, count, 0).astype(np.int64)
        for resource, need in needs.items():
            if need > 0:
                np.minimum(pods, self.free[resource] // need, out=pods)
        return np.maximum(pods, 0, out=pods)

    def certainly_fit(self) -> Mask:
        """Clusters with room for so many pods as there are, were each as large as the largest in every resource."""
        needs = {r: max(self.shapes[g].resources.get(r, 0) for g in self.groups) for r in self.resources}
        able = np.logical_and.reduce([self.able[g] for g in self.groups])
        return self.per_cluster(self._pods(needs, able, self.total)) >= self.total

    def cannot_fit(self) -> Mask:
        """Clusters where sums do not suffice, or not so many pods, were each as small as the smallest in everything."""
        able = np.logical_or.reduce([self.able[g] for g in self.groups])
        lots = [(self.shapes[g].resources, self.shapes[g].count) for g in self.groups]
        short = np.zeros(self.size, np.bool_)
        most = np.bincount(self.clusters, minlength=1).max(initial=1)
        for resource in self.resources:
            wanted = sum(needs.get(resource, 0) * count for needs, count in lots)
            # Sums are in floating point, exact up to here; larger ones prove nothing.
            if 0 < wanted * most < 1 << 53:
                useful = np.where(able, np.clip(self.free[resource], 0, wanted), 0)
                short |= self.per_cluster(useful) < wanted
        least = {r: min(needs.get(r, 0) for needs, _ in lots) for r in self.resources}
        return short | (self.per_cluster(self._pods(least, able, self.total)) < self.total)

    def fit_greedily(self) -> Mask:
        """Clusters where one pass of best fit decreasing places everything: all at once, rows sorted by cluster."""
        placed = np.ones(self.size, np.bool_)
        top = {resource: max(1, int(free.max(initial=1))) for resource, free in self.free.items()}
        shares = {
            g: max((n / top[r] for r, n in self.shapes[g].resources.items() if n > 0), default=0) for g in self.groups
        }
        for group in sorted(self.groups, key=lambda g: -shares[g]):
            needs, count = self.shapes[group].resources, self.shapes[group].count
            pods = self._pods(needs, self.able[group], count)
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


def conflicts(rows: Rows, a: Sequence[Shape], b: Sequence[Shape], both: Mask, *, steps: int = STEPS) -> Mask:
    """Those of `both` where it is proven that the pods of `a` and `b` do not fit together."""
    proven = np.zeros(rows.size, np.bool_)
    shapes = [*a, *b]
    open_ = both[: rows.size].copy()
    if not open_.any() or not shapes or any(unsupported_reason(shape) for shape in shapes):
        return proven
    ids = rows_in(rows, np.flatnonzero(open_))
    joint = _Joint(rows, shapes, ids[rows.usable[ids]])
    over = joint.take_per_node() & open_
    proven |= over
    open_ &= ~over
    if not joint.groups:
        return proven
    open_ &= ~joint.certainly_fit()
    if open_.any():
        joint.narrowed(open_)
        never = joint.cannot_fit() & open_
        proven |= never
        open_ &= ~never
    if open_.any():
        joint.narrowed(open_)
        open_ &= ~joint.fit_greedily()
        # The search is complete for few pods whatever its bound, so more of them are looked at.
        unsure = np.flatnonzero(open_)[: EXACT if joint.total <= 4 else EXACT // 4]
        for cluster in unsure.tolist():
            found = assign(rows, rows.rows_of(cluster), [_bare(shape) for shape in shapes], steps=steps // EXACT)
            # A search that was cut off proves nothing.
            proven[cluster] = isinstance(found, Unassigned) and found.code != "SearchBound"
    return proven


def envelope(shapes: Sequence[Shape]) -> Shape | None:
    """A shape that is no easier to place than any of these, with as many pods as all have together: where it has room,
    they have, together. None where that cannot be said in one shape. Its needs are rounded up, so that shapes never seen
    before mostly have an envelope whose room is known."""
    pods = [shape for shape in shapes if shape.per_node or shape.count]
    if any(shape.per_node or unsupported_reason(shape) for shape in pods) or not pods:
        return None
    choices = [{tuple(term) for term in shape.terms} for shape in pods if shape.terms]
    distinct = list({frozenset(one): one for one in choices}.values())
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
    """Up to three significant bits."""
    bits = max(0, need.bit_length() - 3)
    return -(-need >> bits) << bits


def _bare(shape: Shape) -> Shape:
    """Optional needs exclude nothing."""
    if not shape.optional:
        return shape
    return Shape(
        key=shape.key,
        object=shape.object,
        count=shape.count,
        per_node=shape.per_node,
        resources=shape.resources,
        terms=shape.terms,
        tolerations=shape.tolerations,
    )


class ConflictCache:
    """Conflicts by the keys of both lots, renewed only for clusters that changed; like `Rooms`."""

    def __init__(self, rows: Rows, keep: int = 512) -> None:
        self._rows = rows
        self._keep = keep
        self._kept: OrderedDict[tuple[tuple[str, ...], tuple[str, ...]], tuple[int, Mask]] = OrderedDict()

    def get(self, a: Sequence[Shape], b: Sequence[Shape], both: Mask) -> Mask:
        """`both` follows from the same rows: where each fits alone, less where all surely fit together. Read only."""
        rows, tick = self._rows, self._rows.tick
        key = tuple(shape.key for shape in a), tuple(shape.key for shape in b)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == tick and len(kept[1]) == rows.size:
            self._kept.move_to_end(key)
            return kept[1]
        changed = None if kept is None else few_changed(rows, kept[0])
        if kept is None or changed is None:
            mask = conflicts(rows, a, b, both)
            mask.setflags(write=False)
        else:
            again = np.zeros(rows.size, np.bool_)
            again[changed] = both[changed]
            mask = renewed(kept[1], conflicts(rows, a, b, again), changed)
        self._kept[key] = tick, mask
        self._kept.move_to_end(key)
        if len(self._kept) > self._keep:
            self._kept.popitem(last=False)
        return mask
