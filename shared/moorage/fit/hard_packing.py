"""Packs pods onto nodes where the fast greedy passes fail: many greedy passes at once, a search that divides the pods of pairs of
nodes, a search for sets of pods, an integer program.

The passes take a few milliseconds, the searches tens of them. What one search misses the other most often finds soon, so both
get a short time first. The integer program runs last and is the only one that proves that no packing exists. Whatever is found
is checked in integers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .budget import BudgetExceeded
from .packing import Packed, PackingProblem, ProblemKey, Solution
from .pair_search import pair_search
from .rule_model import RuleModel
from .set_search import SetSearch, is_tight

if TYPE_CHECKING:
    import highspy

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
#: Per pod, its node.
Placement = Ints

#: Above this many pods only the integer program runs: it counts equal pods, the others place them one by one.
MAX_SINGLE_PODS = 256
#: The parts of the time that the searches by pairs and by sets have in turn, before the integer program starts. Where little is to
#: spare, the one by sets finds most.
TIGHT_TURNS = ((0.05, 0.2), (0.35, 0.0))
TURNS = ((0.1, 0.12), (0.2, 0.12))
#: Amounts below this share of a node are rounding.
EPSILON = 1e-12


def pack_hard(problem: PackingProblem, seconds: float) -> Packed | None:
    """Returns a packing, or None if none exists. Raises BudgetExceeded if neither is known after `seconds`."""
    deadline = time.perf_counter() + seconds
    if problem.rules is None and sum(problem.counts) <= MAX_SINGLE_PODS:
        pods = _Pods(problem)
        packed = greedy_passes(pods)
        if packed is None:
            packed = _search(pods, seconds)
        if packed is not None:
            return packed
    return integer_program(problem, max(0.0, deadline - time.perf_counter()))


def solve(problems: Mapping[ProblemKey, PackingProblem], seconds: float) -> dict[ProblemKey, Solution]:
    """Solves the problems in `seconds` altogether."""
    deadline = time.perf_counter() + seconds
    solutions: dict[ProblemKey, Solution] = {}
    for key, problem in problems.items():
        began = time.perf_counter()
        try:
            solutions[key] = pack_hard(problem, max(0.0, deadline - began))
        except BudgetExceeded:
            solutions[key] = BudgetExceeded(time.perf_counter() - began)
    return solutions


def _search(pods: _Pods, seconds: float) -> Packed | None:
    """Searches by pairs of nodes, which starts anew each time, and by sets of pods in turn: what one misses for long the other most
    often finds soon."""
    sets = SetSearch(pods.problem)
    for seed, (for_pairs, for_sets) in enumerate(TIGHT_TURNS if is_tight(pods.problem) else TURNS):
        placement = pair_search(pods.need, pods.free, pods.feasible, seconds * for_pairs, seed)
        if placement is None:
            placement = sets.run(seconds * for_sets)
        packed = None if placement is None else pods.packed(placement)
        if packed is not None:
            return packed
    return None


class _Pods:
    """A problem with one row per pod, in shares of the largest free amount of each resource."""

    def __init__(self, problem: PackingProblem) -> None:
        self.problem = problem
        self.group: Ints = np.repeat(np.arange(len(problem.counts)), problem.counts)
        scale = 1.0 / np.maximum(problem.free.max(axis=0, initial=1), 1)
        self.free: Floats = np.maximum(problem.free, 0) * scale
        self.need: Floats = (problem.needs * scale)[self.group]
        self.feasible = problem.feasible[self.group]

    def packed(self, placement: Placement) -> Packed | None:
        """Returns the placement as pods per group and node; None if it does not hold in integers."""
        packed = np.zeros(self.problem.feasible.shape, np.int64)
        np.add.at(packed, (self.group, placement), 1)
        return packed if _holds(self.problem, packed) else None


def _holds(problem: PackingProblem, packed: Packed) -> bool:
    within = (packed.T @ problem.needs <= np.maximum(problem.free, 0)).all()
    ruled = problem.rules is None or problem.rules.allows(packed)
    return bool(
        ruled and within and not packed[~problem.feasible].any() and (packed.sum(axis=1) == problem.counts).all()
    )


def greedy_passes(pods: _Pods) -> Packed | None:
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
    return next((packed for found in placement[alive] if (packed := pods.packed(found)) is not None), None)


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
    if problem.rules is not None:
        RuleModel(solver, problem, pairs).add()
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise BudgetExceeded
    packed = np.zeros(problem.feasible.shape, np.int64)
    packed[pairs[:, 0], pairs[:, 1]] = np.rint(solver.getSolution().col_value[: len(pairs)]).astype(np.int64)
    if not _holds(problem, packed):  # the solver works with tolerances, and with simpler rules of affinity
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
