"""Where a shape has room, per cluster, kept per shape and renewed only for clusters that changed: most decisions never
touch the node table.

Counting is exact for one shape alone: its pods are equal, so a cluster has room if its nodes' pods-that-fit add up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import OptionalNeed, Shape

from .node_filter import admitted, eligible, with_capacity, with_label
from .protocols import Ids, Mask, Rows, Where

#: So many optional needs of a shape are looked at together, the heaviest; what is lighter is looked at by itself.
_TOGETHER = 6
#: Up to this many changed clusters are looked at one by one; beyond, one pass over the table finds their rows.
_FEW = 64


def unsupported_reason(shape: Shape) -> str | None:
    """Why nothing can decide about this shape yet."""
    for name, asked in (
        ("devices", shape.devices),
        ("request groups", shape.request_groups),
        ("a machine", shape.machine),
    ):
        if asked:
            return f"{shape.object} asks for {name}, which nothing here can decide yet"
    return None


class Fit(NamedTuple):
    """`fits`: all `count` pods have room by counting; `met`: the same with an optional need each, beside the heavier ones
    that are met there. Read only."""

    fits: Mask
    met: list[Mask]


class _Kept(NamedTuple):
    tick: int
    room: Fit


def with_optional(resources: Mapping[str, int], optional: OptionalNeed) -> dict[str, int]:
    total = dict(resources)
    for resource, amount in optional.resources.items():
        total[resource] = total.get(resource, 0) + amount
    return total


def per_row(rows: Rows, resources: Mapping[str, int], count: int, ids: Ids) -> NDArray[np.int64]:
    """How many such pods each of these rows has room for, at most `count`."""
    pods = np.full(len(ids), count, np.int64)
    for resource, need in resources.items():
        if need > 0:
            free = rows.free(resource)
            if free is None:
                return np.zeros(len(ids), np.int64)
            np.minimum(pods, free[ids] // need, out=pods)
    return np.maximum(pods, 0, out=pods)


def _pods(rows: Rows, mask: Mask, where: Where) -> NDArray[np.intp]:
    """Per cluster, how many rows of `where` are in `mask`."""
    if not isinstance(where, slice):
        return np.bincount(rows.cluster[where[mask]], minlength=rows.size)
    clusters, begins = rows.blocks()
    pods = np.zeros(rows.size, np.intp)
    if len(begins):  # holes are never usable, so never in the mask
        pods[clusters] = np.add.reduceat(mask, begins, dtype=np.intp)
    return pods


def _any(rows: Rows, mask: Mask, where: Where) -> Mask:
    """Clusters of which any row of `where` is in `mask`."""
    some = np.zeros(rows.size, np.bool_)
    if not isinstance(where, slice):
        some[rows.cluster[where[mask]]] = True
        return some
    clusters, begins = rows.blocks()
    if len(begins):
        some[clusters] = np.logical_or.reduceat(mask, begins)
    return some


def _holding(rows: Rows, resources: Mapping[str, int], count: int, mask: Mask, where: Where) -> Mask:
    """Clusters where `count` such pods fit on the rows in `mask`, which have room for one each."""
    if count <= 1:
        return _any(rows, mask, where)
    pods = _pods(rows, mask, where)
    fits: Mask = pods >= count
    if ((pods > 0) & ~fits).any():  # division only where one pod per row is not enough
        ids = mask.nonzero()[0] if isinstance(where, slice) else where[mask]
        ids = ids[~fits[rows.cluster[ids]]]
        sums = np.bincount(rows.cluster[ids], per_row(rows, resources, count, ids), minlength=rows.size)
        fits |= sums >= count
    return fits


def _plain(rows: Rows, shape: Shape, where: Where) -> Fit:
    usable = rows.usable[: rows.n][where]
    if not shape.count:  # scaled to nothing: every cluster with a usable node will do
        fits = _any(rows, usable, where)
        return Fit(fits, [fits for _ in shape.optional])
    mask = with_capacity(rows, shape.resources, usable.copy(), where)
    mask = admitted(rows, shape, mask, where)

    def holds(resources: Mapping[str, int], some: Mask) -> Mask:
        return _holding(rows, resources, shape.count, some, where)

    fits = holds(shape.resources, mask)
    return Fit(fits, _met(rows, shape, where, mask, fits, holds))


class _Granted(NamedTuple):
    """Clusters that can have the same optional needs: what one pod takes there, and the rows that have it."""

    resources: Mapping[str, int]
    mask: Mask
    clusters: Mask


def _met(
    rows: Rows, shape: Shape, where: Where, mask: Mask, fits: Mask, holds: Callable[[Mapping[str, int], Mask], Mask]
) -> list[Mask]:
    """The clusters that meet each optional need. Granted as the assignment does: the heaviest first, to all pods, and
    what is granted leaves less for the next. `mask`: rows with room for a pod; `holds`: clusters whose rows hold all."""
    met = [fits] * len(shape.optional)
    plain = _Granted(shape.resources, mask, fits)
    branches = [plain]
    for place, i in enumerate(sorted(range(len(met)), key=lambda i: -shape.optional[i].weight)):
        optional = shape.optional[i]
        named = with_label(rows, optional.label, where)
        met[i] = np.zeros(rows.size, np.bool_)
        after = []
        for branch in branches if place < _TOGETHER else [plain]:
            some = branch.mask.copy() if named is None else branch.mask & named
            resources = with_optional(branch.resources, optional)
            some = with_capacity(rows, {resource: resources[resource] for resource in optional.resources}, some, where)
            able = holds(resources, some) & branch.clusters
            met[i] |= able
            after += [_Granted(resources, some, able), branch._replace(clusters=branch.clusters & ~able)]
        branches = [branch for branch in after if branch.clusters.any()]
    return met


def _everywhere(rows: Rows, shape: Shape, where: Where) -> Fit:
    """One pod on every matching node: all of them must have room, and there must be one."""
    matching = eligible(rows, shape, where)
    ids = np.flatnonzero(matching)
    if not isinstance(where, slice):
        ids = where[ids]
    clusters = rows.cluster[ids]

    def all_of(good: Mask) -> Mask:
        fits = np.zeros(rows.size, np.bool_)
        fits[clusters] = True
        fits[clusters[~good]] = False
        return fits

    good = with_capacity(rows, shape.resources, np.ones(len(ids), np.bool_), ids)
    fits = all_of(good)
    return Fit(fits, _met(rows, shape, ids, good, fits, lambda _, able: all_of(able)))


def fit_of(rows: Rows, shape: Shape, where: Where | None = None) -> Fit:
    """The answer computed anew, over all rows or over those of some clusters."""
    if unsupported_reason(shape):
        none = np.zeros(rows.size, np.bool_)
        return Fit(none, [none for _ in shape.optional])
    compute = _everywhere if shape.per_node else _plain
    return compute(rows, shape, slice(0, rows.n) if where is None else where)


def rows_in(rows: Rows, clusters: NDArray[np.integer]) -> Ids:
    """The rows of these clusters."""
    if len(clusters) <= _FEW:
        parts = [rows.rows_of(int(cluster)) for cluster in clusters]
        return np.concatenate(parts) if parts else np.empty(0, np.intp)
    wanted = np.zeros(rows.size + 1, np.bool_)  # the last entry is where holes (-1) look
    wanted[clusters] = True
    return np.flatnonzero(wanted[rows.cluster[: rows.n]])


def few_changed(rows: Rows, since: int) -> NDArray[np.int32] | None:
    """Clusters that changed after `since`; None: so many that everything is better looked at anew."""
    changed = rows.changed_since(since)
    return None if changed is None or len(changed) > rows.size // 4 + 1 else changed


def _grown(mask: Mask, size: int) -> Mask:
    """A copy, with clusters that are new in it."""
    grown = np.zeros(size, np.bool_)
    grown[: min(size, len(mask))] = mask[:size]
    return grown


def renewed(old: Mask, part: Mask, clusters: NDArray[np.integer]) -> Mask:
    mask = _grown(old, len(part))
    mask[clusters] = part[clusters]
    mask.setflags(write=False)
    return mask


class FitCache:
    """Rooms by shape key; the `keep` used last stay."""

    def __init__(self, rows: Rows, keep: int = 512) -> None:
        self._rows = rows
        self._keep = keep
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._news: tuple[int, int, NDArray[np.int32] | None, Ids] = (-1, -1, None, np.empty(0, np.intp))

    def _changed(self, since: int) -> tuple[NDArray[np.int32] | None, Ids]:
        """Clusters that changed, and their rows where they are few: most shapes were last looked at together."""
        rows = self._rows
        if self._news[:2] != (since, rows.tick):
            changed = few_changed(rows, since)
            ids = np.empty(0, np.intp) if changed is None else rows_in(rows, changed)
            self._news = since, rows.tick, changed, ids
        return self._news[2:]

    def get(self, shape: Shape) -> Fit:
        rows, tick = self._rows, self._rows.tick
        kept = self._kept.get(shape.key)
        if kept is not None and kept.tick == tick and len(kept.room.fits) == rows.size:
            self._kept.move_to_end(shape.key)
            return kept.room
        changed, ids = (None, None) if kept is None else self._changed(kept.tick)
        if kept is None or changed is None:
            room = fit_of(rows, shape)
            for mask in (room.fits, *room.met):
                mask.setflags(write=False)
        else:
            part = fit_of(rows, shape, ids)
            room = Fit(
                renewed(kept.room.fits, part.fits, changed),
                [renewed(old, new, changed) for old, new in zip(kept.room.met, part.met, strict=True)],
            )
        self._kept[shape.key] = _Kept(tick, room)
        self._kept.move_to_end(shape.key)
        if len(self._kept) > self._keep:
            self._kept.popitem(last=False)
        return room
