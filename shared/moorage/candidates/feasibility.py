"""Whether there is a choice at all, over classes: clusters that may take the same sets of apps and are in the same counted
groups are one class, and only how many of it take which set matters.

Branching on how many of a class take a set, with relaxed questions at each branch. What is found is checked in whole
numbers, what is denied is proven in whole numbers: only the bound on pivots stands between a question and its answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .lp_relaxation import TINY, Assignment, LpRelaxation, Subproblem, Undecided
from .objective import NEVER, Objective, pooled_clusters
from .quotas import Demand, satisfiable

#: Tables grow with the square: of more classes than these, those that may take most sets are looked at.
_MAX_CLASSES = 640
#: What is off in a relaxed answer concerns few classes. They are tried alone, then with so many others, so long.
_OTHERS = (0, 6, 20)
_NEARBY = 400

Takes = list[tuple[int, int, int]]  # class, number of the set, how many


class ClusterClasses:
    def __init__(self, worth: Objective, sets: dict[int, NDArray[np.intp]]) -> None:
        self.worth, self.pool = worth, pooled_clusters(sets)
        wanted = Demand(worth.merged)
        pool = self.pool
        self.bits = [0, *sets]
        self.inside = np.array([[b >> a & 1 for b in self.bits] for a in range(worth.apps)], dtype=np.int64)
        may = np.array([np.ones(pool.size, dtype=np.bool_), *(worth.values(b)[pool] > NEVER for b in sets)])
        for app, controllers in enumerate(wanted.rows):
            for rows in controllers:
                masks = [m[pool] for r in rows if (m := wanted.masks[r]) is not None]
                if masks:  # without a seat it may not be there at all
                    may &= ~np.outer(self.inside[app] > 0, ~np.any(masks, axis=0))
        counted = [mask[pool] for mask in wanted.masks if mask is not None]
        features = np.packbits(np.concatenate((may, counted)) if counted else may, axis=0).T
        same = np.ascontiguousarray(features).view(np.dtype((np.void, features.shape[1]))).reshape(-1)
        _, first, self.code = np.unique(same, return_index=True, return_inverse=True)
        self.cut = first.size > _MAX_CLASSES
        self.kept = np.argsort(-may[:, first].sum(axis=0), kind="stable")[:_MAX_CLASSES]
        sizes = np.bincount(self.code, minlength=first.size)[self.kept]
        first = first[self.kept]
        seats = [np.ones(first.size, dtype=np.bool_) if m is None else m[pool[first]] for m in wanted.masks]
        self.relaxed = LpRelaxation(wanted.rows, self.inside, np.array(seats))
        self.whole = Subproblem(
            np.array(wanted.counts, dtype=np.int64),
            np.arange(first.size),
            np.minimum(sizes, sum(worth.merged.replicas)).astype(np.int64),
            may.T[first],
        )

    def solve(self, pivots: int) -> list[list[int]] | Undecided | None:
        """A choice, some choice; None: proven that there is none."""
        if not self.pool.size:
            return None
        self.relaxed.pivots = pivots
        takes = self._search(self.whole, pivots)
        if takes is None:
            return Undecided() if self.cut else None
        return takes if isinstance(takes, Undecided) else self._placed(takes)

    def _search(self, whole: Subproblem, pivots: int, inner: bool = False) -> Takes | Undecided | None:
        undecided = False
        stop = self.relaxed.pivots - pivots
        todo = [whole]
        while todo and self.relaxed.pivots > stop:
            part = todo.pop()
            relaxed = self.relaxed.solve(part)
            if relaxed is None:
                continue
            if isinstance(relaxed, Undecided):
                undecided = True
                continue
            much = np.zeros(part.may.shape)
            for t in relaxed:
                much[t.part, t.number] += t.much
            if np.abs(much - np.rint(much)).max() < TINY:  # seats then are whole by themselves
                return [(int(part.of[w]), n, round(float(much[w, n]))) for w, n in np.argwhere(much > TINY).tolist()]
            if not inner:
                found = self._nearby(part, relaxed, first=part is whole)
                if found is not None:
                    return found
            todo += _branches(part, much)
        return Undecided() if undecided or todo else None

    def _nearby(self, part: Subproblem, relaxed: list[Assignment], first: bool) -> Takes | None:
        """What is whole stays as it is; only the classes that are off, and a few others, are asked about again."""
        off = sorted({t.part for t in relaxed if abs(t.much - round(t.much)) > TINY})
        rest = np.setdiff1d(np.arange(part.of.size), off)
        for others in _OTHERS if first else _OTHERS[:1]:
            if rest.size <= others:
                break
            again = np.sort(np.concatenate((off, self.relaxed.chance.permutation(rest)[:others]))).astype(np.intp)
            inside = np.isin(np.arange(part.of.size), again)
            wants = part.wants.copy()
            for t in relaxed:
                if not inside[t.part]:
                    wants[t.rows] -= round(t.much)
            found = self._search(
                Subproblem(wants, part.of[again], part.counts[again], part.may[again]), _NEARBY, inner=True
            )
            if isinstance(found, list):
                kept = [t for t in relaxed if not inside[t.part]]
                return [*found, *((int(part.of[t.part]), t.number, round(t.much)) for t in kept)]
        return None

    def _placed(self, takes: Takes) -> list[list[int]] | Undecided:
        """The best clusters of each class for the sets that it takes, and whether all of it is true."""
        worth, merged = self.worth, self.worth.merged
        chosen: list[list[int]] = [[] for _ in range(worth.apps)]
        left = np.ones(worth.size, dtype=np.bool_)
        for where, number, many in sorted(takes):
            bits = self.bits[number]
            if not bits or many < 1:
                continue
            members = self.pool[self.code == self.kept[where]]
            members = members[left[members]]
            values = np.full(worth.size, NEVER, dtype=np.int64)
            values[members] = worth.values(bits)[members]
            mine = worth.best(values, many)
            left[mine] = False
            for app in range(worth.apps):
                if bits >> app & 1:
                    chosen[app] += mine.tolist()
        for app, clusters in enumerate(chosen):
            if len(clusters) != merged.replicas[app] or not satisfiable(merged.groups[app], clusters):
                return Undecided()
        return worth.ordered(chosen)


def _branches(part: Subproblem, much: NDArray[np.float64]) -> list[Subproblem]:
    """At most so many of a class take a set, or at least one more: the likelier last, which is looked at first."""
    off = np.abs(much - np.rint(much))
    where, number = divmod(int(off.argmax()), off.shape[1])
    value, count, may = float(much[where, number]), int(part.counts[where]), part.may[where]
    least = int(np.floor(value + TINY))
    without, only = may.copy(), np.zeros_like(may)
    without[number], only[number] = False, True
    fewer = _split(part, where, (count - least, without), (least, may))
    more = _split(part, where, (count - least - 1, may), (least + 1, only))
    return [fewer, more] if value - least >= 0.5 else [more, fewer]


def _split(part: Subproblem, where: int, *pieces: tuple[int, NDArray[np.bool_]]) -> Subproblem:
    """The same with one of its parts in pieces."""
    some = [piece for piece in pieces if piece[0] > 0]
    return Subproblem(
        part.wants,
        np.concatenate((np.delete(part.of, where), np.full(len(some), part.of[where]))),
        np.concatenate((np.delete(part.counts, where), np.array([count for count, _ in some], dtype=np.int64))),
        np.concatenate((np.delete(part.may, where, axis=0), *(may[None] for _, may in some))),
    )
