"""Counted groups as quotas: matches clusters to the groups of every controller, each group with its exact number."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from .cluster_sets import Mask
from .decode import CountedGroup
from .merge import PlacementProblem


class Demand:
    """The numbers that a choice has to reach exactly, one row each: an app's replicas or, where controllers count groups,
    the number of each group. One more cluster for an app counts in one row of each of its controllers."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.counts: list[int] = []  # per row
        self.masks: list[Mask | None] = []  # per row, the clusters that count; None: every cluster
        self.rows: list[list[list[int]]] = []  # per app and controller
        for app, replicas in enumerate(problem.replicas):
            controllers: list[list[int]] = []
            for groups in problem.groups[app]:
                controllers.append(list(range(len(self.counts), len(self.counts) + len(groups))))
                self.counts += [group.wanted for group in groups]
                self.masks += [group.mask for group in groups]
            if not controllers:
                controllers.append([len(self.counts)])
                self.counts.append(replicas)
                self.masks.append(None)
            self.rows.append(controllers)

    def accepts(self, row: int, cluster: int) -> bool:
        mask = self.masks[row]
        return mask is None or bool(mask[cluster])

    def row_choices(self, apps: Iterable[int], cluster: int) -> list[tuple[int, ...]]:
        """Returns every combination of rows in which the cluster can count for these apps."""
        controllers = (rows for app in apps for rows in self.rows[app])
        return list(product(*([row for row in rows if self.accepts(row, cluster)] for rows in controllers)))


class QuotaMatcher:
    """Adds clusters one by one to a bipartite matching of clusters and groups, in every controller at once."""

    def __init__(self, groups: list[list[CountedGroup]]) -> None:
        self.groups = groups
        self._matched: list[list[list[int]]] = [[[] for _ in controller] for controller in groups]

    def try_add(self, cluster: int) -> bool:
        """Matches the cluster in every controller, or changes nothing and returns False."""
        before = [[list(clusters) for clusters in controller] for controller in self._matched]
        for number in range(len(self.groups)):
            if not self._augment(number, cluster, set()):
                self._matched = before
                return False
        return True

    def _augment(self, number: int, cluster: int, visited: set[int]) -> bool:
        """Finds an augmenting path: a group with a free place, or one whose cluster can move to another group."""
        for g, group in enumerate(self.groups[number]):
            if g in visited or not group.mask[cluster]:
                continue
            visited.add(g)
            matched = self._matched[number][g]
            if len(matched) < group.wanted:
                matched.append(cluster)
                return True
            for i, other in enumerate(matched):
                if self._augment(number, other, visited):
                    matched[i] = cluster
                    return True
        return False


def satisfiable(groups: list[list[CountedGroup]], clusters: Iterable[int]) -> bool:
    """Returns whether all these clusters can be matched together."""
    matcher = QuotaMatcher(groups)
    return all(matcher.try_add(cluster) for cluster in clusters)
