"""Finds the optimum by dynamic programming: a state is how much of each demand row is reached, and each cluster leads from
states to states with every set of apps that it may take.

Complete and exact, and the time is known beforehand: states times transitions. It is short for eight apps with one replica
each as well as for two apps with many.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .objective import INFEASIBLE, Objective, Pools, Values
from .quotas import Demand

#: Sums of values stay below this, so that unreachable states stay below half of INFEASIBLE.
_LARGEST = 1 << 61


class _Transition(NamedTuple):
    bits: int
    value: int
    rows: tuple[int, ...]


class DynamicProgram:
    """`exact` is False where values had to be rounded for their sums to fit, so that the last ties are not decided."""

    def __init__(self, objective: Objective, pools: Pools) -> None:
        self.objective, self.pools = objective, pools
        self.demand = Demand(objective.problem)
        self.states = prod(count + 1 for count in self.demand.counts)
        self.transitions = sum(self._count(bits, clusters) for bits, clusters in pools.items())
        self.exact = True

    def _apps(self, bits: int) -> list[int]:
        return [a for a in range(self.objective.apps) if bits >> a & 1]

    def _count(self, bits: int, clusters: NDArray[np.intp]) -> int:
        """Returns the number of transitions of these clusters with the set of apps."""
        counted = [groups for app in self._apps(bits) for groups in self.objective.problem.groups[app]]
        if not counted:
            return int(clusters.size)
        choices = [np.sum([group.mask[clusters] for group in groups], axis=0, dtype=np.float64) for groups in counted]
        return int(np.prod(choices, axis=0).sum())

    def best(self) -> list[list[int]] | None:
        """Returns the best choice; None is a proof that there is none."""
        transitions = self._transitions()
        largest = max((abs(t.value) for options in transitions.values() for t in options), default=0)
        total = sum(self.objective.problem.replicas) + 1
        shift = max(0, (largest * total).bit_length() - _LARGEST.bit_length() + 1)
        self.exact = shift == 0
        reached = np.full([count + 1 for count in self.demand.counts], INFEASIBLE, dtype=np.int64)
        reached[(0,) * reached.ndim] = 0
        # The first clusters by name come last: among equal choices the later ones win.
        order = sorted(transitions, key=lambda c: -int(self.objective.name_ranks[c]))
        taken: list[NDArray[np.uint16]] = []
        for cluster in order:
            reached, chosen = _advance(reached, transitions[cluster], shift)
            taken.append(chosen)
        if reached[tuple(self.demand.counts)] <= INFEASIBLE // 2:
            return None
        return self._backtrack(order, taken, transitions)

    def _transitions(self) -> dict[int, list[_Transition]]:
        """Returns per cluster every set of apps that it may take and the rows in which it counts."""
        transitions: dict[int, list[_Transition]] = {}
        for bits, clusters in self.pools.items():
            apps = self._apps(bits)
            values = self.objective.values(bits)[clusters].tolist()
            for cluster, value in zip(clusters.tolist(), values, strict=True):
                choices = [_Transition(bits, value, rows) for rows in self.demand.row_choices(apps, cluster)]
                if choices:
                    transitions.setdefault(cluster, []).extend(choices)
        # Among equal choices the first app gets the first cluster.
        for options in transitions.values():
            options.sort(key=lambda t: [not t.bits >> a & 1 for a in range(self.objective.apps)])
        return transitions

    def _backtrack(
        self, order: list[int], taken: list[NDArray[np.uint16]], transitions: dict[int, list[_Transition]]
    ) -> list[list[int]]:
        state = list(self.demand.counts)
        chosen: list[list[int]] = [[] for _ in range(self.objective.apps)]
        for cluster, numbers in zip(reversed(order), reversed(taken), strict=True):
            number = int(numbers[tuple(state)])
            if number:
                transition = transitions[cluster][number - 1]
                for row in transition.rows:
                    state[row] -= 1
                for app in self._apps(transition.bits):
                    chosen[app].append(cluster)
        return self.objective.by_value(chosen)


def _advance(reached: Values, options: list[_Transition], shift: int) -> tuple[Values, NDArray[np.uint16]]:
    """Returns the best value of each state after one more cluster, and the number (from 1) of the transition taken; 0:
    none."""
    after = reached.copy()
    taken = np.zeros(reached.shape, dtype=np.uint8 if len(options) < 256 else np.uint16)
    for number in range(len(options), 0, -1):
        transition = options[number - 1]
        upper, lower = [slice(None)] * reached.ndim, [slice(None)] * reached.ndim
        for row in transition.rows:
            upper[row], lower[row] = slice(1, None), slice(-1)
        sums = reached[tuple(lower)] + (transition.value >> shift)
        target = after[tuple(upper)]
        better = sums >= target
        np.copyto(target, sums, where=better)
        np.copyto(taken[tuple(upper)], number, where=better)
    return after, taken
