"""Equal pods in groups onto nodes: a quick greedy pass, and an exact search that proves where it fails.

The search goes node by node and keeps, of all partial packings, only those that no other one dominates: placing more of
every group on the nodes so far is never worse. With 8 pods that are at most 70 states a node, so it is complete there;
beyond, `steps` bound it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, ge
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .protocols import Amounts, Mask

#: Within these the search is complete whatever the bound.
PODS, NODES = 8, 16

#: Per group, how many of its pods each node takes.
Packed = NDArray[np.int64]
Vector = tuple[int, ...]


class Bound(Exception):
    """The search was cut off; there may be a packing."""


class Budget:
    """Steps that may still be spent."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise Bound


class Problem(NamedTuple):
    free: Amounts  # node by resource
    needs: Amounts  # group by resource, of one pod
    counts: list[int]
    able: NDArray[np.bool_]  # group by node: labels and taints let it in


def capacity(free: Amounts, need: Amounts, able: Mask, count: int) -> NDArray[np.int64]:
    """Pods of one group that each node has room for, at most `count`."""
    asked = need > 0
    pods = np.full(len(free), count, np.int64)
    if asked.any():
        np.minimum(pods, (free[:, asked] // need[asked]).min(axis=1), out=pods)
    return np.where(able, np.maximum(pods, 0), 0)


def weights_of(problem: Problem) -> NDArray[np.float64]:
    """What one unit of each resource is of the largest node."""
    weights: NDArray[np.float64] = 1.0 / problem.free.max(axis=0, initial=1)
    return weights


def _orders(problem: Problem, weights: NDArray[np.float64]) -> Iterator[list[int]]:
    """Largest share of a node first; then those with the fewest nodes first."""
    groups = range(len(problem.counts))
    if len(groups) == 1:
        yield [0]
        return
    share = (problem.needs * weights).max(axis=1, initial=0).tolist()
    by_share = sorted(groups, key=lambda g: -share[g])
    yield by_share
    nodes = problem.able.sum(axis=1).tolist()
    by_nodes = sorted(groups, key=lambda g: (nodes[g], -share[g]))
    if by_nodes != by_share:
        yield by_nodes


def greedy(problem: Problem, order: Sequence[int], weight: NDArray[np.float64]) -> Packed | int:
    """Best fit decreasing: each group onto the fullest nodes that take it. A group that does not fit, as its number."""
    free = problem.free.copy()
    packed = np.zeros((len(problem.counts), len(free)), np.int64)
    for group in order:
        count, need = problem.counts[group], problem.needs[group]
        if count == 1:  # most objects have one pod: what follows, without counting
            asked = need > 0
            room = ((free >= need) | ~asked).all(axis=1)
            room &= problem.able[group]
            nodes = room.nonzero()[0]
            if not nodes.size:
                return group
            node = nodes[(free[nodes] @ (weight * asked)).argmin()]
            packed[group, node] = 1
            free[node] -= need
            continue
        pods = capacity(free, need, problem.able[group], count)
        nodes = np.flatnonzero(pods)
        nodes = nodes[np.argsort((free[nodes] * weight)[:, need > 0].sum(axis=1), kind="stable")]
        before = np.cumsum(pods[nodes]) - pods[nodes]
        taken = np.clip(count - before, 0, pods[nodes])
        if taken.sum() < count:
            return group
        packed[group, nodes] = taken
        free[nodes] -= taken[:, None] * need
    return packed


def _choices(free: Vector, groups: Sequence[tuple[int, Vector, int]], width: int, budget: Budget) -> list[Vector]:
    """All maximal numbers of pods per group that one node takes together. `groups`: (number, need, at most)."""
    found: list[Vector] = []
    taken = [0] * width

    def place(at: int, left: Vector) -> None:
        group, need, most = groups[at]
        for resource, amount in enumerate(need):
            if amount:
                most = min(most, left[resource] // amount)
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
    kept: list[Vector] = []
    for vector in sorted(set(vectors), key=sum, reverse=True):
        budget.spend(1 + len(kept) // 8)
        if not any(all(map(ge, other, vector)) for other in kept):
            kept.append(vector)
    return kept


class _Node(NamedTuple):
    number: int
    most: Vector  # alone, per group
    choices: list[Vector]


def _leaves(alone: Vector) -> int:
    """At most so many ways to fill a node: all groups but the most numerous vary."""
    leaves = 1
    for pods in sorted(alone)[:-1]:
        leaves *= pods + 1
    return leaves


def _nodes(problem: Problem, steps: int) -> tuple[list[_Node], Budget]:
    """The nodes that take anything, the narrowest first; equal ones share their choices."""
    most = np.array(
        [capacity(problem.free, n, a, c) for n, a, c in zip(problem.needs, problem.able, problem.counts, strict=True)]
    )
    numbers = np.flatnonzero(most.any(axis=0))
    small = sum(problem.counts) <= PODS and len(numbers) <= NODES
    budget = Budget(1 << 62 if small else steps)
    needs = [tuple(int(amount) for amount in need) for need in problem.needs]
    shared: dict[tuple[Vector, Vector], list[Vector]] = {}
    nodes = []
    for number in numbers:
        alone = tuple(int(pods) for pods in most[:, number])
        free = tuple(int(amount) for amount in problem.free[number])
        choices = shared.get((free, alone))
        if choices is None:
            budget.spend(_leaves(alone))  # asked before the work is done
            groups = [(g, needs[g], pods) for g, pods in enumerate(alone) if pods]
            groups.sort(key=lambda item: item[2])
            choices = shared[(free, alone)] = _choices(free, groups, len(alone), budget)
        nodes.append(_Node(int(number), alone, choices))
    nodes.sort(key=lambda node: len(node.choices))
    return nodes, budget


def search(problem: Problem, steps: int) -> Packed | None:
    """A packing if there is one; None is a proof that there is none. Raises Bound where `steps` end before either."""
    total = tuple(problem.counts)
    nodes, budget = _nodes(problem, steps)
    rest = [total]  # what must have been placed before the nodes that are left
    for node in reversed(nodes):
        rest.append(tuple(max(0, r - m) for r, m in zip(rest[-1], node.most, strict=True)))
    rest.reverse()
    if any(rest[0]):
        return None
    levels: list[dict[Vector, Vector]] = [{(0,) * len(total): ()}]
    for node, due in zip(nodes, rest[1:], strict=True):
        reached: dict[Vector, Vector] = {}
        budget.spend(len(levels[-1]) * len(node.choices))
        for state in levels[-1]:
            for choice in node.choices:
                new = tuple(map(min, map(add, state, choice), total))
                if new not in reached and all(map(ge, new, due)):
                    reached[new] = state
        if total in reached:
            levels.append(reached)
            return _traced(levels, nodes, total, problem)
        levels.append({state: reached[state] for state in _undominated(list(reached), budget)})
    return None


def _traced(levels: list[dict[Vector, Vector]], nodes: list[_Node], total: Vector, problem: Problem) -> Packed:
    packed = np.zeros((len(total), len(problem.free)), np.int64)
    state = total
    for at in range(len(levels) - 1, 0, -1):
        before = levels[at][state]
        packed[:, nodes[at - 1].number] = np.subtract(state, before)
        state = before
    return packed


def pack(problem: Problem, steps: int) -> Packed | int:
    """A packing, or the number of a group that cannot be placed with the others. Raises Bound."""
    failed = -1
    weights = weights_of(problem)
    for order in _orders(problem, weights):
        packed = greedy(problem, order, weights)
        if not isinstance(packed, int):
            return packed
        failed = packed
    proof = search(problem, steps)
    return failed if proof is None else proof
