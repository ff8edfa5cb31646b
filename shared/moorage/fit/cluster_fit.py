"""Computes which clusters hold all pods of one shape.

Counting is exact for one shape alone: its pods are equal, so they fit if the pods that each node holds add up to them. So
are its own rules about its pods, one by one; several together are only necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import OptionalNeed, Shape

from .asked_parts import Asked, asks_parts
from .budget import BudgetExceeded
from .inner_nodes import InnerGroups, InnerNodes
from .inner_rows import InnerCounts
from .node_filter import admitted, eligible, with_capacity, with_label
from .node_state import STEPS
from .packing import PackingProblem, pack
from .protocols import Ids, Mask, Rows, Where
from .rule_limits import own_rules, within_rules

#: At most this many optional needs, the heaviest, are granted in the best combination. Lighter ones are granted the heaviest
#: first, and count for a score only where all heavier ones are granted.
MAX_COMBINED = 6
#: The rows of up to this many clusters are looked up one by one; of more, one pass over the table finds them.
_MAX_LOOKUPS = 64
_inner = InnerCounts()


def unsupported_reason(shape: Shape) -> str | None:
    """Returns why this version cannot place the shape; None if it can."""
    return f"{shape.object} asks for devices, which is not supported yet" if shape.devices else None


class Fit(NamedTuple):
    """`fits`: clusters that hold all `count` pods. `grants`: per cluster, bit n is set where they have room with the subset n of
    the heaviest optional needs granted; bit 0 of a subset is the heaviest need. `further`: per cluster, how many lighter
    needs it can be granted beside all of these. Read-only.

    What is added to a cluster adds subsets and removes none."""

    fits: Mask
    grants: NDArray[np.uint64]
    further: NDArray[np.uint8]

    def granted(self, subset: int, further: int = 0) -> Mask:
        """Returns the clusters that can be granted this subset, and so many further needs."""
        if not subset and not further:
            return self.fits
        mask: Mask = (self.grants >> np.uint64(subset)) & np.uint64(1) > 0
        return mask & (self.further >= further) if further else mask


def add_optional(resources: Mapping[str, int], optional: OptionalNeed) -> dict[str, int]:
    """Returns the amounts of one pod with the optional need granted."""
    total = dict(resources)
    for resource, amount in optional.resources.items():
        total[resource] = total.get(resource, 0) + amount
    return total


def pods_per_row(rows: Rows, resources: Mapping[str, int], count: int, ids: Ids) -> NDArray[np.int64]:
    """Returns how many such pods each of these rows holds, at most `count`."""
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
    """Returns the clusters with any row of `where` in `mask`."""
    clusters_mask = np.zeros(rows.size, np.bool_)
    if not isinstance(where, slice):
        clusters_mask[rows.cluster[where[mask]]] = True
        return clusters_mask
    clusters, begins = rows.blocks()
    if len(begins):
        clusters_mask[clusters] = np.logical_or.reduceat(mask, begins)
    return clusters_mask


def _clusters_holding(rows: Rows, resources: Mapping[str, int], count: int, mask: Mask, where: Where) -> Mask:
    """Returns the clusters where `count` such pods fit on the rows in `mask`, each of which holds at least one."""
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
        combined = min(len(shape.optional), MAX_COMBINED)
        further = fits.astype(np.uint8) * (len(shape.optional) - combined)
        return Fit(fits, np.where(fits, _every_subset(combined), np.uint64(0)), further.astype(np.uint8))
    mask = admitted(rows, shape, with_capacity(rows, shape.resources, usable, where), where)

    inside = asks_parts(shape, rows)
    ids = np.arange(rows.n)[where] if own_rules(shape) or inside else None

    def holds(branch: _Branch) -> Mask:
        if ids is None:
            return _clusters_holding(rows, branch.resources, shape.count, branch.mask, where)
        pods = np.where(branch.mask, pods_per_row(rows, branch.resources, shape.count, ids), 0)
        if inside:
            pods = pods_inside(rows, shape, branch.granted, ids, pods)
        holding = pods > 0  # holes have no cluster
        fits: Mask = np.bincount(rows.cluster[ids[holding]], pods[holding], minlength=rows.size) >= shape.count
        if inside and shape.count > 1:
            _settle_common_parts(rows, shape, branch, ids, pods, fits)
        if own_rules(shape):
            fits &= within_rules(rows, shape, ids, pods, shape.count)
        return fits

    nowhere = np.zeros(rows.size, np.bool_)
    fits = holds(_Branch(shape.resources, mask, nowhere))
    return _optional_fit(rows, shape, where, mask, fits, holds)


def _settle_common_parts(
    rows: Rows, shape: Shape, branch: _Branch, ids: Ids, pods: NDArray[np.int64], fits: Mask
) -> None:
    """Takes out of `fits` the clusters whose nodes hold the pods each for itself but not together, because they reach the same
    parts."""
    sharing = rows.parts.sharing_clusters if rows.parts.n else ()
    if not len(sharing):
        return
    order = np.argsort(rows.cluster[ids], kind="stable")
    of_order = rows.cluster[ids[order]]
    for cluster in (cluster for cluster in sharing if fits[cluster]):
        at = order[slice(*np.searchsorted(of_order, (cluster, cluster + 1)))]
        at = at[pods[at] > 0]
        nodes = InnerNodes(rows, ids[at], [shape])
        if not nodes.in_common:
            continue
        problem = PackingProblem(
            free=pods[at, None],
            needs=np.ones((1, 1), np.int64),
            counts=[shape.count],
            feasible=np.ones((1, len(at)), np.bool_),
            inner=InnerGroups(nodes, [0], np.zeros((1, len(at)), np.int64), [branch.granted]),
        )
        try:
            fits[cluster] = not isinstance(pack(problem, STEPS), int)
        except BudgetExceeded:
            continue  # the exact assignment says so


class _Branch(NamedTuple):
    """Clusters that can be granted some optional needs, the amounts of one pod with them, and the rows that hold one."""

    resources: Mapping[str, int]
    mask: Mask
    clusters: Mask
    granted: tuple[int, ...] = ()


def pods_inside(
    rows: Rows, shape: Shape, granted: Sequence[int], ids: Ids, pods: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns how many of these pods each row holds inside, too."""
    holding = np.flatnonzero(pods)
    most = pods.copy()
    asked = Asked(shape, granted)
    most[holding] = np.minimum(pods[holding], _inner.pods(rows, asked, ids[holding], max(1, shape.count)))
    return most


def by_weight(shape: Shape) -> list[int]:
    """Returns the indexes of the optional needs, the heaviest first."""
    return sorted(range(len(shape.optional)), key=lambda i: -shape.optional[i].weight)


def _optional_fit(
    rows: Rows, shape: Shape, where: Where, mask: Mask, fits: Mask, holds: Callable[[_Branch], Mask]
) -> Fit:
    """Returns which combinations of optional needs the clusters can be granted. `mask`: rows that hold a pod; `holds` returns
    the clusters whose rows hold all pods."""
    grants, further = fits.astype(np.uint64), np.zeros(rows.size, np.uint8)
    if not shape.optional:
        return Fit(fits, grants, further)
    order = by_weight(shape)
    combined = order[:MAX_COMBINED]

    def extend(branch: _Branch, i: int) -> _Branch:
        optional = shape.optional[i]
        labelled = with_label(rows, optional.label, where)
        candidates = branch.mask if labelled is None else branch.mask & labelled
        resources = add_optional(branch.resources, optional)
        increased = {resource: resources[resource] for resource in optional.resources}
        candidates = with_capacity(rows, increased, candidates, where)
        wider = _Branch(resources, candidates, branch.clusters, (*branch.granted, i))
        return wider._replace(clusters=branch.clusters & holds(wider)) if branch.clusters.any() else wider

    def search(branch: _Branch, subset: int, first: int) -> None:
        for rank in range(first, len(combined)):
            wider, bit = extend(branch, combined[rank]), subset | 1 << rank
            if wider.clusters.any():
                grants[wider.clusters] |= np.uint64(1 << bit)
                search(wider, bit, rank + 1)

    mandatory = everything = _Branch(shape.resources, mask, fits)
    for i in combined:
        everything = extend(everything, i)
    grants[everything.clusters] = _every_subset(len(combined))
    # Most clusters are granted everything; the others are searched, unless everything is one need.
    rest = fits & ~everything.clusters
    if len(combined) > 1 and rest.any():
        search(mandatory._replace(clusters=rest), 0, 0)
    for i in order[MAX_COMBINED:]:
        everything = extend(everything, i)
        further += everything.clusters
    return Fit(fits, grants, further)


def _every_subset(needs: int) -> np.uint64:
    return np.uint64((1 << (1 << needs)) - 1)


def _per_node_fit(rows: Rows, shape: Shape, where: Where) -> Fit:
    """Returns the fit of one pod on every matching node: each of them must hold it, and there must be at least one."""
    matching = eligible(rows, shape, where)
    ids = np.flatnonzero(matching)
    if not isinstance(where, slice):
        ids = where[ids]
    clusters = rows.cluster[ids]

    def holds_all(branch: _Branch) -> Mask:
        fits = np.zeros(rows.size, np.bool_)
        fits[clusters] = True
        fits[clusters[~branch.mask]] = False
        if asks_parts(shape, rows):
            pods = pods_inside(rows, shape, branch.granted, ids, branch.mask.astype(np.int64))
            fits[clusters[pods == 0]] = False
        return fits

    mask = with_capacity(rows, shape.resources, np.ones(len(ids), np.bool_), ids)
    fits = holds_all(_Branch(shape.resources, mask, np.zeros(rows.size, np.bool_)))
    if own_rules(shape):
        wanted = np.bincount(clusters, minlength=rows.size)
        fits &= within_rules(rows, shape, np.arange(rows.n)[where], matching.astype(np.int64), wanted)
    return _optional_fit(rows, shape, ids, mask, fits, holds_all)


def compute_fit(rows: Rows, shape: Shape, where: Where | None = None) -> Fit:
    """Computes the fit of a shape over all rows or over `where`, the rows of some clusters."""
    if unsupported_reason(shape):
        empty = np.zeros(rows.size, np.bool_)
        return Fit(empty, np.zeros(rows.size, np.uint64), np.zeros(rows.size, np.uint8))
    compute = _per_node_fit if shape.per_node else _counted_fit
    return compute(rows, shape, slice(0, rows.n) if where is None else where)


def rows_of_clusters(rows: Rows, clusters: NDArray[np.integer]) -> Ids:
    """Returns the rows of these clusters."""
    if len(clusters) <= _MAX_LOOKUPS:
        parts = [rows.rows_of(int(cluster)) for cluster in clusters]
        return np.concatenate(parts) if parts else np.empty(0, np.intp)
    wanted = np.zeros(rows.size + 1, np.bool_)  # the last entry stands for holes, whose cluster is -1
    wanted[clusters] = True
    return np.flatnonzero(wanted[rows.cluster[: rows.n]])


def changed_clusters(rows: Rows, since: int) -> NDArray[np.int32] | None:
    """Returns the clusters that changed after `since`; None: so many that recomputing everything is cheaper."""
    changed = rows.changed_since(since)
    return None if changed is None or len(changed) > rows.size // 4 + 1 else changed


_Column = TypeVar("_Column", bound=np.generic)


def _resized(column: NDArray[_Column], size: int) -> NDArray[_Column]:
    """Returns a copy of the column for `size` clusters; new clusters are False or 0."""
    resized = np.zeros(size, column.dtype)
    resized[: min(size, len(column))] = column[:size]
    return resized


def merged_fit(old: Fit, part: Fit, clusters: NDArray[np.integer]) -> Fit:
    """Returns the old fit with the values of `part` at these clusters; the same fit if none differs."""
    # Where the grants are the same, so are the fits: these are bit 0 of the grants.
    if len(old.fits) == len(part.fits) and all(
        a[clusters].tobytes() == b[clusters].tobytes()
        for a, b in ((old.grants, part.grants), (old.further, part.further))
    ):
        return old
    return Fit(
        merge_changed(old.fits, part.fits, clusters),
        merge_changed(old.grants, part.grants, clusters),
        merge_changed(old.further, part.further, clusters),
    )


def merge_changed(old: NDArray[_Column], part: NDArray[_Column], clusters: NDArray[np.integer]) -> NDArray[_Column]:
    """Returns the old column with the values of `part` at these clusters; read-only. The same array, if none differs."""
    if len(old) == len(part) and (old[clusters] == part[clusters]).all():
        return old
    column = _resized(old, len(part))
    column[clusters] = part[clusters]
    column.setflags(write=False)
    return column
