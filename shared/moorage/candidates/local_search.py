"""Improves a valid choice by moving and exchanging apps between clusters, for problems too large to prove an optimum."""

from __future__ import annotations

from .objective import INFEASIBLE, Objective, Pools
from .quotas import satisfiable


def improve(objective: Objective, pools: Pools, chosen: list[list[int]], steps: int) -> tuple[int, list[list[int]]]:
    """Returns the value of a local optimum and the choice. `steps` bounds how many changes are evaluated."""
    search = _LocalSearch(objective, pools, chosen, steps)
    while search.steps > 0 and search.improve():
        pass
    value = sum(search.value(cluster, bits) for cluster, bits in search.bits_at.items())
    return value, objective.by_value(search.chosen())


class _LocalSearch:
    """A choice as the set of apps on each of its clusters, and the steps left."""

    def __init__(self, objective: Objective, pools: Pools, chosen: list[list[int]], steps: int) -> None:
        self.objective, self.pools, self.steps = objective, pools, steps
        self.bits_at: dict[int, int] = {}
        for app, clusters in enumerate(chosen):
            for cluster in clusters:
                self.bits_at[cluster] = self.bits_at.get(cluster, 0) | 1 << app

    def value(self, cluster: int, bits: int) -> int:
        if not bits:
            return 0
        return int(self.objective.values(bits)[cluster]) if bits in self.pools else INFEASIBLE

    def chosen(self) -> list[list[int]]:
        chosen: list[list[int]] = [[] for _ in range(self.objective.apps)]
        for cluster, bits in self.bits_at.items():
            for app in range(self.objective.apps):
                if bits >> app & 1:
                    chosen[app].append(cluster)
        return chosen

    def improve(self) -> bool:
        """Tries the changes of every cluster in use once; returns whether any was better."""
        improved = False
        for source in sorted(self.bits_at):
            bits = self.bits_at.get(source, 0)
            moves = {bits, *(1 << a for a in range(self.objective.apps) if bits >> a & 1)} - {0}
            for moved in sorted(moves):
                pool = self.pools[moved].tolist() if moved in self.pools else []
                for target in {*pool, *self.bits_at}:
                    there = self.bits_at.get(target, 0)
                    if target != source and self.bits_at.get(source, 0) == bits:
                        # Exchange everything that both have; or move one app from here to there.
                        if moved == bits:
                            improved |= self._try(source, there, target, bits)
                        if not there & moved and self.bits_at.get(source, 0) == bits:
                            improved |= self._try(source, bits & ~moved, target, there | moved)
        return improved

    def _try(self, source: int, source_bits: int, target: int, target_bits: int) -> bool:
        """Changes both clusters if that is better and the quotas still hold."""
        self.steps -= 1
        before = self.bits_at.get(source, 0), self.bits_at.get(target, 0)
        after = self.value(source, source_bits), self.value(target, target_bits)
        value_before = self.value(source, before[0]) + self.value(target, before[1])
        if self.steps < 0 or INFEASIBLE in after or sum(after) <= value_before:
            return False
        self._put(source, source_bits, target, target_bits)
        changed = (before[0] ^ source_bits) | (before[1] ^ target_bits)
        for app, clusters in enumerate(self.chosen()):
            groups = self.objective.problem.groups[app]
            if changed >> app & 1 and groups and not satisfiable(groups, clusters):
                self._put(source, before[0], target, before[1])
                return False
        return True

    def _put(self, source: int, source_bits: int, target: int, target_bits: int) -> None:
        for cluster, bits in ((source, source_bits), (target, target_bits)):
            if bits:
                self.bits_at[cluster] = bits
            else:
                self.bits_at.pop(cluster, None)
