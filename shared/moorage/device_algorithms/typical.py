"""Computes what typical requests cannot use of the devices of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import WHOLE, DeviceColumns, DeviceRequest, Floats, Ints, Options, runs

_Floats32 = NDArray[np.float32]
#: Devices times forms that are looked up at once; of more, device by device.
_AT_ONCE = 1 << 16


class NodeStates(NamedTuple):
    """The free devices on nodes. Several states may be of one node, with different devices taken."""

    free: Ints  # by state and device
    nodes: Ints  # by state: its node
    beside: Ints  # by node and other resource
    pools: Ints  # by node


class TypicalRequests:
    """The typical requests as columns. Requests for the same devices share a form: what they can use is computed once."""

    def __init__(self, requests: Sequence[DeviceRequest], weights: Floats) -> None:
        """`weights`: by pool and request."""
        forms: dict[tuple[int, int], int] = {}
        self._form = np.array([forms.setdefault((r.devices, r.share), len(forms)) for r in requests], np.intp)
        counts = np.array([count for count, _ in forms], np.float32)
        shares = np.array([share for _, share in forms], np.int64)
        self._counts = counts
        width = max((len(r.beside) for r in requests), default=0)
        beside = np.array([r.beside + (0,) * (width - len(r.beside)) for r in requests], np.float32)
        self._beside = beside.reshape(len(requests), width)
        self.requests = list(requests)
        self._shares = weights
        self._set_weights(weights)
        self._amounts = np.array([r.amount for r in requests], np.float32) / WHOLE
        self._of_form = np.zeros((len(requests), len(forms)), np.float32)
        self._of_form[np.arange(len(requests)), self._form] = 1
        levels = np.arange(WHOLE + 1)[:, None]
        small = np.where(levels < shares, levels, 0) / WHOLE
        self._by_level = np.hstack([small, levels // shares]).astype(np.float32)

    def reweighted(self, factors: Floats) -> TypicalRequests:
        """Returns the same requests, each of which counts so much more than before; of a pool the weights of all are one."""
        weights = self._shares * (factors / factors.max(initial=1e-200))
        found = copy(self)
        found._set_weights(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-200))
        return found

    def _set_weights(self, weights: Floats) -> None:
        self._alike = bool((weights == weights[:1]).all())
        self._weights = weights.astype(np.float32)

    def unusable(self, states: NodeStates, filled: float) -> Floats:
        """Returns how many of the free devices of each state typical requests cannot use: `1 - filled` of the number is what
        one request of each cannot use, `filled` what stays when the node is filled with copies of it."""
        total = states.free.sum(axis=1, dtype=np.float32)[:, None] / WHOLE
        small, copies = self._of_devices(states.free)
        possible = np.minimum(copies[:, self._form], self._limits(states.beside)[states.nodes])
        weights = self._weights[:1] if self._alike else self._weights[states.pools[states.nodes]]
        used = (((possible >= 1) * weights) @ self._of_form * (total - small)).sum(axis=1)
        if filled:
            worth = weights * self._amounts
            used *= 1 - filled
            used += filled * (possible @ worth[0] if self._alike else (possible * worth).sum(axis=1))
        stays: Floats = (total[:, 0] * weights.sum(axis=1) - used).astype(np.float64)
        return stays

    def _limits(self, beside: Ints) -> _Floats32:
        """Returns, by node and request, how often what the request asks beside devices is there."""
        limits = np.full((len(beside), len(self._beside)), WHOLE, np.float32)
        for resource in range(self._beside.shape[1]):
            asked = self._beside[:, resource]
            there = np.maximum(beside[:, resource, None], 0).astype(np.float32)
            np.minimum(limits, np.where(asked > 0, there / np.maximum(asked, 1), WHOLE), out=limits)
        return np.floor(limits, out=limits)

    def _of_devices(self, free: Ints) -> tuple[_Floats32, _Floats32]:
        """Returns, by state and form, the sum of devices of which too little is free, and how often the form fits."""
        forms = len(self._counts)
        if free.size * forms <= _AT_ONCE:
            sums = self._by_level[free].sum(axis=1)
        else:
            sums = np.zeros((len(free), 2 * forms), np.float32)
            for device in range(free.shape[1]):
                sums += self._by_level[free[:, device]]
        return sums[:, :forms], np.floor(sums[:, forms:] / self._counts)


def gain(
    typical: TypicalRequests,
    columns: DeviceColumns,
    options: Options,
    request: DeviceRequest,
    pools: Ints,
    filled: float,
) -> Floats:
    """Returns by how much less of the free devices typical requests could not use if an option were taken. `pools`: by row."""
    starts, at = runs(options.rows)
    rows = options.rows[starts]
    count = len(rows)
    taken = columns.free[options.rows]
    if options.devices.shape[1]:
        taken[np.arange(len(taken))[:, None], options.devices] -= request.share
    beside = columns.beside_free[rows]
    left = beside - np.array(request.beside, np.int64) if request.beside else beside
    states = NodeStates(
        np.concatenate([columns.free[rows], taken]),
        np.concatenate([np.arange(count), count + at]),
        np.concatenate([beside, left]),
        np.concatenate([pools[rows], pools[rows]]),
    )
    unusable = typical.unusable(states, filled)
    gained: Floats = unusable[:count][at] - unusable[count:]
    return gained
