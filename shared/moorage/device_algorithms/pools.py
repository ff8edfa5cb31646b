"""Groups nodes into pools by what could serve the same requests, and prices the devices of each by how scarce they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import DeviceColumns, DeviceRequest, Floats, Ints
from .mix import RequestMix

#: A device of a pool that is as scarce as devices are on the whole costs as much as so many stranded ones.
HIGHEST_PRICE = 10.0
#: Requests that may go anywhere count so little when demand is laid on pools: they take what others leave.
_ANYWHERE = 1e-3
_ROUNDS = 16
#: So many requests are expected that depend on one pool, any of them, while little is known: large pools are taken of first.
#: After as many requests as the second number says, a third of them is still expected.
_EXPECTED, _UNTIL = 10, 100
_Bools = NDArray[np.bool_]


class Pools(NamedTuple):
    """Nodes with as many devices of one kind are a pool: a request for eight at once cannot use nodes with four."""

    kinds: Ints  # by pool
    devices: Ints  # by pool: those of one node
    of_row: Ints


def pools_of(columns: DeviceColumns) -> Pools:
    width = columns.size.shape[1] + 1
    numbers = columns.kinds * width + (columns.size > 0).sum(axis=1)
    found, of_row = np.unique(numbers, return_inverse=True)
    return Pools(found // width, found % width, of_row.reshape(-1))


def usable_pools(pools: Pools, requests: list[DeviceRequest]) -> _Bools:
    """Returns, by request and pool, whether nodes of the pool can serve the request while nothing is taken of them."""
    devices = np.array([request.devices for request in requests], np.int64)
    return _of_kinds(pools, [request.kinds for request in requests]) & (devices[:, None] <= pools.devices)


def prices(columns: DeviceColumns, mix: RequestMix, pools: Pools) -> Floats:
    """Returns what a device of each pool costs: the load by requests that have few pools to go to, beside what is asked of all."""
    free: Floats = np.bincount(pools.of_row, columns.free.sum(axis=1), minlength=len(pools.kinds)) + np.float64(1)
    usable, asked = _demand(mix, pools)
    demand = float(asked.sum())
    if len(free) < 2 or not demand:
        return np.zeros(len(free))
    total = float(free.sum())
    bound = asked * (1 - (1 - _ANYWHERE) * (usable @ free) / total)
    level = demand / total
    expected = np.full(len(free), demand / mix.known * _EXPECTED * np.exp(-mix.known / _UNTIL) / len(free))
    everyone = np.vstack([usable, np.eye(len(free), dtype=np.bool_)])
    load: Floats = _loads(everyone, np.concatenate([bound, expected]), free, level) / level
    return HIGHEST_PRICE * np.minimum(load, 1)


def _loads(usable: _Bools, asked: Floats, free: Floats, level: float) -> Floats:
    """Lays what is asked on pools so that they are loaded as evenly as it allows. Returns the load of each by what is free."""
    laid: Floats = usable * free
    load: Floats = np.zeros(len(free))
    for _ in range(_ROUNDS):
        laid *= (asked / laid.sum(axis=1))[:, None]
        load = laid.sum(axis=0) / free
        laid /= np.sqrt(load + 1e-3 * level)
    return load


def _demand(mix: RequestMix, pools: Pools) -> tuple[_Bools, Floats]:
    """Returns which pools are usable for whom, and how much these ask, without those that none can serve."""
    key = ("demand", pools.kinds.tobytes(), pools.devices.tobytes())
    found = mix.derived.get(key)
    if found is None:
        askers = [asker for asker in mix.asked if asker.devices]
        devices = np.array([asker.devices for asker in askers], np.int64)
        usable = _of_kinds(pools, [asker.kinds for asker in askers]) & (devices[:, None] <= pools.devices)
        asked = np.array([mix.asked[asker] for asker in askers], np.float64)
        served = usable.any(axis=1)
        found = mix.derived[key] = usable[served], asked[served]
    return found  # type: ignore[return-value]


def _of_kinds(pools: Pools, wanted: list[frozenset[int] | None]) -> _Bools:
    """Returns, by entry of `wanted` and pool, whether the pool has one of these kinds."""
    distinct = {kinds: number for number, kinds in enumerate(dict.fromkeys(wanted))}
    found = np.ones((len(distinct), len(pools.kinds)), np.bool_)
    for kinds, number in distinct.items():
        if kinds is not None:
            found[number] = np.isin(pools.kinds, np.fromiter(kinds, np.int64, len(kinds)))
    return found[[distinct[kinds] for kinds in wanted]]
