"""Decides whether any choice exists, over classes of clusters.

Clusters that may take the same sets of apps and are in the same counted groups form one class; only how many clusters of a
class take which set matters. The search branches on these numbers and solves a linear relaxation at each branch. Solutions
are verified in integers and infeasibility is proven in integers: only the bound on pivots can leave a question undecided.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .lp_relaxation import TOLERANCE, Assignment, LpRelaxation, Subproblem, Undecided
from .objective import INFEASIBLE, Objective, Pools, pooled_clusters
from .quotas import Demand, satisfiable

#: The basis grows with the square of the classes. Of more classes, those that may take the most sets are kept.
_MAX_CLASSES = 640
#: The fractional part of a relaxed solution concerns few classes. They are solved again alone, then with this many others,
#: with this many pivots.
_NEIGHBOURS = (0, 6, 20)
_NEIGHBOURHOOD_PIVOTS = 400

#: Class, number of the set, how many clusters of the class take it.
_IntegerSolution = list[tuple[int, int, int]]


class ClusterClasses:
    """The classes of the pooled clusters, and the demand as a subproblem over all of them."""

    def __init__(self, objective: Objective, pools: Pools) -> None:
        self.objective, self.pool = objective, pooled_clusters(pools)
        demand, pool = Demand(objective.problem), self.pool
        self.sets = [0, *pools]
        members = np.array([[bits >> a & 1 for bits in self.sets] for a in range(objective.apps)], dtype=np.int64)
        allowed = self._allowed(demand, members)
        counted = [mask[pool] for mask in demand.masks if mask is not None]
        features = np.packbits(np.concatenate((allowed, counted)) if counted else allowed, axis=0).T
        keys = np.ascontiguousarray(features).view(np.dtype((np.void, features.shape[1]))).reshape(-1)
        _, first, self.class_of = np.unique(keys, return_index=True, return_inverse=True)
        self.truncated = first.size > _MAX_CLASSES
        self.kept = np.argsort(-allowed[:, first].sum(axis=0), kind="stable")[:_MAX_CLASSES]
        sizes = np.bincount(self.class_of, minlength=first.size)[self.kept]
        first = first[self.kept]
        eligible = [np.ones(first.size, dtype=np.bool_) if m is None else m[pool[first]] for m in demand.masks]
        self.relaxation = LpRelaxation(demand.rows, members, np.array(eligible))
        self.root = Subproblem(
            np.array(demand.counts, dtype=np.int64),
            np.arange(first.size),
            np.minimum(sizes, sum(objective.problem.replicas)).astype(np.int64),
            allowed.T[first],
        )

    def _allowed(self, demand: Demand, members: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns the sets that each pooled cluster may take (set by cluster)."""
        pool = self.pool
        values = (self.objective.values(bits)[pool] > INFEASIBLE for bits in self.sets[1:])
        allowed = np.array([np.ones(pool.size, dtype=np.bool_), *values])
        for app, controllers in enumerate(demand.rows):
            for rows in controllers:
                masks = [m[pool] for r in rows if (m := demand.masks[r]) is not None]
                if masks:  # a cluster in none of the groups cannot take the app at all
                    allowed &= ~np.outer(members[app] > 0, ~np.any(masks, axis=0))
        return allowed

    def solve(self, pivots: int) -> list[list[int]] | Undecided | None:
        """Returns any choice; None is a proof that there is none."""
        if not self.pool.size:
            return None
        self.relaxation.pivots = pivots
        solution = self._search(self.root, pivots)
        if solution is None:
            return Undecided() if self.truncated else None
        return solution if isinstance(solution, Undecided) else self._choice(solution)

    def _search(
        self, root: Subproblem, pivots: int, neighbourhood: bool = False
    ) -> _IntegerSolution | Undecided | None:
        """Depth-first branch and bound below `root`, with at most this many pivots."""
        undecided = False
        stop = self.relaxation.pivots - pivots
        stack = [root]
        while stack and self.relaxation.pivots > stop:
            problem = stack.pop()
            relaxed = self.relaxation.solve(problem)
            if relaxed is None:
                continue
            if isinstance(relaxed, Undecided):
                undecided = True
                continue
            amounts = np.zeros(problem.allowed.shape)
            for a in relaxed:
                amounts[a.part, a.set_number] += a.amount
            if np.abs(amounts - np.rint(amounts)).max() < TOLERANCE:  # the rows are then integral by themselves
                used = np.argwhere(amounts > TOLERANCE).tolist()
                return [(int(problem.class_of[part]), s, round(float(amounts[part, s]))) for part, s in used]
            if not neighbourhood:
                solution = self._solve_neighbourhood(problem, relaxed, first=problem is root)
                if solution is not None:
                    return solution
            stack += _branches(problem, amounts)
        return Undecided() if undecided or stack else None

    def _solve_neighbourhood(
        self, problem: Subproblem, relaxed: list[Assignment], first: bool
    ) -> _IntegerSolution | None:
        """Keeps the integral part of a solution and solves again for the fractional parts and a few random others."""
        fractional = sorted({a.part for a in relaxed if abs(a.amount - round(a.amount)) > TOLERANCE})
        rest = np.setdiff1d(np.arange(problem.class_of.size), fractional)
        for others in _NEIGHBOURS if first else _NEIGHBOURS[:1]:
            if rest.size <= others:
                break
            neighbours = self.relaxation.rng.permutation(rest)[:others]
            parts = np.sort(np.concatenate((fractional, neighbours))).astype(np.intp)
            is_free = np.isin(np.arange(problem.class_of.size), parts)
            fixed = [a for a in relaxed if not is_free[a.part]]
            demand = problem.demand.copy()
            for a in fixed:
                demand[a.rows] -= round(a.amount)
            part = Subproblem(demand, problem.class_of[parts], problem.counts[parts], problem.allowed[parts])
            solution = self._search(part, _NEIGHBOURHOOD_PIVOTS, neighbourhood=True)
            if isinstance(solution, list):
                return [*solution, *((int(problem.class_of[a.part]), a.set_number, round(a.amount)) for a in fixed)]
        return None

    def _choice(self, solution: _IntegerSolution) -> list[list[int]] | Undecided:
        """Takes the best clusters of each class for its sets, and verifies replicas and quotas."""
        objective, problem = self.objective, self.objective.problem
        chosen: list[list[int]] = [[] for _ in range(objective.apps)]
        left = np.ones(objective.size, dtype=np.bool_)
        for number, set_number, count in sorted(solution):
            bits = self.sets[set_number]
            if not bits or count < 1:
                continue
            members = self.pool[self.class_of == self.kept[number]]
            members = members[left[members]]
            values = np.full(objective.size, INFEASIBLE, dtype=np.int64)
            values[members] = objective.values(bits)[members]
            clusters = objective.best_clusters(values, count)
            left[clusters] = False
            for app in range(objective.apps):
                if bits >> app & 1:
                    chosen[app] += clusters.tolist()
        for app, clusters_of_app in enumerate(chosen):
            if len(clusters_of_app) != problem.replicas[app] or not satisfiable(problem.groups[app], clusters_of_app):
                return Undecided()
        return objective.by_value(chosen)


def _branches(problem: Subproblem, amounts: NDArray[np.float64]) -> list[Subproblem]:
    """Splits on the most fractional amount: at most its floor, or at least one more. The likelier branch is last, because
    the last one is searched first."""
    fraction = np.abs(amounts - np.rint(amounts))
    part, set_number = divmod(int(fraction.argmax()), fraction.shape[1])
    amount, count, allowed = float(amounts[part, set_number]), int(problem.counts[part]), problem.allowed[part]
    floor = int(np.floor(amount + TOLERANCE))
    without, only = allowed.copy(), np.zeros_like(allowed)
    without[set_number], only[set_number] = False, True
    fewer = _split(problem, part, (count - floor, without), (floor, allowed))
    more = _split(problem, part, (count - floor - 1, allowed), (floor + 1, only))
    return [fewer, more] if amount - floor >= 0.5 else [more, fewer]


def _split(problem: Subproblem, part: int, *pieces: tuple[int, NDArray[np.bool_]]) -> Subproblem:
    """Replaces a part by pieces of it, each with its number of clusters and allowed sets."""
    pieces_used = [piece for piece in pieces if piece[0] > 0]
    counts = np.array([count for count, _ in pieces_used], dtype=np.int64)
    return Subproblem(
        problem.demand,
        np.concatenate((np.delete(problem.class_of, part), np.full(len(pieces_used), problem.class_of[part]))),
        np.concatenate((np.delete(problem.counts, part), counts)),
        np.concatenate((np.delete(problem.allowed, part, axis=0), *(allowed[None] for _, allowed in pieces_used))),
    )
