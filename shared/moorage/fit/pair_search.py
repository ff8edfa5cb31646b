"""Packs different pods onto full nodes by dealing out the pods of two nodes again and again.

The search starts with all pods on nodes, some of them overloaded. It takes an overloaded node, lists all ways to divide its pods
and those of each other node between the two, and keeps the one with the least overload. Where none reduces the overload, what
stays overloaded becomes dearer, so the search moves on. A division changes several pods at once; single moves and swaps reach far
fewer of the packings of a node with five pods.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

#: Pods of a node that a division may move; where there are more, some of them, drawn anew each time.
MOST_MOVED = 5
#: Other nodes that a step looks at; where there are more, those with much room most often.
MOST_OTHERS = 16
#: How much dearer an overload becomes when no division reduces the sum of all, and how often all become as at first.
GROWTH, RESET = 2.0, 0.05
#: The least size of a node that the weight of its overload is reckoned from.
SMALLEST = 1e-3
#: Amounts below this share of a node are rounding.
EPSILON = 1e-12
#: By number of pods, all sets of them, a column each. The first is empty, the last has all.
_SETS = [((np.arange(1 << k) >> np.arange(k)[:, None]) & 1).astype(np.float64) for k in range(MOST_MOVED + 1)]


class _Sets(NamedTuple):
    """Some pods of a node, and what each set of them needs."""

    pods: Ints
    need: Floats  # resource by set

    def members(self, number: int) -> NDArray[np.bool_]:
        return _SETS[len(self.pods)][:, number] > 0


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
        # An overload of a small node is dearer: few pods could leave it.
        self.first_weight = 1 / np.sqrt(np.maximum(free, SMALLEST))
        self.weight = self.first_weight.copy()
        for pod in np.argsort(-need.max(axis=1), kind="stable").tolist():
            over = np.maximum(need[pod] - self.slack, 0).sum(axis=1)
            over[~feasible[pod]] = np.inf
            node = np.lexsort((self.slack.sum(axis=1), over))[0]
            self.node[pod] = node
            self.slack[node] -= need[pod]
        self.pods_on: list[Ints] = [np.flatnonzero(self.node == node) for node in range(len(free))]
        self.sets = [self._draw(node) for node in range(len(free))]

    def is_packed(self) -> bool:
        return bool(self.slack.min() >= -EPSILON)

    def step(self) -> None:
        """Divides the pods of an overloaded node and another one anew, and makes overloads dearer where that helps nothing."""
        under = np.minimum(self.slack, 0)
        penalty = -(under * self.weight).sum(axis=1)
        node = int((penalty * self.random.random(len(penalty))).argmax())
        others = self._others(node)
        for drawn in (node, *others):
            if len(self.pods_on[drawn]) > MOST_MOVED:
                self.sets[drawn] = self._draw(drawn)
        sizes = [self.sets[other].need.shape[1] for other in others]
        starts = np.cumsum([0, *sizes[:-1]])
        gain = self._gains(node, others, sizes, penalty)
        gain[-1, starts] = -np.inf  # as it is
        stays, column = divmod(int(gain.argmax()), gain.shape[1])
        best = gain[stays, column]
        if best <= EPSILON:
            self.weight[under < -EPSILON] *= GROWTH
            if self.random.random() < RESET or self.weight.max() > 1e9:
                self.weight = self.first_weight.copy()
        if best > -np.inf:
            number = int(starts.searchsorted(column, side="right")) - 1
            other = others[number]
            mine, theirs = self.sets[node], self.sets[other]
            self.node[mine.pods[~mine.members(stays)]] = other
            self.node[theirs.pods[theirs.members(column - int(starts[number]))]] = node
            self._recount(node)
            self._recount(other)

    def _others(self, node: int) -> list[int]:
        others = [other for other in range(len(self.free)) if other != node]
        if len(others) > MOST_OTHERS:
            draws = np.maximum(self.slack.sum(axis=1), 0) + self.random.random(len(self.free))
            draws[node] = -np.inf
            others = draws.argpartition(-MOST_OTHERS)[-MOST_OTHERS:].tolist()
        return others

    def _gains(self, node: int, others: list[int], sizes: list[int], penalty: Floats) -> Floats:
        """Returns by how much each division reduces the penalty: a row for each set of pods that stay on the node, a column for
        each other node and each set of its pods that come to it."""
        stay = self.sets[node].need
        come = np.concatenate([self.sets[other].need for other in others], axis=1)
        slack, other_slack = self.slack[node], self.slack[others]
        left = (slack[:, None] + (stay[:, -1:] - stay))[:, :, None] - come[:, None]
        other_left = (other_slack + slack).T.repeat(sizes, axis=1)[:, None] - left
        np.minimum(left, 0, out=left)
        np.minimum(other_left, 0, out=other_left)
        gain: Floats = np.einsum("rsc,rc->sc", other_left, self.weight[others].T.repeat(sizes, axis=1))
        gain += (self.weight[node] @ left.reshape(len(slack), -1)).reshape(gain.shape)
        gain += (penalty[node] + penalty[others]).repeat(sizes)
        if not self.anywhere:
            gain[~self._allowed(node, others, sizes)] = -np.inf
        return gain

    def _allowed(self, node: int, others: list[int], sizes: list[int]) -> NDArray[np.bool_]:
        """Tells which divisions leave each pod on a node where it may run."""
        pods = self.sets[node].pods
        stays = _SETS[len(pods)].T[:, :, None] > 0
        leave = (stays | self.feasible[pods][:, others]).all(axis=1)
        come = [
            ~(_SETS[len(self.sets[other].pods)][~self.feasible[self.sets[other].pods, node]] > 0).any(axis=0)
            for other in others
        ]
        allowed: NDArray[np.bool_] = leave.repeat(sizes, axis=1) & np.concatenate(come)
        return allowed

    def _draw(self, node: int) -> _Sets:
        pods = self.pods_on[node]
        if len(pods) > MOST_MOVED:
            pods = pods[self.random.permutation(len(pods))[:MOST_MOVED]]
        return _Sets(pods, self.need[pods].T @ _SETS[len(pods)])

    def _recount(self, node: int) -> None:
        pods = self.pods_on[node] = np.flatnonzero(self.node == node)
        self.slack[node] = self.free[node] - self.need[pods].sum(axis=0)
        self.sets[node] = self._draw(node)
