"""Scores nodes by how little a choice strands: devices that typical requests could not use any more.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et al., 2023).
"""

from __future__ import annotations

import numpy as np

from .algorithms import Scorer
from .columns import WHOLE, DeviceColumns, DeviceRequest, Floats, Ints, Options
from .mix import RequestMix
from .plain import best_fit
from .pools import Pools, pools_of, prices, usable_pools
from .typical import TypicalRequests, after, before

#: What stays of a node that is filled with copies of a typical request weighs so much beside what one of them cannot use.
FILLED = 0.1
#: FGD takes differences below this part of a device for equal.
_GRAIN = 0.04


def fgd(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers what raises fragmentation least, as published: all typical requests count on every node."""
    if not mix.requests:
        return best_fit(columns, mix)
    typical = mix.derived.get("fgd")
    if not isinstance(typical, TypicalRequests):
        typical = mix.derived["fgd"] = TypicalRequests(mix.requests, mix.weights[None])
    gained = _gain(columns, typical, np.zeros(len(columns), np.int64), 0.0)
    return lambda options, request: np.floor(gained(options, request) / _GRAIN)


def learned(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers what strands least, for requests that may use the node's pool of devices, and spares pools that are scarce."""
    if not mix.sample:
        return best_fit(columns, mix)
    pools = pools_of(columns)
    gained = _gain(columns, _typical(mix, pools), pools.of_row, FILLED)
    price = prices(columns, mix, pools)[pools.of_row]

    def scores(options: Options, request: DeviceRequest) -> Floats:
        return gained(options, request) - price[options.rows] * (request.amount / WHOLE)

    return scores


def _typical(mix: RequestMix, pools: Pools) -> TypicalRequests:
    """Returns the typical requests, each with its share among those that may use a pool. All columns with such pools share it."""
    key = ("learned", pools.kinds.tobytes(), pools.devices.tobytes())
    found = mix.derived.get(key)
    if not isinstance(found, TypicalRequests):
        weights = usable_pools(pools, mix.sample).T * mix.sample_weights
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
        found = mix.derived[key] = TypicalRequests(mix.sample, weights)
    return found


def _gain(columns: DeviceColumns, typical: TypicalRequests, pools: Ints, filled: float) -> Scorer:
    def scores(options: Options, request: DeviceRequest) -> Floats:
        rows, at = np.unique(options.rows, return_inverse=True)
        now = typical.unusable(before(columns, rows, pools), filled)[at]
        return now - typical.unusable(after(columns, options, request, pools), filled)

    return scores
