"""Scores clusters by the share of the optional weight of an app that they meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moorage.fit import Fit
from moorage.sdk import EXCLUSIVE, Fleet, Mask, OptionalNeed, Shape, ShapedApp

#: Scores are fifteenths, rounded down, so that an answer has at most 16 levels.
LEVELS = 15


def levels(fleet: Fleet, app: ShapedApp, shape_fits: Sequence[Fit], allowed: Mask) -> list[tuple[float, Mask]]:
    """Returns the scores above 0 with the allowed clusters that have them. `shape_fits` has one fit per shape."""
    optionals = [
        (shape, optional, met)
        for shape, fit in zip(app.shapes, shape_fits, strict=True)
        for optional, met in zip(shape.optional, fit.met, strict=True)
    ]
    weight = sum(optional.weight for _, optional, _ in optionals)
    if not weight or not allowed.any():
        return []
    if len(optionals) == 1:  # met or not: there is nothing to add up
        level = optionals[0][2] & allowed
        return [(1.0, level)] if level.any() else []
    met_weight = np.zeros(len(allowed), np.int64)
    remaining = _Remaining(fleet, app) if len(app.shapes) > 1 else None
    for shape, optional, met in sorted(optionals, key=lambda entry: -entry[1].weight):
        met_weight += optional.weight * (met if remaining is None else remaining.take(shape, optional, met))
    steps = np.where(allowed, LEVELS * met_weight // weight, 0)
    present = np.flatnonzero(np.bincount(steps, minlength=LEVELS + 1)).tolist()
    return [(step / LEVELS, steps == step) for step in present if step]


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
