"""The best choice by adding up: how much of what is wanted has been reached is a state, and each cluster leads from some
states to others, with every set of apps that it may take.

Complete and exact, and its time is known before: states times sets. It is short for eight apps with one replica each as
well as for two with many.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .objective import NEVER, Objective
from .quotas import Demand

#: Sums of values stay below this, so that what cannot be reached stays below half of NEVER.
_LARGEST = 1 << 61


class _Move(NamedTuple):
    bits: int
    worth: int
    rows: tuple[int, ...]


class DynamicProgram:
    """`exact`: what is best by these sums is the best; else they were too coarse for the last ties."""

    def __init__(self, worth: Objective, sets: dict[int, NDArray[np.intp]]) -> None:
        self.worth, self.sets = worth, sets
        self.wanted = Demand(worth.merged)
        self.states = prod(count + 1 for count in self.wanted.counts)
        self.moves = sum(self._count(bits, clusters) for bits, clusters in sets.items())
        self.exact = True

    def _apps(self, bits: int) -> list[int]:
        return [a for a in range(self.worth.apps) if bits >> a & 1]

    def _count(self, bits: int, clusters: NDArray[np.intp]) -> int:
        counted = [one for a in self._apps(bits) for one in self.worth.merged.groups[a]]
        if not counted:
            return int(clusters.size)
        ways = [np.sum([g.mask[clusters] for g in one], axis=0, dtype=np.float64) for one in counted]
        return int(np.prod(ways, axis=0).sum())

    def best(self) -> list[list[int]] | None:
        """The best choice; None: there is none."""
        worth, wanted = self.worth, self.wanted
        moves: dict[int, list[_Move]] = {}
        most = 0
        for bits, clusters in self.sets.items():
            apps = self._apps(bits)
            for cluster, value in zip(clusters.tolist(), worth.values(bits)[clusters].tolist(), strict=True):
                most = max(most, abs(value))
                moves.setdefault(cluster, []).extend(_Move(bits, value, w) for w in wanted.ways(apps, cluster))
        shift = max(0, (most * (sum(worth.merged.replicas) + 1)).bit_length() - _LARGEST.bit_length() + 1)
        self.exact = shift == 0
        reached = np.full([count + 1 for count in wanted.counts], NEVER, dtype=np.int64)
        reached[(0,) * reached.ndim] = 0
        # The first by name come last, so that of equals they are what is taken.
        order = sorted((c for c in moves if moves[c]), key=lambda c: -int(worth.ranks[c]))
        taken: list[NDArray[np.uint16]] = []
        for cluster in order:
            here = moves[cluster]
            # The first app goes to the first cluster, as far as that is all the same.
            here.sort(key=lambda move: [not move.bits >> a & 1 for a in range(worth.apps)])
            after = reached.copy()
            took = np.zeros(reached.shape, dtype=np.uint8 if len(here) < 256 else np.uint16)
            for number in range(len(here), 0, -1):
                move = here[number - 1]
                upper, lower = [slice(None)] * reached.ndim, [slice(None)] * reached.ndim
                for row in move.rows:
                    upper[row], lower[row] = slice(1, None), slice(-1)
                sums = reached[tuple(lower)] + (move.worth >> shift)
                target = after[tuple(upper)]
                better = sums >= target
                np.copyto(target, sums, where=better)
                np.copyto(took[tuple(upper)], number, where=better)
            reached = after
            taken.append(took)
        state = list(wanted.counts)
        if reached[tuple(state)] <= NEVER // 2:
            return None
        chosen: list[list[int]] = [[] for _ in range(worth.apps)]
        for cluster, took in zip(reversed(order), reversed(taken), strict=True):
            number = int(took[tuple(state)])
            if number:
                move = moves[cluster][number - 1]
                for row in move.rows:
                    state[row] -= 1
                for app in self._apps(move.bits):
                    chosen[app].append(cluster)
        return worth.ordered(chosen)
