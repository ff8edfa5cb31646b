"""Scores clusters by the share of the optional weight of an app that they meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from moorage.fit import MAX_COMBINED, Fit, by_weight, combinations
from moorage.model.candidates import LEVELS
from moorage.sdk import EXCLUSIVE, Fleet, Mask, Shape, ShapedApp

#: Weights up to this are found by counting, which needs no sorting.
_MAX_COUNTED = 1 << 12


def levels(
    fleet: Fleet, app: ShapedApp, shape_fits: Sequence[Fit], allowed: Mask, silent: Mask | None = None
) -> list[tuple[float, Mask]]:
    """Returns the scores above 0 with the allowed clusters that have them. `shape_fits` has one fit per shape. The clusters
    `silent` score below all others: they do not report what the app asks for."""
    met, weight = _met_weight(fleet, app, shape_fits, allowed)
    if silent is not None and (silent & allowed).any() and (allowed & ~silent).any():
        reports = (allowed & ~silent).astype(np.int64)
        met, weight = (met + 2 * weight * reports, 3 * weight) if weight else (reports, 1)
    return levels_of(met, weight) if weight else []


def _met_weight(
    fleet: Fleet, app: ShapedApp, shape_fits: Sequence[Fit], allowed: Mask
) -> tuple[NDArray[np.int64], int]:
    """Returns the most weight of optional needs that each cluster can be granted, 0 where it is not allowed, and that of all
    needs. It is the maximum over the same combinations for all clusters, so more hardware never scores less."""
    weight = sum(optional.weight for shape in app.shapes for optional in shape.optional)
    met_weight = np.zeros(len(allowed), np.int64)
    if not weight or not allowed.any():
        return met_weight, weight
    sums = _Sums(fleet, app) if len(app.shapes) > 1 else None
    undecided = allowed.copy()
    for needs in combinations(app.shapes)[:-1]:  # the last is none, which weighs nothing
        granted = undecided.copy()
        for number, fit in enumerate(shape_fits):
            granted &= _granted(fit, app.shapes[number], [i for n, i in needs if n == number])
        if sums is not None and granted.any():
            granted = sums.hold(needs, granted)
        met_weight[granted] = sum(app.shapes[number].optional[i].weight for number, i in needs)
        undecided &= ~granted
        if not undecided.any():
            break
    return met_weight, weight


def _granted(fit: Fit, shape: Shape, needs: Sequence[int]) -> Mask:
    """Returns the clusters that can be granted these needs of one shape."""
    order = by_weight(shape)
    ranks = [order.index(i) for i in needs]
    subset = sum(1 << rank for rank in ranks if rank < MAX_COMBINED)
    return fit.granted(subset, sum(rank >= MAX_COMBINED for rank in ranks))


def levels_of(met: NDArray[np.int64], total: int) -> list[tuple[float, Mask]]:
    """Returns the scores met ÷ total with their clusters: exact if there are at most LEVELS, else fifteenths, rounded down."""
    values = _different(met, total)
    if len(values) > LEVELS:
        met, total = (LEVELS - 1) * met // total, LEVELS - 1
        values = _different(met, total)
    return [(value / total, met == value) for value in values]


def _different(met: NDArray[np.int64], most: int) -> list[int]:
    """Returns the different values above 0, in ascending order; none is above `most`."""
    if most <= _MAX_COUNTED:
        values = np.bincount(met).nonzero()[0]
    else:
        values = np.unique(met)
    found: list[int] = values.tolist()
    return [value for value in found if value]


class _Sums:
    """The sums per cluster that the mandatory needs of an app leave free. Shapes that are granted more together than these
    do not fit together."""

    def __init__(self, fleet: Fleet, app: ShapedApp) -> None:
        self._fleet, self._app = fleet, app
        self._free: dict[str, NDArray[np.int64]] = {}

    def _of(self, resource: str) -> NDArray[np.int64]:
        free = self._free.get(resource)
        if free is None:
            taken = sum(s.resources.get(resource, 0) * s.count for s in self._app.shapes if not s.per_node)
            free = self._free[resource] = self._fleet.sums(resource)[0] - taken
        return free

    def hold(self, needs: Iterable[tuple[int, int]], clusters: Mask) -> Mask:
        """Returns those of these clusters that have enough left for all these needs."""
        total: dict[str, int] = {}
        for number, i in needs:
            shape = self._app.shapes[number]
            # Nodes without a bound on exclusive cores have no sum of them, and pods on every node have no number.
            for resource, need in {} if shape.per_node else shape.optional[i].resources.items():
                if resource != EXCLUSIVE:
                    total[resource] = total.get(resource, 0) + need * shape.count
        for resource, need in total.items():
            clusters = clusters & (self._of(resource) >= need)
        return clusters
