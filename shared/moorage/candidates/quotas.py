"""Counted groups of controllers: which clusters have a seat each, in one group of every controller."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from .cluster_sets import Mask
from .decode import CountedGroup
from .merge import PlacementProblem


class Demand:
    """What has to be reached exactly: each app's number or, where controllers count groups, the number of each group.
    One cluster more for an app is one more in a row of every controller."""

    def __init__(self, merged: PlacementProblem) -> None:
        self.counts: list[int] = []
        self.masks: list[Mask | None] = []  # per row
        self.rows: list[list[list[int]]] = []  # per app and controller
        for app, replicas in enumerate(merged.replicas):
            mine: list[list[int]] = []
            for one in merged.groups[app]:
                mine.append(list(range(len(self.counts), len(self.counts) + len(one))))
                self.counts += [g.wanted for g in one]
                self.masks += [g.mask for g in one]
            if not mine:
                mine.append([len(self.counts)])
                self.counts.append(replicas)
                self.masks.append(None)
            self.rows.append(mine)

    def open(self, row: int, cluster: int) -> bool:
        mask = self.masks[row]
        return mask is None or bool(mask[cluster])

    def ways(self, apps: Iterable[int], cluster: int) -> list[tuple[int, ...]]:
        """Every way in which these apps can be seated there."""
        return list(product(*([r for r in one if self.open(r, cluster)] for a in apps for one in self.rows[a])))


class QuotaMatcher:
    def __init__(self, groups: list[list[CountedGroup]]) -> None:
        self.groups = groups
        self.seated: list[list[list[int]]] = [[[] for _ in one] for one in groups]

    def take(self, cluster: int) -> bool:
        before = [[list(seats) for seats in one] for one in self.seated]
        for number in range(len(self.groups)):
            if not self._seat(number, cluster, set()):
                self.seated = before
                return False
        return True

    def _seat(self, number: int, cluster: int, tried: set[int]) -> bool:
        for g, group in enumerate(self.groups[number]):
            if g in tried or not group.mask[cluster]:
                continue
            tried.add(g)
            seats = self.seated[number][g]
            if len(seats) < group.wanted:
                seats.append(cluster)
                return True
            for i, other in enumerate(seats):
                if self._seat(number, other, tried):
                    seats[i] = cluster
                    return True
        return False


def satisfiable(groups: list[list[CountedGroup]], clusters: Iterable[int]) -> bool:
    seats = QuotaMatcher(groups)
    return all(seats.take(c) for c in clusters)
