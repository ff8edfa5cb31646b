"""Groups nodes into pools by what could serve the same requests, and prices the devices of each by how scarce they are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections import unique_rows

from .columns import WHOLE, DeviceColumns, DeviceRequest, Floats, Ints
from .mix import RequestMix

#: A device of a pool that is as scarce as devices are on the whole costs as much as so many stranded ones.
HIGHEST_PRICE = 10.0
#: Requests that may go anywhere count so little when demand is laid on pools: they take what others leave.
_ANYWHERE = 1e-3
_ROUNDS = 16
#: Other resources weigh so much beside devices where these are the scarcest.
_BESIDE = 0.25
#: So many requests are expected, while little is known, that are like none so far. After as many as the second number says, a third
#: of them is.
_EXPECTED, _UNTIL = 10, 100
#: Of these, as many depend on one pool as requests so far named kinds, but until all devices are taken no more than so many times
#: the first number on each.
_OF_ONE_POOL = 2
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
    return _of_kinds(pools, [request.kinds for request in requests]) & _on_one_node(pools, requests)


def _on_one_node(pools: Pools, requests: list[DeviceRequest]) -> _Bools:
    """Returns, by request and pool, whether nodes of the pool have as many devices."""
    devices = np.array([request.devices for request in requests], np.int64)
    found: _Bools = devices[:, None] <= pools.devices
    return found


def expected_requests(mix: RequestMix) -> float:
    """Returns how many requests are still expected that are like none so far."""
    return _EXPECTED * math.exp(-mix.known / _UNTIL)


def prices(columns: DeviceColumns, mix: RequestMix, pools: Pools) -> Floats:
    """Returns, by pool, what a device costs and then what one of each other resource costs: the load by requests that have few pools
    to go to, beside what is asked of all of the resource that is asked most."""
    free = _by_pool(pools, [columns.free.sum(axis=1), *np.maximum(columns.beside_free.T, 0)]) + 1
    usable, asked, named = demand(columns, mix, pools)
    if len(free) < 2 or not len(asked):
        return np.zeros(free.shape)
    total = free.sum(axis=0)
    levels = asked.sum(axis=0) / total
    level = float(levels.max())
    bound = asked * (1 - (1 - _ANYWHERE) * (usable @ free) / total)
    expected = np.zeros(free.shape)
    depend = expected_requests(mix) * (named + 1) / (mix.known + 2)
    requests = depend * min(1 / len(free), _OF_ONE_POOL * levels[0])
    expected[:, 0] = requests * asked[:, 0].sum() / mix.known
    everyone = np.vstack([usable, np.eye(len(free), dtype=np.bool_)])
    load = _loads(everyone, np.concatenate([bound, expected]), free, level) / level
    found: Floats = np.minimum(load, 1)
    # Where another resource is scarcer than devices, these are spared where nearly all are spoken for only, and the price of the
    # other one would hide what is stranded.
    found[:, 0] **= level / levels[0]
    weight = _BESIDE * (levels[0] / level) ** 4
    found[:, 1:] *= weight * total[0] / WHOLE / total[1:]
    return HIGHEST_PRICE * found


def _loads(usable: _Bools, asked: Floats, free: Floats, level: float) -> Floats:
    """Lays what is asked on pools so that they are loaded as evenly as it allows. Returns the load of each by what is free."""
    uses = asked / free.sum(axis=0)
    uses[:, 1:] *= _BESIDE
    uses /= uses.sum(axis=1, keepdims=True) + 1e-30
    laid: Floats = usable * free[:, 0]
    load: Floats = np.zeros(free.shape)
    for _ in range(_ROUNDS):
        laid /= laid.sum(axis=1, keepdims=True)
        load = laid.T @ asked / free
        laid /= np.sqrt(uses @ load.T + 1e-3 * level)
    return load


def demand(columns: DeviceColumns, mix: RequestMix, pools: Pools) -> tuple[_Bools, Floats, float]:
    """Returns which pools are usable for whom, and how much these ask of devices and each other resource, without those that no node
    can serve; and how many requests named kinds."""
    most = np.zeros((len(pools.kinds), columns.beside_size.shape[1]), np.int64)
    np.maximum.at(most, pools.of_row, columns.beside_size)
    key = ("demand", pools.kinds.tobytes(), pools.devices.tobytes(), most.tobytes())
    found = mix.derived.get(key)
    if found is None:
        each = amounts(mix.distinct, most.shape[1])
        of_kinds = _of_kinds(pools, [request.kinds for request in mix.distinct])
        named = float(mix.counts[~of_kinds.all(axis=1)].sum())
        usable = of_kinds & _on_one_node(pools, mix.distinct)
        for resource in range(most.shape[1]):
            usable &= each[:, resource + 1, None] <= most[:, resource]
        first, alike = unique_rows(usable.astype(np.int64))
        asked = np.zeros((len(first), each.shape[1]))
        np.add.at(asked, alike, each * mix.counts[:, None])
        served = usable[first].any(axis=1)
        found = mix.derived[key] = usable[first][served], asked[served], named
    return found  # type: ignore[return-value]


def _by_pool(pools: Pools, by_row: Iterable[Ints]) -> Floats:
    """Returns the sums by pool of what there is by row."""
    return np.column_stack([np.bincount(pools.of_row, there, minlength=len(pools.kinds)) for there in by_row])


def amounts(requests: list[DeviceRequest], others: int) -> Ints:
    """Returns, by request, what it asks of devices, in thousandths, and of each of so many other resources."""
    each = [(request.amount, *(request.beside + (0,) * others)[:others]) for request in requests]
    return np.array(each, np.int64).reshape(len(requests), others + 1)


def _of_kinds(pools: Pools, wanted: list[frozenset[int] | None]) -> _Bools:
    """Returns, by entry of `wanted` and pool, whether the pool has one of these kinds."""
    distinct = {kinds: number for number, kinds in enumerate(dict.fromkeys(wanted))}
    found = np.ones((len(distinct), len(pools.kinds)), np.bool_)
    for kinds, number in distinct.items():
        if kinds is not None:
            found[number] = np.isin(pools.kinds, np.fromiter(kinds, np.int64, len(kinds)))
    return found[[distinct[kinds] for kinds in wanted]]
