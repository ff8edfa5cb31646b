"""Packs different pods onto full nodes by dealing out the pods of two nodes again and again.

The search starts with all pods on nodes, some of them overloaded. It takes an overloaded node and another one, lists all ways to
divide their pods between the two, and keeps the one with the least overload. Where no pair reduces the overload, what stays
overloaded becomes dearer, so the search moves on. A division changes several pods at once; single moves and swaps reach far fewer
of the packings of a node with five pods.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

#: Pods that are divided between two nodes; where there are more, some of them, drawn anew each time.
MOST_DIVIDED = 10
#: How much dearer an overload becomes when no pair reduces the sum of all, and how often all become equal again.
GROWTH, RESET = 2.0, 0.01
#: Amounts below this share of a node are rounding.
EPSILON = 1e-12
#: By number of pods, all ways to divide them, a column each: 1 for the first node.
_DIVISIONS = [((np.arange(1 << k) >> np.arange(k)[:, None]) & 1).astype(np.float64) for k in range(MOST_DIVIDED + 1)]


class _Division(NamedTuple):
    change: float  # of the penalty
    other: int  # the second node
    pods: Ints
    on_first: NDArray[np.bool_]


def pair_search(
    need: Floats, free: Floats, feasible: NDArray[np.bool_], seconds: float, seed: int = 0
) -> NDArray[np.intp] | None:
    """Returns for each pod its node; None if nothing is found in this time, which proves nothing. `need` and `free` are shares of
    the largest node, by pod and by node; `feasible` tells which pods may run on which nodes."""
    hopeless = (need.sum(axis=0) > free.sum(axis=0) + EPSILON).any() or not feasible.any(axis=1).all()
    if hopeless or not len(need) or len(free) < 2:
        return None
    deadline = time.perf_counter() + seconds
    search = _PairSearch(need, free, feasible, seed)
    while not search.is_packed():
        if time.perf_counter() > deadline:
            return None
        search.step()
    return search.node


class _PairSearch:
    def __init__(self, need: Floats, free: Floats, feasible: NDArray[np.bool_], seed: int) -> None:
        self.need, self.free, self.feasible = need, free, feasible
        self.random = np.random.default_rng(seed)
        self.anywhere = bool(feasible.all())
        self.node: Ints = np.zeros(len(need), np.intp)
        self.slack = free.copy()  # by node; negative: overloaded
        self.weight = np.ones_like(free)
        for pod in np.argsort(-need.max(axis=1), kind="stable").tolist():
            over = np.maximum(need[pod] - self.slack, 0).sum(axis=1)
            over[~feasible[pod]] = np.inf
            node = np.lexsort((self.slack.sum(axis=1), over))[0]
            self.node[pod] = node
            self.slack[node] -= need[pod]
        self.pods_on: list[Ints] = [np.flatnonzero(self.node == node) for node in range(len(free))]

    def is_packed(self) -> bool:
        return bool(self.slack.min() >= -EPSILON)

    def step(self) -> None:
        """Divides the pods of an overloaded node and another one anew, or makes the overloads dearer."""
        over = np.maximum(-self.slack, 0)
        penalty = (over * self.weight).sum(axis=1)
        draws = self.random.random((2, len(penalty)))
        first = int((penalty * draws[0]).argmax())
        best: _Division | None = None
        # Nodes with much room help most often.
        for other in (self.slack.sum(axis=1) * draws[1]).argsort()[::-1].tolist():
            if other == first:
                continue
            found = self._divide(first, other, penalty)
            if best is None or found.change < best.change:
                best = found
            if found.change < -EPSILON:
                break
        assert best is not None
        if best.change >= -EPSILON:
            self.weight[over > EPSILON] *= GROWTH
            if self.random.random() < RESET or self.weight.max() > 1e9:
                self.weight[:] = 1
        if best.change < np.inf:
            self.node[best.pods] = np.where(best.on_first, first, best.other)
            self._recount(first)
            self._recount(best.other)

    def _divide(self, first: int, other: int, penalty: Floats) -> _Division:
        """Returns the best other division of the pods of two nodes."""
        here, there = self.pods_on[first], self.pods_on[other]
        if not self.anywhere:
            here, there = here[self.feasible[here, other]], there[self.feasible[there, first]]
        pods, ahead = np.concatenate([here, there]), len(here)
        if len(pods) > MOST_DIVIDED:
            drawn = np.sort(self.random.permutation(len(pods))[:MOST_DIVIDED])
            pods, ahead = pods[drawn], int((drawn < ahead).sum())
        ways, need = _DIVISIONS[len(pods)], self.need[pods]
        slack = self.slack[first]
        left = (slack + need[:ahead].sum(axis=0))[:, None] - need.T @ ways
        left_other = (slack + self.slack[other])[:, None] - left
        np.minimum(left, 0, out=left)
        np.minimum(left_other, 0, out=left_other)
        gain = self.weight[first] @ left
        gain += self.weight[other] @ left_other
        gain[(1 << ahead) - 1] = -np.inf  # as it is
        best = int(gain.argmax())
        return _Division(float(-gain[best] - penalty[first] - penalty[other]), other, pods, ways[:, best] > 0)

    def _recount(self, node: int) -> None:
        pods = self.pods_on[node] = np.flatnonzero(self.node == node)
        self.slack[node] = self.free[node] - self.need[pods].sum(axis=0)
