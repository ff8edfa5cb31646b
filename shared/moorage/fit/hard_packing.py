"""Packs pods onto nodes where the fast greedy passes fail: many greedy passes at once, a tabu search, an integer program.

Each step finds more than the one before and costs more: the passes a few milliseconds, the tabu search tens of them. The
integer program runs last and is the only one that proves that no packing exists. Whatever is found is checked in integers.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .packing import BudgetExceeded, Packed, PackingProblem, PackingSolutions

if TYPE_CHECKING:
    import highspy

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
#: Per pod, its node.
Placement = Ints

#: Above this many pods only the integer program runs: it counts equal pods, the others place them one by one.
MAX_SINGLE_PODS = 256
#: The part of the time that the tabu search may use before the integer program starts.
TABU_SHARE = 0.4
#: Iterations for which a pod may not return to the node that it left: at least this many, and up to twice as many.
TENURE = 4
#: How much heavier an overload becomes when no move reduces the sum of all, and after how many iterations all are equal again.
PENALTY_GROWTH, PENALTY_RESET = 1.15, 200
#: Overloads below this share of a node are rounding.
EPSILON = 1e-12
_INFEASIBLE = 1e6


def pack_hard(problem: PackingProblem, seconds: float) -> Packed | None:
    """Returns a packing, or None if none exists. Raises BudgetExceeded if neither is known after `seconds`."""
    deadline = time.perf_counter() + seconds
    if sum(problem.counts) <= MAX_SINGLE_PODS:
        pods = _Pods(problem)
        for attempt in (partial(greedy_passes, pods), partial(tabu_search, pods, seconds * TABU_SHARE)):
            placement = attempt()
            if placement is not None:
                return pods.packed(placement)
    return integer_program(problem, max(0.0, deadline - time.perf_counter()))


def solve(solutions: PackingSolutions, seconds: float) -> None:
    """Solves the problems that `solutions` is asked for and has no answer to, in `seconds` altogether."""
    deadline = time.perf_counter() + seconds
    for key, problem in list(solutions.unsolved.items()):
        began = time.perf_counter()
        try:
            solutions.solved[key] = pack_hard(problem, max(0.0, deadline - began))
        except BudgetExceeded:
            solutions.solved[key] = BudgetExceeded(time.perf_counter() - began)
        del solutions.unsolved[key]


class _Pods:
    """A problem with one row per pod, in shares of the largest free amount of each resource."""

    def __init__(self, problem: PackingProblem) -> None:
        self.problem = problem
        self.group: Ints = np.repeat(np.arange(len(problem.counts)), problem.counts)
        scale = 1.0 / np.maximum(problem.free.max(axis=0, initial=1), 1)
        self.free: Floats = np.maximum(problem.free, 0) * scale
        self.need: Floats = (problem.needs * scale)[self.group]
        self.feasible = problem.feasible[self.group]

    def packed(self, placement: Placement) -> Packed:
        packed = np.zeros(self.problem.feasible.shape, np.int64)
        np.add.at(packed, (self.group, placement), 1)
        return packed


def _holds(problem: PackingProblem, packed: Packed) -> bool:
    within = (packed.T @ problem.needs <= np.maximum(problem.free, 0)).all()
    return bool(within and not packed[~problem.feasible].any() and (packed.sum(axis=1) == problem.counts).all())


def greedy_passes(pods: _Pods) -> Placement | None:
    """Runs twenty greedy passes side by side: five orders of the pods times four rules for the node."""
    need, free = pods.need, pods.free
    demand = need.sum(axis=0) / np.maximum(free.sum(axis=0), EPSILON)  # scarce resources weigh more
    sizes = (need.max(axis=1), need.sum(axis=1), need @ demand, (need**2).sum(axis=1), need.prod(axis=1))
    orders = np.array([np.argsort(-size, kind="stable") for size in sizes]).repeat(4, axis=0)
    rule = np.tile(np.arange(4), len(sizes))[:, None]
    left = np.repeat(free[None], len(orders), axis=0)
    placement = np.full((len(orders), len(need)), -1)
    alive, passes = np.ones(len(orders), bool), np.arange(len(orders))
    for pod in orders.T:
        remainder = left - need[pod][:, None]
        fits = (remainder >= -EPSILON).all(axis=2) & pods.feasible[pod]
        score = np.where(rule == 0, remainder.sum(axis=2), (remainder**2).sum(axis=2))
        score = np.where(rule == 1, -(left * need[pod][:, None] * demand).sum(axis=2), score)
        score = np.where(rule == 3, remainder.max(axis=2) - remainder.min(axis=2), score)
        node = np.where(fits, score, np.inf).argmin(axis=1)
        placed = fits[passes, node]
        alive &= placed
        if not alive.any():
            return None
        left[passes, node] -= np.where(placed[:, None], need[pod], 0)
        placement[passes, pod] = node
    found: Placement
    for found in placement[alive]:
        if _holds(pods.problem, pods.packed(found)):
            return found
    return None


class _TabuState:
    """All pods on nodes, some of them overloaded, and what each move or swap would change."""

    def __init__(self, pods: _Pods) -> None:
        self.need, self.free = pods.need, pods.free
        self.forbidden = np.where(pods.feasible, 0.0, _INFEASIBLE)
        self.load = np.zeros_like(self.free)
        self.node: Placement = np.zeros(len(self.need), np.intp)
        self.weight = np.ones_like(self.free)
        for pod in np.argsort(-self.need.max(axis=1), kind="stable"):
            over = np.maximum(self.load + self.need[pod] - self.free, 0).sum(axis=1) + self.forbidden[pod]
            self._add(pod, np.lexsort(((self.free - self.load).sum(axis=1), over))[0])

    def _add(self, pod: int, node: int) -> None:
        self.load[node] += self.need[pod]
        self.node[pod] = node

    def move(self, pod: int, node: int) -> None:
        self.load[self.node[pod]] -= self.need[pod]
        self._add(pod, node)

    def overload(self) -> Floats:
        return np.maximum(self.load - self.free, 0)

    def _penalty(self, load: Floats, nodes: Ints) -> Floats:
        """The weighted overload of `nodes`, if they had these loads."""
        penalty: Floats = (np.maximum(load - self.free[nodes], 0) * self.weight[nodes]).sum(axis=-1)
        return penalty

    def moves(self, candidates: Ints, penalty: Floats) -> Floats:
        """The change of the penalty for each candidate pod and each node."""
        home = self.node[candidates]
        out = self._penalty(self.load[home] - self.need[candidates], home) - penalty[home]
        every = np.arange(len(self.free))
        into = self._penalty(self.load[None] + self.need[candidates][:, None], every) - penalty
        change: Floats = out[:, None] + into + self.forbidden[candidates]
        change[np.arange(len(candidates)), home] = np.inf
        return change

    def swaps(self, candidates: Ints, penalty: Floats) -> Floats:
        """The change of the penalty for each candidate pod and each other pod that it trades places with."""
        home, there = self.node[candidates], self.node
        gain = self.need[None] - self.need[candidates][:, None]
        here = self._penalty(self.load[home][:, None] + gain, home[:, None]) - penalty[home][:, None]
        other = self._penalty(self.load[there][None] - gain, there[None]) - penalty[there]
        change: Floats = here + other + self.forbidden[candidates][:, there] + self.forbidden[:, home].T
        change[home[:, None] == there[None]] = np.inf
        return change


def tabu_search(pods: _Pods, seconds: float) -> Placement | None:
    """Starts from a placement that overloads nodes and repeatedly takes the move or swap that reduces the overload most."""
    state, rng = _TabuState(pods), np.random.default_rng(0)
    tabu = np.zeros(pods.feasible.shape, np.int64)  # pod by node: until which iteration the pod may not go there
    deadline, iteration = time.perf_counter() + seconds, 0
    while time.perf_counter() < deadline:
        iteration += 1
        over = state.overload()
        if over.max(initial=0) <= EPSILON:
            return state.node if _holds(pods.problem, pods.packed(state.node)) else None
        penalty = (over * state.weight).sum(axis=1)
        candidates = np.flatnonzero((penalty > 0)[state.node])
        banned = tabu > iteration
        moves = np.where(banned[candidates], np.inf, state.moves(candidates, penalty))
        swap_banned = banned[candidates][:, state.node] | banned[:, state.node[candidates]].T
        swaps = np.where(swap_banned, np.inf, state.swaps(candidates, penalty))
        best_move, best_swap = int(moves.argmin()), int(swaps.argmin())
        change = min(moves.flat[best_move], swaps.flat[best_swap])
        if change >= _INFEASIBLE:
            tabu[:] = 0
            if not np.isfinite(change):
                continue
        until = iteration + TENURE + int(rng.integers(0, 2 * TENURE))
        if moves.flat[best_move] <= swaps.flat[best_swap]:
            at, node = divmod(best_move, moves.shape[1])
            pod = candidates[at]
            tabu[pod, state.node[pod]] = until
            state.move(pod, node)
        else:
            at, other = divmod(best_swap, swaps.shape[1])
            pod = candidates[at]
            home, there = state.node[pod], state.node[other]
            tabu[pod, home] = tabu[other, there] = until
            state.move(pod, there)
            state.move(other, home)
        if change >= -EPSILON:  # a local minimum: what stays overloaded becomes dearer
            state.weight[over > EPSILON] *= PENALTY_GROWTH
        if iteration % PENALTY_RESET == 0:
            state.weight[:] = 1
    return None


def integer_program(problem: PackingProblem, seconds: float) -> Packed | None:
    """Solves the packing as an integer program: a variable per group and node. None proves that no packing exists."""
    import highspy

    if seconds <= 0:
        raise BudgetExceeded
    pairs = np.argwhere(problem.feasible)
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (("output_flag", False), ("time_limit", seconds), ("threads", 1)):
        solver.setOptionValue(option, value)
    solver.passModel(_model(problem, pairs))
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise BudgetExceeded
    packed = np.zeros(problem.feasible.shape, np.int64)
    packed[pairs[:, 0], pairs[:, 1]] = np.rint(solver.getSolution().col_value).astype(np.int64)
    if not _holds(problem, packed):  # the solver works with tolerances
        raise BudgetExceeded
    return packed


def _model(problem: PackingProblem, pairs: Ints) -> highspy.HighsLp:
    """One row per group (all its pods are placed), one per node and resource in shares of what is free there."""
    import highspy

    counts, free = np.asarray(problem.counts, np.float64), np.maximum(problem.free, 0).astype(np.float64)
    groups, nodes = pairs.T
    nodes_by_resources = free.shape
    columns, width = len(pairs), 1 + free.shape[1]
    rows = np.empty((columns, width), np.int32)
    values = np.empty((columns, width))
    rows[:, 0], values[:, 0] = groups, 1.0
    rows[:, 1:] = len(counts) + nodes[:, None] * nodes_by_resources[1] + np.arange(nodes_by_resources[1])
    values[:, 1:] = problem.needs[groups] / np.maximum(free[nodes], 1.0)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, len(counts) + free.size
    model.col_cost_ = np.zeros(columns)
    model.col_lower_, model.col_upper_ = np.zeros(columns), counts[groups]
    model.row_lower_ = np.concatenate([counts, np.full(free.size, -highspy.kHighsInf)])
    model.row_upper_ = np.concatenate([counts, np.where(free > 0, 1.0, 0.0).ravel()])
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.arange(0, columns * width + 1, width, dtype=np.int32)
    model.a_matrix_.index_, model.a_matrix_.value_ = rows.ravel(), values.ravel()
    model.integrality_ = [highspy.HighsVarType.kInteger] * columns
    return model
