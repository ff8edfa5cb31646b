"""The choice: for each app its number of clusters, by stay, score, room left and name, in this order and exact.

A cluster that takes the set T of apps is worth V(T), whatever happens elsewhere, and a choice is worth the sum. So an
optimum exists among the best R clusters for each T (R = all replicas together): one outside could be swapped for one of
them that is free. On that small pool a best-first search with an admissible bound is complete; it is cut off only
beyond its bounds, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .answers import Group
from .merge import Merged
from .sets import Mask

Values = NDArray[np.int64]

NEVER = -(1 << 62)
_NOBODY = np.zeros(0, dtype=np.intp)
_STAY = 56  # bits: stay above score above room, so that sums never carry from one into the next (8 apps)
_SCORE = 25
_SCORE_STEPS = float(1 << 24)
_ROOM_STEPS = float(1 << 20)

#: Complete up to these; beyond, what is found first counts.
MAX_APPS = 8
MAX_PLACES = 64
#: Children looked at before the search gives up (about a microsecond each).
STEPS = 60_000

#: A cluster and the apps that did not fit there together.
Nogood = tuple[int, frozenset[int]]


@dataclass(slots=True)
class Room:
    """Summed free and allocatable of the asked resources per cluster (rows as in `needs`), and what each app needs."""

    free: NDArray[np.float64]
    allocatable: NDArray[np.float64]
    needs: NDArray[np.float64]  # apps x resources


@dataclass(slots=True)
class Choice:
    clusters: list[list[int]]  # per app, best first
    scores: list[float]  # per app, the mean over its clusters
    proven: bool = True  # no better one exists


@dataclass(slots=True)
class NoChoice:
    """`short`: apps with fewer clusters than replicas, and how many they have, room by sums included. `cut`: the search
    ended at its bound, there may be one."""

    short: dict[int, int] = field(default_factory=dict)
    cut: bool = False


class _Search:
    def __init__(
        self,
        merged: Merged,
        room: Room,
        ranks: NDArray[np.int64],
        stay: Sequence[Mask | None],
        held: Sequence[Mask | None],
        nogoods: Iterable[Nogood],
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
        self.cut = False

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

    def table(self, bits: int) -> Values:
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

    def alone(self) -> list[list[int]] | None:
        """Each app's best without looking at the others: an upper bound, and the answer where they do not meet. For
        one controller's groups the greedy order is optimal (their systems of representatives are a matroid)."""
        chosen: list[list[int]] = []
        for app, wanted in enumerate(self.merged.replicas):
            values = self.table(1 << app)
            groups = self.merged.groups[app]
            if not groups:
                mine = self.best(values, wanted).tolist()
            elif len(groups) == 1:
                mine = []
                seats = _Seats(groups)
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

    def pool(self) -> NDArray[np.intp]:
        """The best R clusters for each set of apps, and within it for each way of being in counted groups."""
        places = sum(self.merged.replicas)
        largest = self.apps if self.apps <= MAX_APPS else 2
        parts = self._signatures()
        keep: list[NDArray[np.intp]] = []
        for many in range(1, largest + 1):
            for apps in combinations(range(self.apps), many):
                # Sets that may not stand at the end count as parts of ones that may, so they need no pool of their own,
                # except where larger ones were left out.
                if not self.allowed(apps) and self.apps <= MAX_APPS:
                    continue
                values = self.table(sum(1 << a for a in apps))
                if parts is None:
                    keep.append(self.best(values, places))
                else:
                    keep.extend(self.best(np.where(part, values, NEVER), places) for part in parts)
        return np.unique(np.concatenate(keep)) if keep else np.zeros(0, dtype=np.intp)

    def _signatures(self) -> list[Mask] | None:
        masks = [g.mask for app in self.merged.groups for one in app for g in one]
        if not masks:
            return None
        code = np.unique(np.stack(masks), axis=1, return_inverse=True)[1].reshape(-1)
        return [code == i for i in range(int(code.max()) + 1)]


class _Seats:
    """Counted groups of controllers: which clusters can all be seated, each in one group of every controller."""

    def __init__(self, groups: list[list[Group]]) -> None:
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


def _seatable(groups: list[list[Group]], clusters: Iterable[int]) -> bool:
    seats = _Seats(groups)
    return all(seats.take(c) for c in clusters)


class _Walk:
    """Best first over the pool: apps in order, each app's clusters in the order of what they are worth to it alone."""

    def __init__(self, search: _Search, pool: NDArray[np.intp]) -> None:
        self.search = search
        merged = search.merged
        by_name = pool[np.argsort(search.ranks[pool], kind="stable")]
        self.name_of = {int(c): i for i, c in enumerate(by_name)}
        # Who must be with a larger app comes after it: then its clusters are among those of the other.
        self.order = sorted(range(search.apps), key=lambda a: -merged.replicas[a]) if merged.together else None
        self.steps = [a for a in (self.order or range(search.apps)) for _ in range(merged.replicas[a])]
        self.lists: dict[int, list[int]] = {}
        self.sums: dict[int, list[int]] = {}
        self.extra: dict[int, int] = {}
        for app in range(search.apps):
            values = search.table(1 << app)
            mine = [int(c) for c in pool if values[c] > NEVER]
            mine.sort(key=lambda c: (-int(values[c]), self.name_of[c]))
            self.lists[app] = mine
            self.extra[app] = sum(max(0, b) for pair, b in search.bonus.items() if app in pair)
            sums = [0]
            for c in mine:
                sums.append(sums[-1] + int(values[c]) + self.extra[app])
            self.sums[app] = sums
        self.worth: dict[tuple[int, int], int] = {}

    def value(self, cluster: int, bits: int) -> int:
        if not bits:
            return 0
        key = (cluster, bits)
        known = self.worth.get(key)
        if known is None:
            known = self.worth[key] = int(self.search.table(bits)[cluster])
        return known

    def run(self, steps: int) -> list[list[int]] | None:
        search, merged = self.search, self.search.merged
        total = len(self.steps)
        first = [0] * (total + 1)  # where each app's run of steps ends
        for i in range(total - 1, -1, -1):
            first[i] = first[i + 1] if i + 1 < total and self.steps[i + 1] == self.steps[i] else i + 1
        after = [0] * (total + 1)  # bound of all apps that begin at or after this step
        for i in range(total - 1, -1, -1):
            starts = i == 0 or self.steps[i - 1] != self.steps[i]
            app = self.steps[i]
            most = self.sums[app][min(merged.replicas[app], len(self.lists[app]))] if starts else 0
            after[i] = after[i + 1] + most
        partners: dict[int, list[int]] = {}
        for i, app in enumerate(self.steps):
            if i == 0 or self.steps[i - 1] != app:
                partners[app] = [
                    b for pair in merged.together if app in pair for b in pair if b != app and b in partners
                ]
        # (minus the bound, name order, position in the app's list, worth so far, clusters so far)
        heap: list[tuple[int, tuple[int, ...], int, int, tuple[int, ...]]] = [(-after[0], (), -1, 0, ())]
        looked = 0
        while heap:
            _, names, last, worth, so_far = heappop(heap)
            step = len(so_far)
            if step == total:
                return self._result(so_far)
            app = self.steps[step]
            bits_at: dict[int, int] = {}
            for s, c in enumerate(so_far):
                bits_at[c] = bits_at.get(c, 0) | 1 << self.steps[s]
            begins = step == 0 or self.steps[step - 1] != app
            begin = 0 if begins else last + 1
            mine, sums = self.lists[app], self.sums[app]
            left = first[step] - step - 1
            groups = merged.groups[app]
            of_app = [] if begins else [c for s, c in enumerate(so_far) if self.steps[s] == app]
            for at in range(begin, len(mine) - left):
                cluster = mine[at]
                looked += 1
                bits = bits_at.get(cluster, 0)
                if any(not bits >> p & 1 for p in partners[app]):
                    continue
                now = self.value(cluster, bits | 1 << app)
                if now == NEVER or (bits and not self._apart(bits, app)):
                    continue
                if groups and not _seatable(groups, [*of_app, cluster]):
                    continue
                gained = worth + now - self.value(cluster, bits)
                bound = gained + sums[at + 1 + left] - sums[at + 1] + after[first[step]]
                heappush(heap, (-bound, (*names, self.name_of[cluster]), at, gained, (*so_far, cluster)))
            if looked > steps:
                search.cut = True
                return None
        return None

    def _apart(self, bits: int, app: int) -> bool:
        return not any(
            (a == app and bits >> b & 1) or (b == app and bits >> a & 1) for a, b in self.search.merged.apart
        )

    def _result(self, so_far: tuple[int, ...]) -> list[list[int]]:
        chosen: list[list[int]] = [[] for _ in range(self.search.apps)]
        for s, cluster in enumerate(so_far):
            chosen[self.steps[s]].append(cluster)
        return chosen

    def greedy(self) -> list[list[int]] | None:
        """One after the other, each step its best: what is left when the search is beyond its bounds."""
        merged = self.search.merged
        bits_at: dict[int, int] = {}
        chosen: list[list[int]] = [[] for _ in range(self.search.apps)]
        done: list[int] = []
        for app in self.order or range(self.search.apps):
            seats = _Seats(merged.groups[app])
            partners = [b for b in done if (min(app, b), max(app, b)) in merged.together]
            options = []
            for at, cluster in enumerate(self.lists[app]):
                bits = bits_at.get(cluster, 0)
                now = self.value(cluster, bits | 1 << app)
                if now == NEVER or not self._apart(bits, app) or any(not bits >> p & 1 for p in partners):
                    continue
                options.append((self.value(cluster, bits) - now, at, cluster))
            for _, _, cluster in sorted(options):
                if len(chosen[app]) < merged.replicas[app] and seats.take(cluster):
                    chosen[app].append(cluster)
                    bits_at[cluster] = bits_at.get(cluster, 0) | 1 << app
            if len(chosen[app]) < merged.replicas[app]:
                return None
            done.append(app)
        return chosen


def choose(
    merged: Merged,
    room: Room,
    ranks: NDArray[np.int64],
    *,
    stay: Sequence[Mask | None] | None = None,
    held: Sequence[Mask | None] | None = None,
    nogoods: Iterable[Nogood] = (),
    steps: int = STEPS,
) -> Choice | NoChoice:
    """`ranks` orders clusters by name; `stay` are the clusters where an app runs already, which come first; `held`
    those of them where it is unchanged and so needs no new room; `nogoods` failed the joint fit."""
    apps = len(merged.masks)
    search = _Search(merged, room, ranks, stay or [None] * apps, held or [None] * apps, nogoods)
    if merged.clashes:
        return NoChoice()
    chosen = search.alone()
    if chosen is None:
        have = [int(np.count_nonzero(search.table(1 << a) > NEVER)) for a in range(apps)]
        short = {a: have[a] for a in range(apps) if have[a] < merged.replicas[a]}
        if short:
            return NoChoice(short=short)
    if (
        chosen is not None
        and not merged.together
        and not any(b > 0 for b in merged.bonus.values())
        and _disjoint(chosen)
    ):
        return _choice(merged, chosen, proven=True)
    walk = _Walk(search, search.pool())
    found: list[list[int]] | None = None
    if len(walk.steps) <= MAX_PLACES:
        found = walk.run(steps)
    else:
        search.cut = True
    if found is None and search.cut:
        found = walk.greedy()
        return NoChoice(cut=True) if found is None else _choice(merged, found, proven=False)
    if found is None:
        return NoChoice(cut=apps > MAX_APPS)
    return _choice(merged, found, proven=apps <= MAX_APPS)


def _disjoint(chosen: list[list[int]]) -> bool:
    if len(chosen) == 1:
        return True
    flat = [c for mine in chosen for c in mine]
    return len(set(flat)) == len(flat)


def _choice(merged: Merged, chosen: list[list[int]], *, proven: bool) -> Choice:
    means = []
    for app, clusters in enumerate(chosen):
        scores = merged.scores[app]
        means.append(float(scores[clusters].mean()) if scores is not None and clusters else 0.0)
    return Choice(chosen, means, proven)
