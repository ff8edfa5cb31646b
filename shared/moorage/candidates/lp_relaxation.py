"""Relaxes the question whether a choice exists to a linear program over classes of clusters, solved by column generation.

The master program is phase one of the simplex method. A column (a class takes a set of apps, each app counted in one row of
every controller) is priced and never listed. Infeasibility is reported only when the dual, rounded to integers, proves it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .objective import INFEASIBLE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask2 = NDArray[np.bool_]
Number = TypeVar("Number", np.float64, np.int64)

#: Amounts closer to an integer than this are integral.
TOLERANCE = 1e-6
_EPSILON = 1e-9
#: The basis is inverted again after this many pivots.
_REFACTOR_EVERY = 64
#: After this many pivots without progress, columns enter at random, so that the method does not cycle.
_STALLED = 30
#: Duals are rounded to multiples of 1 / this before they have to prove something.
_DUAL_SCALE = float(1 << 24)
#: A pivot costs one, and one more for each this many entries of the basis.
_ENTRIES_PER_PIVOT = 10_000


class Undecided:
    """The search ended at its bound: neither a solution nor a proof that there is none."""


class Subproblem(NamedTuple):
    """The demand of each row, and parts of classes with their number of clusters and the sets that they may take."""

    demand: Ints
    class_of: NDArray[np.intp]  # per part
    counts: Ints  # per part
    allowed: Mask2  # part by set


class Assignment(NamedTuple):
    """The amount of a part, in clusters, that takes a set and counts in these rows."""

    part: int
    set_number: int
    rows: list[int]
    amount: float


class _Column(NamedTuple):
    part: int
    set_number: int
    rows: list[int]


class _Basis:
    """The basis of phase one: artificial columns with cost 1 for the demand, and one column for each part.

    At first every part takes the first set that it may, mostly the empty one, and artificial columns meet the demand.
    """

    def __init__(self, problem: Subproblem, start: list[_Column]) -> None:
        rows, parts = problem.demand.size, problem.counts.size
        self.rows, self.size = rows, rows + parts
        self.rhs = np.concatenate((problem.demand, problem.counts)).astype(np.float64)
        self.columns: list[_Column | None] = [None] * rows + list(start)  # None: artificial
        self._matrix = np.eye(self.size)
        for column in start:
            self._matrix[column.rows, rows + column.part] = 1.0
        short = self.rhs[:rows] >= self._matrix[:rows, rows:] @ problem.counts
        self._matrix[range(rows), range(rows)] = np.where(short, 1.0, -1.0)
        self._cost = np.concatenate((np.ones(rows), np.zeros(parts)))
        self._pivots = 0
        self._refactor()

    def _refactor(self) -> None:
        self._inverse = np.linalg.inv(self._matrix)
        self.level = self._inverse @ self.rhs

    def infeasibility(self) -> float:
        """Returns the sum of the artificial columns; zero for a solution."""
        return float(self._cost @ self.level)

    def duals(self) -> Floats:
        return self._cost @ self._inverse

    def pivot(self, column: _Column) -> bool:
        """Lets the column enter; False where no column can leave for numeric reasons."""
        entering = np.zeros(self.size)
        entering[column.rows] = 1.0
        entering[self.rows + column.part] = 1.0
        direction = self._inverse @ entering
        ratios = np.full(self.size, np.inf)
        np.divide(np.maximum(self.level, 0.0), direction, out=ratios, where=direction > TOLERANCE)
        leaving = int((ratios - self._cost * _EPSILON).argmin())  # artificial columns leave first
        if not np.isfinite(ratios[leaving]):
            return False
        self.columns[leaving], self._cost[leaving] = column, 0.0
        self._matrix[:, leaving] = entering
        self._pivots += 1
        if self._pivots % _REFACTOR_EVERY == 0:
            self._refactor()
        else:
            row = self._inverse[leaving] / direction[leaving]
            amount = self.level[leaving] / direction[leaving]
            self._inverse -= np.outer(direction, row)
            self._inverse[leaving] = row
            self.level -= direction * amount
            self.level[leaving] = amount
        return True

    def assignments(self) -> list[Assignment]:
        """Returns the columns in use, artificial ones left out."""
        return [
            Assignment(*column, amount)
            for column, amount in zip(self.columns, self.level.tolist(), strict=True)
            if column is not None and amount > TOLERANCE
        ]


class LpRelaxation:
    """Solves subproblems over the same classes. `rows`: the demand rows per app and controller; `members` (app by set): the
    apps of each set; `eligible` (row by class): the classes that count in each row."""

    def __init__(self, rows: list[list[list[int]]], members: Ints, eligible: Mask2, seed: int = 0) -> None:
        self.rows, self.members, self.eligible = rows, members, eligible
        self.rng = np.random.default_rng(seed)
        self.pivots = 0  # left, for all subproblems together

    def solve(self, problem: Subproblem) -> list[Assignment] | Undecided | None:
        """Returns a fractional solution; None is a proof that there is none."""
        if not np.all(problem.allowed.any(axis=1)):
            return None
        rows = problem.demand.size
        no_duals = np.zeros(rows)
        first_sets = problem.allowed.argmax(axis=1).tolist()
        basis = _Basis(problem, [self._column(problem, part, s, no_duals) for part, s in enumerate(first_sets)])
        last, stalled = np.inf, 0
        while (infeasibility := basis.infeasibility()) > TOLERANCE / 100:
            if self.pivots <= 0:
                return Undecided()
            duals = basis.duals()
            gains = np.where(problem.allowed, self._priced(problem, duals[:rows]) + duals[rows:, None], -np.inf)
            stalled = 0 if infeasibility < last - _EPSILON else stalled + 1
            last = min(last, infeasibility)
            part, set_number = self._entering(gains, at_random=stalled >= _STALLED)
            if gains[part, set_number] <= _EPSILON:
                return None if self._proves_infeasible(problem, duals[:rows]) else Undecided()
            self.pivots -= 1 + basis.size * basis.size // _ENTRIES_PER_PIVOT
            if not basis.pivot(self._column(problem, part, set_number, duals[:rows])):
                return Undecided()
        return basis.assignments()

    def _entering(self, gains: Floats, at_random: bool) -> tuple[int, int]:
        """Returns the part and set of the column with the largest gain, or of a random one with any gain."""
        at = int(gains.argmax())
        if at_random:
            improving = np.flatnonzero(gains > _EPSILON)
            at = int(self.rng.choice(improving)) if improving.size else at
        part, set_number = divmod(at, int(gains.shape[1]))
        return part, set_number

    def _priced(self, problem: Subproblem, duals: NDArray[Number]) -> NDArray[Number]:
        """Returns the dual value of each set in each part, with every app in the best of its rows there."""
        apps: list[NDArray[Number]] = []
        lowest = duals.min(initial=0)
        for controllers in self.rows:
            value = np.zeros(problem.class_of.size, dtype=duals.dtype)
            for rows in controllers:
                if len(rows) == 1:
                    value += duals[rows[0]]
                else:
                    eligible = self.eligible[rows][:, problem.class_of]
                    value += np.where(eligible, duals[rows, None], lowest).max(axis=0)
            apps.append(value)
        return np.stack(apps, axis=1) @ self.members.astype(duals.dtype)

    def _column(self, problem: Subproblem, part: int, set_number: int, duals: Floats) -> _Column:
        """Returns the column of a part and a set with the best rows by these duals."""
        cluster_class = int(problem.class_of[part])
        rows = [
            max((r for r in rows if self.eligible[r, cluster_class]), key=lambda r: float(duals[r]))
            for app, controllers in enumerate(self.rows)
            if self.members[app, set_number]
            for rows in controllers
        ]
        return _Column(part, set_number, rows)

    def _proves_infeasible(self, problem: Subproblem, duals: Floats) -> bool:
        """Returns whether these duals, rounded to integers, prove that all parts together reach less than the demand."""
        rounded = np.rint(duals * _DUAL_SCALE).astype(np.int64)
        most = np.where(problem.allowed, self._priced(problem, rounded), INFEASIBLE).max(axis=1)
        return int(rounded @ problem.demand) > int(most @ problem.counts)
