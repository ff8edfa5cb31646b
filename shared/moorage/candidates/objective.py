"""Evaluates clusters for sets of apps: the value of a cluster that takes a set of apps of a group, whatever the others take.

The value of a choice is the sum over its clusters. So the best few clusters for each set of apps contain an optimum: a
cluster outside them could be exchanged for one of them that is free. A set of apps is a bitmask, `bits`, of app numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from moorage.model.candidates import MAX_ORDER

from .cluster_sets import Mask
from .merge import PlacementProblem
from .quotas import QuotaMatcher

Values = NDArray[np.int64]
#: Per set of apps, the clusters among which an optimum can be found.
Pools = dict[int, NDArray[np.intp]]

INFEASIBLE = -(1 << 62)
_NO_CLUSTERS = np.zeros(0, dtype=np.intp)
# Bit positions of stay above the choice of alternatives above score above free share, far enough apart that sums of 8 apps never
# carry over.
STAY_BIT = 56
PREFERRED_BIT = 50
SCORE_BIT = 24
SCORE_STEPS = float(1 << 22)
SHARE_STEPS = float(1 << 20)

#: Up to this many apps every set of apps is considered; of more, only pairs.
MAX_APPS = 8

#: What an app has on clusters already, by resource as in `FreeCapacity`.
OwnRoom = Mapping[int, NDArray[np.float64]]

#: A cluster and the apps that did not fit there together.
FailedPlacement = tuple[int, frozenset[int]]


@dataclass(slots=True)
class FreeCapacity:
    """Free and allocatable sums of the requested resources per cluster (resource by cluster), and the needs of each app."""

    free: NDArray[np.float64]
    allocatable: NDArray[np.float64]
    needs: NDArray[np.float64]  # app by resource


class Objective:
    """Values by stay, then the choice of alternatives, then score, then the share of resources left free or the order that a
    controller gives. `current`: clusters where an app runs already;
    `own`: the room that it has where it runs; `failed`: placements that failed the joint fit."""

    def __init__(
        self,
        problem: PlacementProblem,
        capacity: FreeCapacity,
        name_ranks: NDArray[np.int64],
        current: Sequence[Mask | None],
        own: Sequence[OwnRoom],
        failed: Iterable[FailedPlacement],
    ) -> None:
        self.problem, self.capacity, self.name_ranks = problem, capacity, name_ranks
        self.current, self.own = current, own
        self.apps = len(problem.masks)
        self.size = name_ranks.size
        self.failed: dict[int, list[frozenset[int]]] = {}
        for cluster, apps in failed:
            self.failed.setdefault(cluster, []).append(apps)
        self.bonus = {pair: round(b * SCORE_STEPS) << SCORE_BIT for pair, b in problem.bonus.items()}
        self._values: dict[int, Values] = {}
        self._has_needs = [bool(needs.any()) for needs in capacity.needs]
        # Where nothing is allocatable nothing is free: dividing by 1 makes the share as bad as it gets.
        self._divisor = np.maximum(capacity.allocatable, 1.0)
        self._separate: list[Values] = [self._separate_values(app) for app in range(self.apps)]

    def _separate_values(self, app: int) -> Values:
        """Returns the value of one app on every cluster by stay and score: the part of the value that other apps do not
        change."""
        scores = self.problem.scores[app]
        if scores is None:
            values: Values = np.zeros(self.size, dtype=np.int64)
        else:
            values = np.rint(scores * SCORE_STEPS).astype(np.int64) << SCORE_BIT
        preferred = self.problem.preferred.get(app)
        if preferred is not None:
            values += preferred << PREFERRED_BIT
        order = self.problem.order.get(app)
        if order is not None:
            values += np.rint(order * (SHARE_STEPS / MAX_ORDER)).astype(np.int64)
        current = self.current[app]
        if current is not None:
            values += current.astype(np.int64) << STAY_BIT
        return values

    def is_allowed(self, apps: tuple[int, ...]) -> bool:
        """Returns whether a cluster may take exactly these apps of the group."""
        members = set(apps)
        if any(a in members and b in members for a, b in self.problem.apart):
            return False
        count = self.problem.replicas
        for a, b in self.problem.together:
            if (a in members and b not in members and count[a] <= count[b]) or (
                b in members and a not in members and count[b] <= count[a]
            ):
                return False
        return True

    def values(self, bits: int) -> Values:
        """Returns the value of every cluster for the set of apps; INFEASIBLE where it is forbidden or proven not to fit."""
        known = self._values.get(bits)
        if known is not None:
            return known
        apps = tuple(a for a in range(self.apps) if bits >> a & 1)
        feasible, value = self._shared_feasibility(apps), self._separate[apps[0]]
        for app in apps[1:]:
            value = value + self._separate[app]
        if len(apps) > 1 and self.bonus:
            value = value + sum(self.bonus.get(pair, 0) for pair in combinations(apps, 2))
        share = self._free_share(apps)
        if share is not None:
            feasible = feasible & (share >= 0)
            # Counted once per app that has needs, because an app without any is equally well off anywhere.
            weight = sum(self._has_needs[app] and app not in self.problem.order for app in apps)
            value = value + np.rint(np.minimum(share, 1.0) * SHARE_STEPS).astype(np.int64) * weight
        result: Values = np.where(feasible, value, INFEASIBLE)
        if self.failed:
            members = frozenset(apps)
            for cluster, failures in self.failed.items():
                if any(failure <= members for failure in failures):
                    result[cluster] = INFEASIBLE
        self._values[bits] = result
        return result

    def _shared_feasibility(self, apps: tuple[int, ...]) -> Mask:
        """Returns the clusters that all of these apps may take, and where no two of them are in conflict."""
        masks = self.problem.masks
        feasible = masks[apps[0]]
        for app in apps[1:]:
            feasible = feasible & masks[app]
        for pair in combinations(apps, 2):
            where = self.problem.conflicts.get(pair)
            if where is not None:
                feasible = feasible & ~where
        return feasible

    def _free_share(self, apps: tuple[int, ...]) -> NDArray[np.float64] | None:
        """Returns the smallest share of allocatable, over the requested resources, that stays free; negative: proven not
        to fit."""
        needs, free, divisor = self.capacity.needs, self.capacity.free, self._divisor
        total: NDArray[np.float64] = needs[apps[0]] if len(apps) == 1 else needs[list(apps)].sum(axis=0)
        requested = total.nonzero()[0]
        if not requested.size:
            return None
        need = total[requested, None]
        if requested.size < total.size:
            free, divisor = free[requested], divisor[requested]
        running = [a for a in apps if self.own[a]]
        if not running:
            return ((free - need) / divisor).min(axis=0)  # type: ignore[no-any-return]
        # An app need not find room for what it already has on a cluster.
        need = np.repeat(need, self.size, axis=1)
        for a in running:
            for cluster, amounts in self.own[a].items():
                need[:, cluster] -= np.minimum(needs[a], amounts)[requested]
        share = (free - need) / divisor
        return np.where(need > 0, share, np.maximum(share, 0.0)).min(axis=0)  # type: ignore[no-any-return]

    def best_clusters(self, values: Values, count: int) -> NDArray[np.intp]:
        """Returns the `count` best clusters, best first, ties by name."""
        return best_clusters(values, count, self.name_ranks)

    def independent_optimum(self) -> list[list[int]] | None:
        """Returns each app's best clusters without regard to the others: an upper bound, and the optimum where they do
        not meet. Greedy is optimal for the groups of one controller, because systems of distinct representatives are a
        matroid."""
        chosen: list[list[int]] = []
        for app, replicas in enumerate(self.problem.replicas):
            values = self.values(1 << app)
            groups = self.problem.groups[app]
            if len(groups) > 1:
                return None
            if groups:
                clusters = self._best_in_groups(values, QuotaMatcher(groups), replicas)
            else:
                clusters = self.best_clusters(values, replicas).tolist()
            if len(clusters) < replicas:
                return None
            chosen.append(clusters)
        return chosen

    def _best_in_groups(self, values: Values, quotas: QuotaMatcher, count: int) -> list[int]:
        """Returns the best clusters, added one by one as far as the quotas accept them."""
        chosen: list[int] = []
        for cluster in _sorted(np.flatnonzero(values > INFEASIBLE), values, self.name_ranks).tolist():
            if len(chosen) < count and quotas.try_add(cluster):
                chosen.append(cluster)
        return chosen

    def by_value(self, chosen: list[list[int]]) -> list[list[int]]:
        """Returns each app's clusters, best first."""
        ordered: list[list[int]] = []
        for app, clusters in enumerate(chosen):
            values = self.values(1 << app)
            ordered.append(sorted(clusters, key=lambda c: (-int(values[c]), int(self.name_ranks[c]))))
        return ordered

    def candidate_pools(self) -> Pools:
        """Returns, by set of apps that a cluster may take, enough clusters to find an optimum: as many of the best as all
        replicas can use beside it, for each combination of membership in the counted groups of these apps."""
        total = sum(self.problem.replicas)
        pools: Pools = {}
        signatures: dict[tuple[int, ...], list[Mask]] = {}
        for number in range(1, (self.apps if self.apps <= MAX_APPS else 2) + 1):
            for apps in combinations(range(self.apps), number):
                # A set that no cluster may end with is only a part of larger sets and needs no pool of its own, unless
                # the larger sets are not considered.
                count = total - number + 1
                if count < 1 or (not self.is_allowed(apps) and self.apps <= MAX_APPS):
                    continue
                bits = sum(1 << a for a in apps)
                values = self.values(bits)
                counted = tuple(a for a in apps if self.problem.groups[a])
                if not counted:
                    pools[bits] = self.best_clusters(values, count)
                    continue
                if counted not in signatures:
                    signatures[counted] = self._signatures(counted)
                parts = [self.best_clusters(np.where(part, values, INFEASIBLE), count) for part in signatures[counted]]
                pools[bits] = np.concatenate(parts)
        return pools

    def _signatures(self, apps: tuple[int, ...]) -> list[Mask]:
        """Partitions the clusters by their membership in the counted groups of these apps."""
        masks = [group.mask for app in apps for groups in self.problem.groups[app] for group in groups]
        code = np.unique(np.stack(masks), axis=1, return_inverse=True)[1].reshape(-1)
        return [code == i for i in range(int(code.max(initial=-1)) + 1)]


def best_clusters(values: Values, count: int, name_ranks: NDArray[np.int64]) -> NDArray[np.intp]:
    """Returns the `count` best clusters, best first, ties by name."""
    if count == 1 and values.size:  # most apps go to one cluster
        top = values.max()
        ties = (values == top).nonzero()[0] if top > INFEASIBLE else _NO_CLUSTERS
        return ties[name_ranks[ties].argmin()][None] if ties.size > 1 else ties
    feasible = (values > INFEASIBLE).nonzero()[0]
    if feasible.size > count:
        feasible_values = values[feasible]
        kth = np.partition(feasible_values, feasible.size - count)[feasible.size - count]
        above, ties = feasible[feasible_values > kth], feasible[feasible_values == kth]
        missing = count - above.size
        if ties.size > missing:
            ties = ties[np.argpartition(name_ranks[ties], missing - 1)[:missing]]
        feasible = np.concatenate((above, ties))
    return _sorted(feasible, values, name_ranks)


def _sorted(clusters: NDArray[np.intp], values: Values, name_ranks: NDArray[np.int64]) -> NDArray[np.intp]:
    """Returns the clusters by value, ties by name."""
    if clusters.size < 2:
        return clusters
    return clusters[np.lexsort((name_ranks[clusters], -values[clusters]))]


def pooled_clusters(pools: Pools) -> NDArray[np.intp]:
    """Returns all clusters of the pools, each once."""
    return np.unique(np.concatenate(list(pools.values()))) if pools else _NO_CLUSTERS
