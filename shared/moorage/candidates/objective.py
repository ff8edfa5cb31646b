"""What a cluster is worth for each set of apps that it may take of a group, whatever happens elsewhere.

A choice is worth the sum. So an optimum exists among the best few clusters for each set of apps: one outside could be
swapped for one of them that is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .cluster_sets import Mask
from .merge import PlacementProblem
from .quotas import QuotaMatcher

Values = NDArray[np.int64]

NEVER = -(1 << 62)
_NOBODY = np.zeros(0, dtype=np.intp)
_STAY = 56  # bits: stay above score above room, so that sums never carry from one into the next (8 apps)
_SCORE = 25
_SCORE_STEPS = float(1 << 24)
_ROOM_STEPS = float(1 << 20)

#: Every set of so many apps is looked at; of more, only pairs.
MAX_APPS = 8

#: A cluster and the apps that did not fit there together.
FailedPlacement = tuple[int, frozenset[int]]


@dataclass(slots=True)
class FreeCapacity:
    """Summed free and allocatable of the asked resources per cluster (rows as in `needs`), and what each app needs."""

    free: NDArray[np.float64]
    allocatable: NDArray[np.float64]
    needs: NDArray[np.float64]  # apps x resources


class Objective:
    def __init__(
        self,
        merged: PlacementProblem,
        room: FreeCapacity,
        ranks: NDArray[np.int64],
        stay: Sequence[Mask | None],
        held: Sequence[Mask | None],
        nogoods: Iterable[FailedPlacement],
    ) -> None:
        self.merged, self.room, self.ranks = merged, room, ranks
        self.stay, self.held = stay, held
        self.apps = len(merged.masks)
        self.size = ranks.size
        self.nogoods: dict[int, list[frozenset[int]]] = {}
        for cluster, apps in nogoods:
            self.nogoods.setdefault(cluster, []).append(apps)
        self.bonus = {pair: round(b * _SCORE_STEPS) << _SCORE for pair, b in merged.bonus.items()}
        self.tables: dict[int, Values] = {}
        self.asking = [bool(needs.any()) for needs in room.needs]
        self.own: list[Values] = [self._own(a) for a in range(self.apps)]

    def _own(self, app: int) -> Values:
        """Stay and score of one app everywhere: the part of V that other apps do not change."""
        scores = self.merged.scores[app]
        if scores is None:
            value: Values = np.zeros(self.size, dtype=np.int64)
        else:
            value = np.rint(scores * _SCORE_STEPS).astype(np.int64) << _SCORE
        stay = self.stay[app]
        if stay is not None:
            value += stay.astype(np.int64) << _STAY
        return value

    def allowed(self, apps: tuple[int, ...]) -> bool:
        """Whether these apps may be all that a cluster takes of the group."""
        inside = set(apps)
        if any(a in inside and b in inside for a, b in self.merged.apart):
            return False
        count = self.merged.replicas
        for a, b in self.merged.together:
            if (a in inside and b not in inside and count[a] <= count[b]) or (
                b in inside and a not in inside and count[b] <= count[a]
            ):
                return False
        return True

    def values(self, bits: int) -> Values:
        """V of every cluster for the set of apps; NEVER where it may not or provably cannot be."""
        known = self.tables.get(bits)
        if known is not None:
            return known
        apps = tuple(a for a in range(self.apps) if bits >> a & 1)
        masks = self.merged.masks
        may = masks[apps[0]]
        value = self.own[apps[0]]
        if len(apps) > 1:
            for a in apps[1:]:
                may = may & masks[a]
                value = value + self.own[a]
            for pair in combinations(apps, 2):
                where = self.merged.conflicts.get(pair)
                if where is not None:
                    may = may & ~where
            if self.bonus:
                value = value + sum(self.bonus.get(pair, 0) for pair in combinations(apps, 2))
        share = self._share(apps)
        if share is not None:
            may = may & (share >= 0)
            # Once for each app that asks for anything: one that does not is as well off anywhere.
            asking = sum(map(self.asking.__getitem__, apps))
            value = value + np.rint(np.minimum(share, 1.0) * _ROOM_STEPS).astype(np.int64) * asking
        result: Values = np.where(may, value, NEVER)
        if self.nogoods:
            inside = frozenset(apps)
            for cluster, failed in self.nogoods.items():
                if any(f <= inside for f in failed):
                    result[cluster] = NEVER
        self.tables[bits] = result
        return result

    def _share(self, apps: tuple[int, ...]) -> NDArray[np.float64] | None:
        """Smallest over the asked resources of what stays free, as a share of allocatable; negative: proven short."""
        needs, free, whole = self.room.needs, self.room.free, self.room.allocatable
        together: NDArray[np.float64] = needs[apps[0]] if len(apps) == 1 else needs[list(apps)].sum(axis=0)
        asked = together.nonzero()[0]
        if not asked.size:
            return None
        need = together[asked, None]
        here = [a for a in apps if self.held[a] is not None]
        if not here:
            # Where nothing is allocatable nothing is free: the share is then as bad as it gets.
            return ((free[asked] - need) / np.maximum(whole[asked], 1.0)).min(axis=0)  # type: ignore[no-any-return]
        # What runs there already, unchanged, needs no new room.
        need = np.repeat(need, self.size, axis=1)
        for a in here:
            need -= needs[a][asked, None] * self.held[a]
        share = (free[asked] - need) / np.maximum(whole[asked], 1.0)
        return np.where(need > 0, share, np.maximum(share, 0.0)).min(axis=0)  # type: ignore[no-any-return]

    def best(self, values: Values, count: int) -> NDArray[np.intp]:
        """The `count` best clusters, best first, ties by name."""
        if count == 1 and values.size:  # most apps go to one cluster
            top = values.max()
            level = (values == top).nonzero()[0] if top > NEVER else _NOBODY
            return level[self.ranks[level].argmin()][None] if level.size > 1 else level
        valid = (values > NEVER).nonzero()[0]
        if valid.size > count:
            mine = values[valid]
            kth = np.partition(mine, valid.size - count)[valid.size - count]
            above, level = valid[mine > kth], valid[mine == kth]
            missing = count - above.size
            if level.size > missing:
                level = level[np.argpartition(self.ranks[level], missing - 1)[:missing]]
            valid = np.concatenate((above, level))
        if valid.size < 2:
            return valid
        return valid[np.lexsort((self.ranks[valid], -values[valid]))]

    def independent_optimum(self) -> list[list[int]] | None:
        """Each app's best without looking at the others: an upper bound, and the answer where they do not meet. For
        one controller's groups the greedy order is optimal (their systems of representatives are a matroid)."""
        chosen: list[list[int]] = []
        for app, wanted in enumerate(self.merged.replicas):
            values = self.values(1 << app)
            groups = self.merged.groups[app]
            if not groups:
                mine = self.best(values, wanted).tolist()
            elif len(groups) == 1:
                mine = []
                seats = QuotaMatcher(groups)
                order = np.flatnonzero(values > NEVER)
                for cluster in order[np.lexsort((self.ranks[order], -values[order]))].tolist():
                    if len(mine) < wanted and seats.take(cluster):
                        mine.append(cluster)
            else:
                return None
            if len(mine) < wanted:
                return None
            chosen.append(mine)
        return chosen

    def ordered(self, chosen: list[list[int]]) -> list[list[int]]:
        """Each app's clusters, best first."""
        ordered: list[list[int]] = []
        for app, mine in enumerate(chosen):
            values = self.values(1 << app)
            ordered.append(sorted(mine, key=lambda c: (-int(values[c]), int(self.ranks[c]))))
        return ordered

    def candidate_pools(self) -> dict[int, NDArray[np.intp]]:
        """For each set of apps that a cluster may take, the clusters that are enough to find an optimum: as many of the
        best as all replicas can use beside it, for each way of being in the counted groups of these apps."""
        places = sum(self.merged.replicas)
        found: dict[int, NDArray[np.intp]] = {}
        ways: dict[tuple[int, ...], list[Mask]] = {}
        for many in range(1, (self.apps if self.apps <= MAX_APPS else 2) + 1):
            for apps in combinations(range(self.apps), many):
                # Sets that may not stand at the end count as parts of ones that may, so they need no clusters of their
                # own, except where larger ones were left out.
                count = places - many + 1
                if count < 1 or (not self.allowed(apps) and self.apps <= MAX_APPS):
                    continue
                bits = sum(1 << a for a in apps)
                values = self.values(bits)
                counted = tuple(a for a in apps if self.merged.groups[a])
                if not counted:
                    found[bits] = self.best(values, count)
                    continue
                if counted not in ways:
                    ways[counted] = self._signatures(counted)
                parts = [self.best(np.where(part, values, NEVER), count) for part in ways[counted]]
                found[bits] = np.concatenate(parts)
        return found

    def _signatures(self, apps: tuple[int, ...]) -> list[Mask]:
        masks = [g.mask for a in apps for one in self.merged.groups[a] for g in one]
        code = np.unique(np.stack(masks), axis=1, return_inverse=True)[1].reshape(-1)
        return [code == i for i in range(int(code.max(initial=-1)) + 1)]


def pooled_clusters(sets: dict[int, NDArray[np.intp]]) -> NDArray[np.intp]:
    return np.unique(np.concatenate(list(sets.values()))) if sets else _NOBODY
