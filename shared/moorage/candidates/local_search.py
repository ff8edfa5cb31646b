"""From a choice that is valid to a better one, by moving and exchanging what clusters take: for what is beyond proof."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .objective import NEVER, Objective
from .quotas import satisfiable


def improve(
    worth: Objective, sets: dict[int, NDArray[np.intp]], chosen: list[list[int]], steps: int
) -> tuple[int, list[list[int]]]:
    """What it is worth at the end, and the choice. `steps` bounds how many changes are looked at."""
    climb = _LocalSearch(worth, sets, chosen, steps)
    while climb.steps > 0 and climb.better():
        pass
    return sum(climb.value(c, bits) for c, bits in climb.at.items()), worth.ordered(climb.chosen())


class _LocalSearch:
    def __init__(
        self, worth: Objective, sets: dict[int, NDArray[np.intp]], chosen: list[list[int]], steps: int
    ) -> None:
        self.worth, self.sets, self.steps = worth, sets, steps
        self.at: dict[int, int] = {}
        for app, clusters in enumerate(chosen):
            for c in clusters:
                self.at[c] = self.at.get(c, 0) | 1 << app

    def value(self, cluster: int, bits: int) -> int:
        if not bits:
            return 0
        return int(self.worth.values(bits)[cluster]) if bits in self.sets else NEVER

    def chosen(self) -> list[list[int]]:
        chosen: list[list[int]] = [[] for _ in range(self.worth.apps)]
        for c, bits in self.at.items():
            for app in range(self.worth.apps):
                if bits >> app & 1:
                    chosen[app].append(c)
        return chosen

    def better(self) -> bool:
        """Whether one pass over all that is used found anything better."""
        found = False
        for one in sorted(self.at):
            bits = self.at.get(one, 0)
            parts = {bits, *(1 << a for a in range(self.worth.apps) if bits >> a & 1)} - {0}
            for part in sorted(parts):
                others = self.sets[part].tolist() if part in self.sets else []
                for other in {*others, *self.at}:
                    there = self.at.get(other, 0)
                    if other != one and self.at.get(one, 0) == bits:
                        # All of it for all of that; or one app more there, one less here.
                        if part == bits:
                            found |= self._try(one, there, other, bits)
                        if not there & part and self.at.get(one, 0) == bits:
                            found |= self._try(one, bits & ~part, other, there | part)
        return found

    def _try(self, one: int, bits: int, other: int, there: int) -> bool:
        self.steps -= 1
        before = self.at.get(one, 0), self.at.get(other, 0)
        now = self.value(one, bits), self.value(other, there)
        if self.steps < 0 or NEVER in now or sum(now) <= self.value(one, before[0]) + self.value(other, before[1]):
            return False
        self._put(one, bits, other, there)
        changed = (before[0] ^ bits) | (before[1] ^ there)
        for app, clusters in enumerate(self.chosen()):
            groups = self.worth.merged.groups[app]
            if changed >> app & 1 and groups and not satisfiable(groups, clusters):
                self._put(one, before[0], other, before[1])
                return False
        return True

    def _put(self, one: int, bits: int, other: int, there: int) -> None:
        for cluster, takes in ((one, bits), (other, there)):
            if takes:
                self.at[cluster] = takes
            else:
                self.at.pop(cluster, None)
