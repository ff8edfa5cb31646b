"""How classes of clusters could take what is wanted if clusters came in fractions: linear programs, exact in what they deny.

The simplex method, phase one only; columns (a class takes a set of apps, each app in one seat of every controller) are
priced, never listed. That there is no way is believed only after the dual, in whole numbers, has proven it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .objective import NEVER

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask2 = NDArray[np.bool_]
Figure = TypeVar("Figure", np.float64, np.int64)

TINY = 1e-6
_NOTHING = 1e-9
#: Pivots until the basis is inverted anew, and pivots without progress until columns enter by chance, so that none cycles.
_AFRESH = 64
_STALLED = 30
#: Duals are rounded to this part before they have to prove something.
_PARTS = float(1 << 24)
#: A pivot costs one, and one more for each so many figures of its table.
_TABLE = 10_000


class Undecided:
    """Neither found nor proven that there is none."""


class Subproblem(NamedTuple):
    """A question: what each row wants, and classes or parts of them with how many clusters each, and their sets."""

    wants: Ints
    of: NDArray[np.intp]
    counts: Ints
    may: Mask2  # parts x sets


class Assignment(NamedTuple):
    part: int
    number: int  # of the set
    rows: list[int]
    much: float


class _Column(NamedTuple):
    part: int
    number: int
    rows: list[int]


class LpRelaxation:
    def __init__(self, rows: list[list[list[int]]], inside: Ints, seats: Mask2, seed: int = 0) -> None:
        """`rows` per app and controller, `inside` says of each set (apps x sets) who is in it, `seats` of each row for
        which classes it counts."""
        self.rows, self.inside, self.seats = rows, inside, seats
        self.chance = np.random.default_rng(seed)
        self.pivots = 0  # left

    def solve(self, part: Subproblem) -> list[Assignment] | Undecided | None:
        rows, parts = part.wants.size, part.counts.size
        size = rows + parts
        if not np.all(part.may.any(axis=1)):
            return None
        goal = np.concatenate((part.wants, part.counts)).astype(np.float64)
        # At first all clusters take the first set they may, mostly none, and what is wanted is made up.
        columns: list[_Column | None] = [None] * rows
        basis = np.eye(size)
        for where, number in enumerate(part.may.argmax(axis=1).tolist()):
            column = self._column(part, where, number, np.zeros(rows))
            columns.append(column)
            basis[column.rows, rows + where] = 1.0
        basis[range(rows), range(rows)] = np.where(goal[:rows] >= basis[:rows, rows:] @ part.counts, 1.0, -1.0)
        cost = np.concatenate((np.ones(rows), np.zeros(parts)))
        inverse = np.linalg.inv(basis)
        level = inverse @ goal
        last, since, done = np.inf, 0, 0
        while (missing := float(cost @ level)) > TINY / 100:
            if self.pivots <= 0:
                return Undecided()
            prices = cost @ inverse
            gains = np.where(part.may, self._priced(part, prices[:rows]) + prices[rows:, None], -np.inf)
            since = 0 if missing < last - _NOTHING else since + 1
            last = min(last, missing)
            at = int(gains.argmax())
            if since >= _STALLED:
                better = np.flatnonzero(gains > _NOTHING)
                at = int(self.chance.choice(better)) if better.size else at
            where, number = divmod(at, gains.shape[1])
            if gains[where, number] <= _NOTHING:
                return None if self._proven(part, prices[:rows]) else Undecided()
            self.pivots -= 1 + size * size // _TABLE
            column = self._column(part, where, number, prices[:rows])
            enters = np.zeros(size)
            enters[column.rows] = 1.0
            enters[rows + where] = 1.0
            step = inverse @ enters
            ratios = np.full(size, np.inf)
            np.divide(np.maximum(level, 0.0), step, out=ratios, where=step > TINY)
            leaves = int((ratios - cost * _NOTHING).argmin())  # what is made up goes first
            if not np.isfinite(ratios[leaves]):
                return Undecided()
            columns[leaves], cost[leaves] = column, 0.0
            basis[:, leaves] = enters
            done += 1
            if done % _AFRESH == 0:
                inverse = np.linalg.inv(basis)
                level = inverse @ goal
            else:
                pivot = inverse[leaves] / step[leaves]
                much = level[leaves] / step[leaves]
                inverse -= np.outer(step, pivot)
                inverse[leaves] = pivot
                level -= step * much
                level[leaves] = much
        return [
            Assignment(*c, much)
            for c, much in zip(columns, level.tolist(), strict=True)
            if c is not None and much > TINY
        ]

    def _priced(self, part: Subproblem, duals: NDArray[Figure]) -> NDArray[Figure]:
        """What each set would bring in each part, every app in the best of its seats there."""
        apps: list[NDArray[Figure]] = []
        lowest = duals.min(initial=0)
        for controllers in self.rows:
            brings = np.zeros(part.of.size, dtype=duals.dtype)
            for rows in controllers:
                if len(rows) == 1:
                    brings += duals[rows[0]]
                else:
                    brings += np.where(self.seats[rows][:, part.of], duals[rows, None], lowest).max(axis=0)
            apps.append(brings)
        return np.stack(apps, axis=1) @ self.inside.astype(duals.dtype)

    def _column(self, part: Subproblem, where: int, number: int, duals: Floats) -> _Column:
        of = int(part.of[where])
        rows = [
            max((r for r in rows if self.seats[r, of]), key=lambda r: float(duals[r]))
            for app, controllers in enumerate(self.rows)
            if self.inside[app, number]
            for rows in controllers
        ]
        return _Column(where, number, rows)

    def _proven(self, part: Subproblem, duals: Floats) -> bool:
        """Whether these duals prove in whole numbers that all parts together bring less than is wanted."""
        whole = np.rint(duals * _PARTS).astype(np.int64)
        most = np.where(part.may, self._priced(part, whole), NEVER).max(axis=1)
        return int(whole @ part.wants) > int(most @ part.counts)
