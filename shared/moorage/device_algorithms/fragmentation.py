"""Scores nodes by how little a choice strands: devices that typical requests could not use any more.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et al., 2023).
"""

from __future__ import annotations

import numpy as np

from .algorithms import Scorer
from .columns import WHOLE, DeviceColumns, DeviceRequest, Floats, Options
from .mix import RequestMix
from .plain import best_fit
from .typical import TypicalRequests, after, before

#: What stays of a node that is filled with copies of a typical request weighs so much beside what one of them cannot use.
FILLED = 0.1
#: A kind that is asked for more often than it is free costs at most so many devices for each one taken.
HIGHEST_PRICE = 4.0
#: FGD takes differences below this part of a device for equal.
_GRAIN = 0.04


def fgd(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers what raises fragmentation least, as published: all typical requests count on every node."""
    if not mix.requests:
        return best_fit(columns, mix)
    gained = _gain(columns, _typical(columns, mix, heed_kinds=False), 0.0)
    return lambda options, request: np.floor(gained(options, request) / _GRAIN)


def learned(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers what strands least, for requests that may use the node's kind of devices, and spares kinds that are scarce."""
    if not mix.requests:
        return best_fit(columns, mix)
    gained = _gain(columns, _typical(columns, mix, heed_kinds=True), FILLED)
    prices = scarcity(columns, mix)
    # Whoever may use few kinds has to go somewhere: only what cannot be met is dear.
    excess = np.maximum(prices - 1, 0)

    def scores(options: Options, request: DeviceRequest) -> Floats:
        of_kind = prices if request.kinds is None else excess
        return gained(options, request) - of_kind[columns.kinds[options.rows]] * (request.amount / WHOLE)

    return scores


def _typical(columns: DeviceColumns, mix: RequestMix, *, heed_kinds: bool) -> TypicalRequests:
    """Returns the typical requests, which all columns with as many kinds share."""
    key = (_kinds(columns), heed_kinds)
    found = mix.derived.get(key)
    if not isinstance(found, TypicalRequests):
        found = mix.derived[key] = TypicalRequests(mix.requests, mix.weights, key[0], heed_kinds=heed_kinds)
    return found


def _gain(columns: DeviceColumns, typical: TypicalRequests, filled: float) -> Scorer:
    def scores(options: Options, request: DeviceRequest) -> Floats:
        rows, at = np.unique(options.rows, return_inverse=True)
        now = typical.unusable(before(columns, rows), filled)[at]
        return now - typical.unusable(after(columns, options, request), filled)

    return scores


def scarcity(columns: DeviceColumns, mix: RequestMix) -> Floats:
    """Returns a price by kind: the share of demand that is bound to it beside its share of the free devices."""
    kinds = _kinds(columns)
    free = np.bincount(columns.kinds, columns.free.sum(axis=1), minlength=kinds)
    usable, asked = _bound_to(mix, kinds)
    there = usable * (free + 1)
    bound = (asked / np.maximum(there.sum(axis=1), 1)) @ there
    demand = float(asked.sum())
    part_of_demand = bound / max(demand, 1e-9)
    part_of_free = free / max(float(free.sum()), 1.0)
    price: Floats = np.minimum(part_of_demand / np.maximum(part_of_free, 1e-9), HIGHEST_PRICE)
    return price


def _bound_to(mix: RequestMix, kinds: int) -> tuple[Floats, Floats]:
    """Returns which kinds each typical request is bound to, as a matrix of 0 and 1, and how much it asks."""
    key = ("bound", kinds)
    found = mix.derived.get(key)
    if found is None:
        usable = np.array([[kind in (one.kinds or ()) for kind in range(kinds)] for one in mix.requests], np.float64)
        asked = np.array([one.amount for one in mix.requests], np.float64) * mix.weights
        found = mix.derived[key] = usable.reshape(len(mix.requests), kinds), asked
    return found  # type: ignore[return-value]


def _kinds(columns: DeviceColumns) -> int:
    return int(columns.kinds.max(initial=0)) + 1
