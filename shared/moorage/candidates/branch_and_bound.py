"""Searches best first over the pooled clusters with an admissible bound: exact, and fast where apps hardly compete."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from .objective import INFEASIBLE, Objective, Pools, pooled_clusters
from .quotas import QuotaMatcher, satisfiable

#: A partial choice, in heap order: minus its bound, the name ranks of its clusters, the position of the last cluster in
#: its app's list, the value so far, the clusters so far.
_Node = tuple[int, tuple[int, ...], int, int, tuple[int, ...]]


class BranchAndBound:
    """Chooses one cluster per replica, app by app; each app's clusters in the order of their value to it alone."""

    def __init__(self, objective: Objective, pools: Pools) -> None:
        self.objective, self.problem = objective, objective.problem
        apps, replicas = range(objective.apps), self.problem.replicas
        # An app that must be with a larger one comes after it: its clusters are then among those of the larger one.
        self.order: Sequence[int] = sorted(apps, key=lambda a: -replicas[a]) if self.problem.together else apps
        self.app_at = [a for a in self.order for _ in range(replicas[a])]  # per depth of the search
        pool = pooled_clusters(pools)
        by_name = pool[np.argsort(objective.name_ranks[pool], kind="stable")]
        self.name_rank = {int(c): i for i, c in enumerate(by_name)}
        self.ranked: dict[int, list[int]] = {}  # per app, its clusters by value
        self.prefix_sums: dict[int, list[int]] = {}  # per app, upper bounds of the value of its first clusters
        for app in apps:
            values = objective.values(1 << app)
            ranked = [int(c) for c in pool if values[c] > INFEASIBLE]
            ranked.sort(key=lambda c: (-int(values[c]), self.name_rank[c]))
            bonus = sum(max(0, b) for pair, b in objective.bonus.items() if app in pair)
            sums = [0]
            for c in ranked:
                sums.append(sums[-1] + int(values[c]) + bonus)
            self.ranked[app], self.prefix_sums[app] = ranked, sums
        self.partners = self._partners()
        self.app_end, self.bound_after = self._bounds()
        self.truncated = False  # whether the last run ended at its bound
        self._values: dict[tuple[int, int], int] = {}
        self._heap: list[_Node] = [(-self.bound_after[0], (), -1, 0, ())]

    def _partners(self) -> dict[int, list[int]]:
        """Returns per app the apps before it that must be on each of its clusters."""
        partners: dict[int, list[int]] = {}
        for app in dict.fromkeys(self.app_at):
            pairs = [pair for pair in self.problem.together if app in pair]
            partners[app] = [b for pair in pairs for b in pair if b != app and b in partners]
        return partners

    def _bounds(self) -> tuple[list[int], list[int]]:
        """Returns per depth where the app's replicas end, and an upper bound of all apps that begin there or later."""
        total = len(self.app_at)
        app_end, bound = [0] * (total + 1), [0] * (total + 1)
        for depth in range(total - 1, -1, -1):
            app = self.app_at[depth]
            last = depth + 1 == total or self.app_at[depth + 1] != app
            app_end[depth] = depth + 1 if last else app_end[depth + 1]
            bound[depth] = bound[depth + 1]
            if depth == 0 or self.app_at[depth - 1] != app:
                bound[depth] += self.prefix_sums[app][min(self.problem.replicas[app], len(self.ranked[app]))]
        return app_end, bound

    def value(self, cluster: int, bits: int) -> int:
        """Returns the value of a cluster for a set of apps."""
        if not bits:
            return 0
        key = (cluster, bits)
        known = self._values.get(key)
        if known is None:
            known = self._values[key] = int(self.objective.values(bits)[cluster])
        return known

    def run(self, steps: int) -> list[list[int]] | None:
        """Continues the search for about this many steps and returns the optimum. None is a proof that there is no choice,
        unless the search was `truncated`."""
        visited = 0
        self.truncated = False
        while self._heap:
            _, names, last, value, clusters = heappop(self._heap)
            if len(clusters) == len(self.app_at):
                return self._choice(clusters)
            visited += self._branch(names, last, value, clusters)
            if visited > steps:
                self.truncated = True
                return None
        return None

    def _branch(self, names: tuple[int, ...], last: int, value: int, clusters: tuple[int, ...]) -> int:
        """Pushes each feasible cluster for the next replica, and returns how many were examined."""
        depth = len(clusters)
        app = self.app_at[depth]
        ranked, sums, end = self.ranked[app], self.prefix_sums[app], self.app_end[depth]
        remaining = end - depth - 1
        groups, partners = self.problem.groups[app], self.partners[app]
        bits_at: dict[int, int] = {}
        for earlier, cluster in zip(self.app_at, clusters, strict=False):
            bits_at[cluster] = bits_at.get(cluster, 0) | 1 << earlier
        # The replicas of an app are interchangeable: each takes a cluster after that of the replica before it.
        first_replica = depth == 0 or self.app_at[depth - 1] != app
        siblings = [] if first_replica else [c for a, c in zip(self.app_at, clusters, strict=False) if a == app]
        positions = range(0 if first_replica else last + 1, len(ranked) - remaining)
        for at in positions:
            cluster = ranked[at]
            bits = bits_at.get(cluster, 0)
            if any(not bits >> p & 1 for p in partners):
                continue
            new = self.value(cluster, bits | 1 << app)
            if new == INFEASIBLE or (bits and not self._may_join(app, bits)):
                continue
            if groups and not satisfiable(groups, [*siblings, cluster]):
                continue
            total = value + new - self.value(cluster, bits)
            bound = total + sums[at + 1 + remaining] - sums[at + 1] + self.bound_after[end]
            heappush(self._heap, (-bound, (*names, self.name_rank[cluster]), at, total, (*clusters, cluster)))
        return len(positions)

    def _may_join(self, app: int, bits: int) -> bool:
        """Returns whether the app may be on a cluster with this set of apps."""
        return not any((a == app and bits >> b & 1) or (b == app and bits >> a & 1) for a, b in self.problem.apart)

    def _choice(self, clusters: tuple[int, ...]) -> list[list[int]]:
        chosen: list[list[int]] = [[] for _ in range(self.objective.apps)]
        for app, cluster in zip(self.app_at, clusters, strict=True):
            chosen[app].append(cluster)
        return chosen

    def greedy(self) -> list[list[int]] | None:
        """Gives each app in turn the clusters that lose the least: a valid choice where the search is too large, or None."""
        bits_at: dict[int, int] = {}
        chosen: list[list[int]] = [[] for _ in range(self.objective.apps)]
        placed: list[int] = []
        for app in self.order:
            quotas = QuotaMatcher(self.problem.groups[app])
            for cluster in self._greedy_order(app, placed, bits_at):
                if len(chosen[app]) < self.problem.replicas[app] and quotas.try_add(cluster):
                    chosen[app].append(cluster)
                    bits_at[cluster] = bits_at.get(cluster, 0) | 1 << app
            if len(chosen[app]) < self.problem.replicas[app]:
                return None
            placed.append(app)
        return chosen

    def _greedy_order(self, app: int, placed: list[int], bits_at: dict[int, int]) -> list[int]:
        """Returns the clusters that the app may still take, the largest gain first."""
        partners = [b for b in placed if (min(app, b), max(app, b)) in self.problem.together]
        options = []
        for at, cluster in enumerate(self.ranked[app]):
            bits = bits_at.get(cluster, 0)
            new = self.value(cluster, bits | 1 << app)
            if new == INFEASIBLE or not self._may_join(app, bits) or any(not bits >> p & 1 for p in partners):
                continue
            options.append((self.value(cluster, bits) - new, at, cluster))
        return [cluster for _, _, cluster in sorted(options)]
