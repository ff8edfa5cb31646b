"""Best first over the clusters that matter, with a bound that is never too low: exact, and quick where little is at odds."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .objective import NEVER, Objective, pooled_clusters
from .quotas import QuotaMatcher, satisfiable


class BranchAndBound:
    """Best first over the pool: apps in order, each app's clusters in the order of what they are worth to it alone."""

    def __init__(self, worth: Objective, sets: dict[int, NDArray[np.intp]]) -> None:
        self.worth = worth
        merged = worth.merged
        pool = pooled_clusters(sets)
        by_name = pool[np.argsort(worth.ranks[pool], kind="stable")]
        self.name_of = {int(c): i for i, c in enumerate(by_name)}
        # Who must be with a larger app comes after it: then its clusters are among those of the other.
        self.order = sorted(range(worth.apps), key=lambda a: -merged.replicas[a]) if merged.together else None
        self.steps = [a for a in (self.order or range(worth.apps)) for _ in range(merged.replicas[a])]
        self.lists: dict[int, list[int]] = {}
        self.sums: dict[int, list[int]] = {}
        self.extra: dict[int, int] = {}
        for app in range(worth.apps):
            values = worth.values(1 << app)
            mine = [int(c) for c in pool if values[c] > NEVER]
            mine.sort(key=lambda c: (-int(values[c]), self.name_of[c]))
            self.lists[app] = mine
            self.extra[app] = sum(max(0, b) for pair, b in worth.bonus.items() if app in pair)
            sums = [0]
            for c in mine:
                sums.append(sums[-1] + int(values[c]) + self.extra[app])
            self.sums[app] = sums
        self.values: dict[tuple[int, int], int] = {}
        # (minus the bound, name order, position in the app's list, worth so far, clusters so far)
        self.heap: list[tuple[int, tuple[int, ...], int, int, tuple[int, ...]]] | None = None
        self.cut = False  # by its bound, in the last run

    def value(self, cluster: int, bits: int) -> int:
        if not bits:
            return 0
        key = (cluster, bits)
        known = self.values.get(key)
        if known is None:
            known = self.values[key] = int(self.worth.values(bits)[cluster])
        return known

    def run(self, steps: int) -> list[list[int]] | None:
        """Goes on for so many steps from where it was cut off before."""
        merged = self.worth.merged
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
        if self.heap is None:
            self.heap = [(-after[0], (), -1, 0, ())]
        heap, looked = self.heap, 0
        self.cut = False
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
                if groups and not satisfiable(groups, [*of_app, cluster]):
                    continue
                gained = worth + now - self.value(cluster, bits)
                bound = gained + sums[at + 1 + left] - sums[at + 1] + after[first[step]]
                heappush(heap, (-bound, (*names, self.name_of[cluster]), at, gained, (*so_far, cluster)))
            if looked > steps:
                self.cut = True
                return None
        return None

    def _apart(self, bits: int, app: int) -> bool:
        return not any((a == app and bits >> b & 1) or (b == app and bits >> a & 1) for a, b in self.worth.merged.apart)

    def _result(self, so_far: tuple[int, ...]) -> list[list[int]]:
        chosen: list[list[int]] = [[] for _ in range(self.worth.apps)]
        for s, cluster in enumerate(so_far):
            chosen[self.steps[s]].append(cluster)
        return chosen

    def greedy(self) -> list[list[int]] | None:
        """One after the other, each step its best: what is left beyond all bounds."""
        merged = self.worth.merged
        bits_at: dict[int, int] = {}
        chosen: list[list[int]] = [[] for _ in range(self.worth.apps)]
        done: list[int] = []
        for app in self.order or range(self.worth.apps):
            seats = QuotaMatcher(merged.groups[app])
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
