"""Scores nodes by how little a choice strands: devices that typical requests could not use any more.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et al., 2023).
"""

from __future__ import annotations

import numpy as np

from .algorithms import Scorer
from .columns import WHOLE, DeviceColumns, DeviceRequest, Floats, Options
from .mix import RequestMix
from .plain import best_fit
from .pools import Pools, amounts, demand, expected_requests, pools_of, prices, usable_pools
from .typical import TypicalRequests, gain

#: What stays of a node that is filled with copies of a typical request weighs so much beside what one of them cannot use.
FILLED = 0.1
#: FGD takes differences below this part of a device for equal.
_GRAIN = 0.04
#: How much less requests count that take more of a scarcer resource than of devices: this power of what they take, at most.
_SCARCE = 4.0
#: A smaller part of all requests is not worth to be expected.
_FEW_EXPECTED = 1e-3


def fgd(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers what raises fragmentation least, as published: all typical requests count on every node."""
    if not mix.requests:
        return best_fit(columns, mix)
    typical = mix.derived.get("fgd")
    if not isinstance(typical, TypicalRequests):
        typical = mix.derived["fgd"] = TypicalRequests(mix.requests, mix.weights[None])
    pools = np.zeros(len(columns), np.int64)
    return lambda options, request: np.floor(gain(typical, columns, options, request, pools, 0.0) / _GRAIN)


def learned(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers what strands least, for requests that may use the node's pool of devices, and spares pools that are scarce."""
    if not mix.sample:
        return best_fit(columns, mix)
    pools = pools_of(columns)
    typical = _typical(columns, mix, pools)
    price = prices(columns, mix, pools)[pools.of_row]

    def scores(options: Options, request: DeviceRequest) -> Floats:
        costs = price[options.rows, 0] * (request.amount / WHOLE)
        for resource, amount in enumerate(request.beside, 1):
            costs += price[options.rows, resource] * amount
        found: Floats = gain(typical, columns, options, request, pools.of_row, FILLED) - costs
        return found

    return scores


def _typical(columns: DeviceColumns, mix: RequestMix, pools: Pools) -> TypicalRequests:
    """Returns the typical requests, each with its share among those that may use a pool. All columns with such pools share it."""
    key = ("learned", pools.kinds.tobytes(), pools.devices.tobytes())
    found = mix.derived.get(key)
    if not isinstance(found, TypicalRequests):
        requests, shares = _with_expected(mix, pools)
        found = mix.derived[key] = TypicalRequests(requests, usable_pools(pools, requests).T * shares)
    return found.reweighted(yields(columns, mix, pools, found.requests))


def yields(columns: DeviceColumns, mix: RequestMix, pools: Pools, requests: list[DeviceRequest]) -> Floats:
    """Returns what requests count by the devices that they put to use with what is scarcer than devices; at most one.

    Where CPUs run out first, room kept for one request with many of them is room for several others with as many devices each.
    """
    there = np.maximum([columns.size.sum(), *columns.beside_size.sum(axis=0)], 1)
    levels = demand(columns, mix, pools)[1].sum(axis=0) / there
    taken = amounts(requests, len(there) - 1) / there
    powers = _SCARCE * (1 - levels[0] / np.maximum(levels, levels[0] + 1e-200))
    found: Floats = ((taken[:, :1] / np.maximum(taken, taken[:, :1])) ** powers).min(axis=1)
    return found


def _with_expected(mix: RequestMix, pools: Pools) -> tuple[list[DeviceRequest], Floats]:
    """Returns the sample and its shares; while little is known, also requests for all devices of a node of each size."""
    expected = expected_requests(mix)
    part = expected / (expected + mix.known)
    nodes = [DeviceRequest(devices) for devices in sorted({*pools.devices.tolist()} - {0})]
    if part < _FEW_EXPECTED or not nodes:
        return mix.sample, mix.sample_weights
    shares = [mix.sample_weights * (1 - part), np.full(len(nodes), part / len(nodes))]
    return [*mix.sample, *nodes], np.concatenate(shares)
