"""Scores clusters by the share of the optional weight of an app that they meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moorage.fit import Fit
from moorage.sdk import EXCLUSIVE, Fleet, Mask, OptionalNeed, Shape, ShapedApp

#: An answer has at most this many levels. Scores are exact up to that, beyond it fifteenths, rounded down.
LEVELS = 16


def levels(
    fleet: Fleet, app: ShapedApp, shape_fits: Sequence[Fit], allowed: Mask, silent: Mask | None = None
) -> list[tuple[float, Mask]]:
    """Returns the scores above 0 with the allowed clusters that have them. `shape_fits` has one fit per shape. The clusters
    `silent` score below all others: they do not report what the app asks for."""
    met, weight = _met_weight(fleet, app, shape_fits, allowed)
    if silent is not None and (silent & allowed).any() and (allowed & ~silent).any():
        reports = (allowed & ~silent).astype(np.int64)
        met, weight = (met + 2 * weight * reports, 3 * weight) if weight else (reports, 1)
    return _levels_of(met, weight) if weight else []


def _met_weight(
    fleet: Fleet, app: ShapedApp, shape_fits: Sequence[Fit], allowed: Mask
) -> tuple[NDArray[np.int64], int]:
    """Returns the weight of the optional needs that each cluster meets, 0 where it is not allowed, and that of all."""
    optionals = [
        (shape, optional, met)
        for shape, fit in zip(app.shapes, shape_fits, strict=True)
        for optional, met in zip(shape.optional, fit.met, strict=True)
    ]
    weight = sum(optional.weight for _, optional, _ in optionals)
    met_weight = np.zeros(len(allowed), np.int64)
    if not weight or not allowed.any():
        return met_weight, weight
    remaining = _Remaining(fleet, app) if len(app.shapes) > 1 else None
    for shape, optional, met in sorted(optionals, key=lambda entry: -entry[1].weight):
        met_weight += optional.weight * (met if remaining is None else remaining.take(shape, optional, met))
    met_weight[~allowed] = 0
    return met_weight, weight


def _levels_of(met: NDArray[np.int64], total: int) -> list[tuple[float, Mask]]:
    """Returns the scores met ÷ total with their clusters."""
    values = np.unique(met[met > 0])
    if values.size > LEVELS:
        met, total = (LEVELS - 1) * met // total, LEVELS - 1
        values = np.unique(met[met > 0])
    return [(value / total, met == value) for value in values.tolist()]


class _Remaining:
    """The sums per cluster that the shapes of an app leave free. An optional need that is granted to one shape takes from
    them, so the others cannot have it."""

    def __init__(self, fleet: Fleet, app: ShapedApp) -> None:
        self._fleet, self._app = fleet, app
        self._free: dict[str, NDArray[np.int64]] = {}

    def _of(self, resource: str) -> NDArray[np.int64]:
        free = self._free.get(resource)
        if free is None:
            taken = sum(s.resources.get(resource, 0) * s.count for s in self._app.shapes if not s.per_node)
            free = self._free[resource] = self._fleet.sums(resource)[0] - taken
        return free

    def take(self, shape: Shape, optional: OptionalNeed, clusters: Mask) -> Mask:
        """Returns those of these clusters that have enough left for the need, and takes it there."""
        # Nodes without a bound on exclusive cores have no sum of them, and pods on every node have no number.
        needs = {} if shape.per_node else {r: n * shape.count for r, n in optional.resources.items() if r != EXCLUSIVE}
        for resource, need in needs.items():
            clusters = clusters & (self._of(resource) >= need)
        for resource, need in needs.items():
            self._of(resource)[clusters] -= need
        return clusters
