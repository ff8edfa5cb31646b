"""Packs groups of equal pods onto nodes: a fast greedy pass, then an exact search where it fails.

The search is a dynamic program over the nodes. Its state is the number of pods placed per group, and only undominated
states are kept: placing more pods of every group on the nodes so far is never worse. With 8 pods there are at most 70
states per node, so it is complete there; beyond, `steps` bounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import add, ge
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import Shape

from .budget import Budget, BudgetExceeded
from .inner_nodes import InnerGroups
from .pod_rules import PodRules
from .protocols import Amounts, Ids, Mask

#: Up to this many pods and nodes the search is complete whatever the bound.
EXACT_PODS, EXACT_NODES = 8, 16

_LEAST = np.iinfo(np.int64).min

#: Pods per group and node.
Packed = NDArray[np.int64]
Vector = tuple[int, ...]


#: Returns, for a group and the pods per group and node that are placed already, how many more pods of it each node is to have before
#: others get any; then, how many once these places are filled; and so on.
PreferredPlaces = Callable[[int, Packed], list[Amounts]]


class PackingProblem(NamedTuple):
    free: Amounts  # node by resource
    needs: Amounts  # group by resource, of one pod
    counts: list[int]
    feasible: NDArray[np.bool_]  # group by node: passes all filters but resources
    rules: PodRules | None = None
    inner: InnerGroups | None = None  # what nodes hold inside; None: that does not matter
    preferred: PreferredPlaces | None = None  # places to fill before others

    @property
    def key(self) -> ProblemKey:
        """Equal for equal problems."""
        where = self.feasible.tobytes() + (b"" if self.rules is None else self.rules.key)
        return self.free.tobytes(), self.needs.tobytes(), tuple(self.counts), where


ProblemKey = tuple[bytes, bytes, tuple[int, ...], bytes]
#: A packing, None as the proof that there is none, or the bound that ended the search.
Solution = Packed | BudgetExceeded | None


#: Says how many pods of each shape go to each of the rows, which may be feasible for a shape or not. It need not fit.
NodeChoice = Callable[[Sequence[Shape], Ids, NDArray[np.bool_]], Packed | None]


class PackingSolutions:
    """Answers to problems that are too hard to be solved at once. A decision looks for them here, gets BudgetExceeded,
    has the `unsolved` ones solved elsewhere, and decides again. `choose` is asked first for pods that need devices; what it says
    is kept among the answers."""

    def __init__(self, choose: NodeChoice | None = None) -> None:
        self.choose = choose
        self.solved: dict[ProblemKey, Solution] = {}
        self.unsolved: dict[ProblemKey, PackingProblem] = {}

    def add(self, solved: Mapping[ProblemKey, Solution]) -> None:
        self.solved.update(solved)
        for key in solved:
            self.unsolved.pop(key, None)

    def get(self, problem: PackingProblem) -> Packed | None:
        """Returns the packing, or None as the proof that there is none. Raises BudgetExceeded if neither is known."""
        key = problem.key
        if key not in self.solved:
            self.unsolved[key] = problem
            raise BudgetExceeded
        solution = self.solved[key]
        if isinstance(solution, BudgetExceeded):
            raise solution
        return solution


def capacity(free: Amounts, need: Amounts, able: Mask, count: int) -> NDArray[np.int64]:
    """Returns the pods of one group that each node holds, at most `count`."""
    needed = need > 0
    pods = np.full(len(free), count, np.int64)
    if needed.any():
        np.minimum(pods, (free[:, needed] // need[needed]).min(axis=1), out=pods)
    return np.where(able, np.maximum(pods, 0), 0)


def resource_weights(problem: PackingProblem) -> NDArray[np.float64]:
    """Returns the weight of one unit of each resource: its share of the largest free amount."""
    weights: NDArray[np.float64] = 1.0 / problem.free.max(axis=0, initial=1)
    return weights


def group_orders(problem: PackingProblem, weights: NDArray[np.float64]) -> Iterator[list[int]]:
    """Yields the orders to try: largest share of a node first; then fewest feasible nodes first."""
    groups = range(len(problem.counts))
    if len(groups) == 1:
        yield [0]
        return
    share = (problem.needs * weights).max(axis=1, initial=0).tolist()
    by_share = sorted(groups, key=lambda g: -share[g])
    yield by_share
    nodes = problem.feasible.sum(axis=1).tolist()
    by_nodes = sorted(groups, key=lambda g: (nodes[g], -share[g]))
    if by_nodes != by_share:
        yield by_nodes


def _stages(problem: PackingProblem, group: int, packed: Packed, pods: Amounts) -> list[Amounts]:
    """Returns how many pods of a group nodes may have, one stage after the other: those in preferred places first, in the end all."""
    if problem.preferred is None:
        return [pods]
    return [*(np.minimum(places, pods) for places in problem.preferred(group, packed)), pods]


def greedy(problem: PackingProblem, order: Sequence[int], weight: NDArray[np.float64]) -> Packed | int:
    """Packs by best fit decreasing: each group onto the fullest nodes that hold it. Returns the number of the first group
    that does not fit."""
    free = problem.free.copy()
    packed = np.zeros((len(problem.counts), len(free)), np.int64)
    needed = problem.needs > 0
    least, weights = np.where(needed, problem.needs, _LEAST), weight * needed
    for group in order:
        count, need = problem.counts[group], problem.needs[group]
        # Most objects have one pod; the general case below gives the same, more slowly.
        if count == 1 and problem.preferred is None:
            holds = (free >= least[group]).all(axis=1)
            holds &= problem.feasible[group]
            nodes = holds.nonzero()[0]
            if not nodes.size:
                return group
            node = nodes[(free[nodes] @ weights[group]).argmin()]
            packed[group, node] = 1
            free[node] -= need
            continue
        pods = capacity(free, need, problem.feasible[group], count)
        for most in _stages(problem, group, packed, pods):
            more = most - packed[group]
            nodes = np.flatnonzero(more > 0)
            nodes = nodes[np.argsort((free[nodes] * weight)[:, need > 0].sum(axis=1), kind="stable")]
            before = np.cumsum(more[nodes]) - more[nodes]
            taken = np.clip(count - before, 0, more[nodes])
            packed[group, nodes] += taken
            free[nodes] -= taken[:, None] * need
            count -= int(taken.sum())
        if count:
            return group
    return packed


def greedy_inside(problem: PackingProblem, order: Sequence[int], weight: NDArray[np.float64]) -> Packed | int:
    """Packs like `greedy`, and asks each node what it holds inside."""
    inner = problem.inner
    assert inner is not None
    free = problem.free.copy()
    packed = np.zeros((len(problem.counts), len(free)), np.int64)
    for group in order:
        count, need = problem.counts[group], problem.needs[group]
        pods = capacity(free, need, problem.feasible[group], count)
        full: set[object] = set()  # states of empty nodes that hold no pod beside those on others
        for most in _stages(problem, group, packed, pods):
            more = most - packed[group]
            nodes = np.flatnonzero(more > 0)
            nodes = nodes[np.argsort((free[nodes] * weight)[:, need > 0].sum(axis=1), kind="stable")]
            for node in nodes.tolist() if count else ():
                state = inner.state(node) if node in inner.in_common and not packed[:, node].any() else None
                if state is not None and state in full:
                    continue
                placed = inner.most_beside(packed, node, group, min(count, int(more[node])))
                if state is not None and not placed:
                    full.add(state)
                packed[group, node] += placed
                free[node] -= placed * need
                count -= placed
                if not count:
                    break
        if count:
            return group
    return packed


def maximal_choices(
    free: Vector,
    groups: Sequence[tuple[int, Vector, int]],
    width: int,
    budget: Budget,
    most_inside: Callable[[Sequence[int], int, int], int] | None = None,
) -> list[Vector]:
    """Returns all maximal vectors of pods per group that one node holds. `groups`: (number, need of a pod, most pods).
    `most_inside` says how many pods of a group, up to a limit, it holds inside beside others."""
    found: list[Vector] = []
    taken = [0] * width

    def place(at: int, left: Vector) -> None:
        group, need, most = groups[at]
        for resource, amount in enumerate(need):
            if amount:
                most = min(most, left[resource] // amount)
        if most_inside is not None:
            most = most_inside(taken, group, most)
        last = at == len(groups) - 1
        for pods in (most,) if last else range(most, -1, -1):
            taken[group] = pods
            if last:
                found.append(tuple(taken))
            else:
                place(at + 1, tuple(f - pods * n for f, n in zip(left, need, strict=True)))
        taken[group] = 0

    place(0, free)
    return _undominated(found, budget)


def _undominated(vectors: list[Vector], budget: Budget) -> list[Vector]:
    """Returns the vectors that no other one equals or exceeds in every component."""
    kept: list[Vector] = []
    for vector in sorted(set(vectors), key=sum, reverse=True):
        budget.spend(1 + len(kept) // 8)
        if not any(all(map(ge, other, vector)) for other in kept):
            kept.append(vector)
    return kept


class SearchNode(NamedTuple):
    number: int
    capacity: Vector  # pods per group, each group alone
    choices: list[Vector]


def enumeration_size(alone: Vector) -> int:
    """Returns an upper bound on the ways to fill a node: all groups but the most numerous vary."""
    leaves = 1
    for pods in sorted(alone)[:-1]:
        leaves *= pods + 1
    return leaves


def search_budget(pods: int, nodes: int, steps: int) -> Budget:
    """Returns the steps to search with: so many, or all that it takes where the search is to be complete."""
    return Budget(1 << 62 if pods <= EXACT_PODS and nodes <= EXACT_NODES else steps)


def _most_alone(problem: PackingProblem) -> Amounts:
    """Returns the pods per group and node that fit there, each group alone."""
    most = np.array(
        [
            capacity(problem.free, n, a, c)
            for n, a, c in zip(problem.needs, problem.feasible, problem.counts, strict=True)
        ]
    )
    inner = problem.inner
    if inner is not None:
        nothing = [0] * len(problem.counts)
        for group, node in zip(*map(np.ndarray.tolist, most.nonzero()), strict=True):
            most[group, node] = inner.most(node, nothing, group, int(most[group, node]))
    return most


def _search_nodes(problem: PackingProblem, most: Amounts, steps: int) -> tuple[list[SearchNode], Budget]:
    """Returns the nodes that hold any pod, those with the fewest choices first. Equal nodes share their choices. `most`: pods
    per group and node, each group alone."""
    inner = problem.inner
    numbers = np.flatnonzero(most.any(axis=0))
    budget = search_budget(sum(problem.counts), len(numbers), steps)
    needs = [tuple(int(amount) for amount in need) for need in problem.needs]
    shared: dict[tuple[Vector, Vector, object], list[Vector]] = {}
    nodes = []
    for number in numbers:
        alone = tuple(int(pods) for pods in most[:, number])
        free = tuple(int(amount) for amount in problem.free[number])
        key = free, alone, 0 if inner is None else inner.state(int(number))
        choices = shared.get(key)
        if choices is None:
            budget.spend(enumeration_size(alone))  # spent before the work, so that a huge enumeration never starts
            groups = [(g, needs[g], pods) for g, pods in enumerate(alone) if pods]
            groups.sort(key=lambda item: item[2])
            inside = None if inner is None else partial(inner.most, int(number))
            choices = shared[key] = maximal_choices(free, groups, len(alone), budget, inside)
        nodes.append(SearchNode(int(number), alone, choices))
    nodes.sort(key=lambda node: len(node.choices))
    return nodes, budget


def search(problem: PackingProblem, steps: int) -> Packed | None:
    """Returns a packing, or None as the proof that there is none. Raises BudgetExceeded where `steps` decide neither."""
    total = tuple(problem.counts)
    most = _most_alone(problem)
    if (most.sum(axis=1) < problem.counts).any():
        return None  # a group does not even fit alone
    if problem.inner is not None and problem.inner.in_common:
        return problem.inner.distribute(problem.counts, problem.free, problem.needs, most > 0)
    nodes, budget = _search_nodes(problem, most, steps)
    return fill_nodes(nodes, total, len(problem.free), budget)


def fill_nodes(nodes: Sequence[SearchNode], total: Vector, size: int, budget: Budget) -> Packed | None:
    """Returns how many pods of each group go to each of `size` nodes, of which these hold any, or None as the proof that not all
    fit. Raises BudgetExceeded."""
    required = [total]  # pods that must be placed before the remaining nodes, which hold no more than the rest
    for node in reversed(nodes):
        required.append(tuple(max(0, r - c) for r, c in zip(required[-1], node.capacity, strict=True)))
    required.reverse()
    levels: list[dict[Vector, Vector]] = [{(0,) * len(total): ()}]  # per node: state -> the state before it
    for node, minimum in zip(nodes, required[1:], strict=True):
        reached: dict[Vector, Vector] = {}
        budget.spend(len(levels[-1]) * len(node.choices))
        for state in levels[-1]:
            for choice in node.choices:
                new = tuple(map(min, map(add, state, choice), total))
                if new not in reached and all(map(ge, new, minimum)):
                    reached[new] = state
        if total in reached:
            levels.append(reached)
            return _backtrack(levels, nodes, total, size)
        levels.append({state: reached[state] for state in _undominated(list(reached), budget)})
    return None


def _backtrack(levels: list[dict[Vector, Vector]], nodes: Sequence[SearchNode], total: Vector, size: int) -> Packed:
    """Returns the packing of the path from the initial state to `total`."""
    packed = np.zeros((len(total), size), np.int64)
    state = total
    for at in range(len(levels) - 1, 0, -1):
        before = levels[at][state]
        packed[:, nodes[at - 1].number] = np.subtract(state, before)
        state = before
    return packed


def pack(problem: PackingProblem, steps: int, solutions: PackingSolutions | None = None) -> Packed | int:
    """Returns a packing, or the number of a group that cannot be placed with the others. Raises BudgetExceeded.
    `solutions` are asked where the search exceeds its steps."""
    failed = -1
    weights = resource_weights(problem)
    for order in group_orders(problem, weights):
        packed = (greedy if problem.inner is None else greedy_inside)(problem, order, weights)
        if not isinstance(packed, int):
            return packed
        if packed == order[0] and problem.inner is None:
            return packed  # it had all nodes to itself
        failed = packed
    try:
        packing = search(problem, steps)
    except BudgetExceeded:
        if solutions is None or problem.inner is not None:
            raise
        packing = solutions.get(problem._replace(preferred=None))
    return failed if packing is None else packing
