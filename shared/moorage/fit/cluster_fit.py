"""Computes which clusters hold all pods of one shape.

Counting is exact for one shape alone: its pods are equal, so they fit if the pods that each node holds add up to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import OptionalNeed, Shape

from .node_filter import admitted, eligible, with_capacity, with_label
from .protocols import Ids, Mask, Rows, Where

#: At most this many optional needs of a shape, the heaviest, are combined; each lighter one is checked by itself.
_MAX_COMBINED = 6
#: The rows of up to this many clusters are looked up one by one; of more, one pass over the table finds them.
_MAX_LOOKUPS = 64


def unsupported_reason(shape: Shape) -> str | None:
    """Says why this version cannot place the shape; None if it can."""
    for name, requested in (
        ("devices", shape.devices),
        ("request groups", shape.request_groups),
        ("a machine", shape.machine),
    ):
        if requested:
            return f"{shape.object} asks for {name}, which is not supported yet"
    return None


class Fit(NamedTuple):
    """`fits`: clusters that hold all `count` pods. `met`: per optional need, those that hold them with this need and the
    heavier ones that are met there. Read-only."""

    fits: Mask
    met: list[Mask]


def add_optional(resources: Mapping[str, int], optional: OptionalNeed) -> dict[str, int]:
    """The amounts of one pod with the optional need granted."""
    total = dict(resources)
    for resource, amount in optional.resources.items():
        total[resource] = total.get(resource, 0) + amount
    return total


def pods_per_row(rows: Rows, resources: Mapping[str, int], count: int, ids: Ids) -> NDArray[np.int64]:
    """How many such pods each of these rows holds, at most `count`."""
    pods = np.full(len(ids), count, np.int64)
    for resource, need in resources.items():
        if need > 0:
            free = rows.free(resource)
            if free is None:
                return np.zeros(len(ids), np.int64)
            np.minimum(pods, free[ids] // need, out=pods)
    return np.maximum(pods, 0, out=pods)


def _rows_per_cluster(rows: Rows, mask: Mask, where: Where) -> NDArray[np.intp]:
    """Counts the rows of `where` in `mask` per cluster."""
    if not isinstance(where, slice):
        return np.bincount(rows.cluster[where[mask]], minlength=rows.size)
    clusters, begins = rows.blocks()
    counts = np.zeros(rows.size, np.intp)
    if len(begins):  # holes are never usable, so never in the mask
        counts[clusters] = np.add.reduceat(mask, begins, dtype=np.intp)
    return counts


def _clusters_with_any(rows: Rows, mask: Mask, where: Where) -> Mask:
    """Clusters with any row of `where` in `mask`."""
    clusters_mask = np.zeros(rows.size, np.bool_)
    if not isinstance(where, slice):
        clusters_mask[rows.cluster[where[mask]]] = True
        return clusters_mask
    clusters, begins = rows.blocks()
    if len(begins):
        clusters_mask[clusters] = np.logical_or.reduceat(mask, begins)
    return clusters_mask


def _clusters_holding(rows: Rows, resources: Mapping[str, int], count: int, mask: Mask, where: Where) -> Mask:
    """Clusters where `count` such pods fit on the rows in `mask`, each of which holds at least one."""
    if count <= 1:
        return _clusters_with_any(rows, mask, where)
    pods = _rows_per_cluster(rows, mask, where)
    fits: Mask = pods >= count
    if ((pods > 0) & ~fits).any():  # divide only where one pod per row is not enough
        ids = mask.nonzero()[0] if isinstance(where, slice) else where[mask]
        ids = ids[~fits[rows.cluster[ids]]]
        sums = np.bincount(rows.cluster[ids], pods_per_row(rows, resources, count, ids), minlength=rows.size)
        fits |= sums >= count
    return fits


def _counted_fit(rows: Rows, shape: Shape, where: Where) -> Fit:
    usable = rows.usable[: rows.n][where]
    if not shape.count:  # scaled to zero: every cluster with a usable node fits
        fits = _clusters_with_any(rows, usable, where)
        return Fit(fits, [fits for _ in shape.optional])
    mask = admitted(rows, shape, with_capacity(rows, shape.resources, usable, where), where)

    def holds(resources: Mapping[str, int], candidates: Mask) -> Mask:
        return _clusters_holding(rows, resources, shape.count, candidates, where)

    fits = holds(shape.resources, mask)
    return Fit(fits, _optional_fit(rows, shape, where, mask, fits, holds))


class _Branch(NamedTuple):
    """Clusters that can be granted the same optional needs, the amounts of one pod with them, and the rows that hold one."""

    resources: Mapping[str, int]
    mask: Mask
    clusters: Mask


def _optional_fit(
    rows: Rows, shape: Shape, where: Where, mask: Mask, fits: Mask, holds: Callable[[Mapping[str, int], Mask], Mask]
) -> list[Mask]:
    """Clusters that meet each optional need, granted as the assignment does: the heaviest first, to all pods, and each
    grant leaves less for the next. `mask`: rows that hold a pod; `holds` returns the clusters whose rows hold all pods."""
    met = [fits] * len(shape.optional)
    mandatory = _Branch(shape.resources, mask, fits)
    branches = [mandatory]
    for rank, i in enumerate(sorted(range(len(met)), key=lambda i: -shape.optional[i].weight)):
        optional = shape.optional[i]
        labelled = with_label(rows, optional.label, where)
        met[i] = np.zeros(rows.size, np.bool_)
        split = []
        for branch in branches if rank < _MAX_COMBINED else [mandatory]:
            candidates = branch.mask if labelled is None else branch.mask & labelled
            resources = add_optional(branch.resources, optional)
            increased = {resource: resources[resource] for resource in optional.resources}
            candidates = with_capacity(rows, increased, candidates, where)
            granted = holds(resources, candidates) & branch.clusters
            met[i] |= granted
            split += [_Branch(resources, candidates, granted), branch._replace(clusters=branch.clusters & ~granted)]
        branches = [branch for branch in split if branch.clusters.any()]
    return met


def _per_node_fit(rows: Rows, shape: Shape, where: Where) -> Fit:
    """The fit of one pod on every matching node: each of them must hold it, and there must be at least one."""
    matching = eligible(rows, shape, where)
    ids = np.flatnonzero(matching)
    if not isinstance(where, slice):
        ids = where[ids]
    clusters = rows.cluster[ids]

    def holds_all(_: Mapping[str, int], candidates: Mask) -> Mask:
        fits = np.zeros(rows.size, np.bool_)
        fits[clusters] = True
        fits[clusters[~candidates]] = False
        return fits

    mask = with_capacity(rows, shape.resources, np.ones(len(ids), np.bool_), ids)
    fits = holds_all(shape.resources, mask)
    return Fit(fits, _optional_fit(rows, shape, ids, mask, fits, holds_all))


def compute_fit(rows: Rows, shape: Shape, where: Where | None = None) -> Fit:
    """Computes the fit of a shape over all rows or over `where`, the rows of some clusters."""
    if unsupported_reason(shape):
        empty = np.zeros(rows.size, np.bool_)
        return Fit(empty, [empty for _ in shape.optional])
    compute = _per_node_fit if shape.per_node else _counted_fit
    return compute(rows, shape, slice(0, rows.n) if where is None else where)


def rows_of_clusters(rows: Rows, clusters: NDArray[np.integer]) -> Ids:
    """The rows of these clusters."""
    if len(clusters) <= _MAX_LOOKUPS:
        parts = [rows.rows_of(int(cluster)) for cluster in clusters]
        return np.concatenate(parts) if parts else np.empty(0, np.intp)
    wanted = np.zeros(rows.size + 1, np.bool_)  # the last entry stands for holes, whose cluster is -1
    wanted[clusters] = True
    return np.flatnonzero(wanted[rows.cluster[: rows.n]])


def changed_clusters(rows: Rows, since: int) -> NDArray[np.int32] | None:
    """Clusters that changed after `since`; None: so many that recomputing everything is cheaper."""
    changed = rows.changed_since(since)
    return None if changed is None or len(changed) > rows.size // 4 + 1 else changed


def _resized(mask: Mask, size: int) -> Mask:
    """A copy of the mask for `size` clusters; new clusters are False."""
    resized = np.zeros(size, np.bool_)
    resized[: min(size, len(mask))] = mask[:size]
    return resized


def merge_changed(old: Mask, part: Mask, clusters: NDArray[np.integer]) -> Mask:
    """The old mask with the values of `part` at these clusters; read-only."""
    mask = _resized(old, len(part))
    mask[clusters] = part[clusters]
    mask.setflags(write=False)
    return mask
