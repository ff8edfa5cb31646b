"""Packs pods that have rules about each other: a greedy pass, then a complete search within bounds.

Both place pod by pod, and consider only nodes where no rule is broken already and each rule can still be met. The integer
program of `hard_packing` decides what is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from .budget import Budget, BudgetExceeded
from .packing import (
    EXACT_NODES,
    EXACT_PODS,
    Packed,
    PackingProblem,
    PackingSolutions,
    capacity,
    group_orders,
    pack,
    resource_weights,
)
from .pod_rules import Near, PodRules, Spread, at_nodes, sums, supported
from .protocols import Amounts, Ids, Mask

#: The search places pods one by one, so that more are left to the integer program.
MAX_SEARCHED, MAX_GREEDY = 64, 1024
#: A step of the search costs some fifty microseconds.
MAX_STEPS = 1_000
#: Seconds for the integer program where nobody solves problems elsewhere.
INLINE_SECONDS = 1.0


def pack_with_rules(problem: PackingProblem, steps: int, solutions: PackingSolutions | None = None) -> Packed | int:
    """Returns a packing that keeps the problem's rules, or the number of a group that cannot be placed with the others.
    Raises BudgetExceeded."""
    assert problem.rules is not None
    with contextlib.suppress(BudgetExceeded):
        relaxed = pack(problem._replace(rules=None), steps)
        if isinstance(relaxed, int) or problem.rules.allows(relaxed):
            return relaxed
    orders = list(_orders(problem))
    for order in orders:
        packed = greedy_with_rules(problem, order)
        if packed is not None:
            return packed
    packing: Packed | None
    try:
        packing = search_with_rules(problem, orders[0], min(steps, MAX_STEPS))
    except BudgetExceeded:
        if problem.inner is not None:
            raise
        if solutions is not None:
            packing = solutions.get(problem._replace(preferred=None))
        elif sum(problem.counts) <= EXACT_PODS and len(problem.free) <= EXACT_NODES:
            from .hard_packing import integer_program

            packing = integer_program(problem, INLINE_SECONDS)
        else:
            raise
    return problem.rules.groups.index(_ruled_shape(problem.rules)) if packing is None else packing


def _ruled_shape(rules: PodRules) -> int:
    """A shape to place whose rules may be what fails."""
    ruled = {a.shape for a in rules.apart} | {n.shape for n in rules.near} | {s.shape for s in rules.spread}
    return next((group for group in rules.groups if group in ruled), rules.groups[0])


def _orders(problem: PackingProblem) -> Iterator[list[int]]:
    """Yields the orders to try. Pods come after those that they must be near to."""
    rules = problem.rules
    assert rules is not None
    depth = np.zeros(len(rules.fixed), np.int64)
    for _ in problem.counts:
        for near in rules.near:
            supporters = near.others.copy()
            supporters[near.shape] = False
            depth[near.shape] = min(len(depth), 1 + int(depth[supporters].max(initial=0)))
    for order in group_orders(problem, resource_weights(problem)):
        yield sorted(order, key=lambda group: depth[rules.groups[group]])


class _Placement:
    """The pods placed so far, and what the rules leave for the next."""

    def __init__(self, problem: PackingProblem) -> None:
        assert problem.rules is not None
        self.problem, self.rules = problem, problem.rules
        self.weights = resource_weights(problem)
        self.free = problem.free.copy()
        self.packed: Packed = np.zeros(problem.feasible.shape, np.int64)
        self.total = self.rules.fixed.copy()
        self.left = list(problem.counts)
        self.limits = [self._limit(spread) for spread in self.rules.spread]

    def _limit(self, spread: Spread) -> int:
        """The most pods that a domain may have in the end: the smallest domain has no more than the mean, and no more than
        it can hold."""
        if spread.zero_minimum:
            return spread.max_skew
        problem = self.problem
        pods = self.rules.fixed[spread.others].sum(axis=0)
        counts = sums(spread.domains, pods)
        mine = [g for g, shape in enumerate(self.rules.groups) if spread.others[shape]]
        if not counts.size:
            return spread.max_skew
        hold = counts.copy()
        for g in mine:
            alone = capacity(problem.free, problem.needs[g], problem.feasible[g], problem.counts[g])
            hold += sums(spread.domains, alone)
        mean = (int(counts.sum()) + sum(problem.counts[g] for g in mine)) // counts.size
        return min(mean, int(hold.min())) + spread.max_skew

    def place(self, group: int, node: int, pods: int = 1) -> None:
        """Places pods on a node, or takes them back where the number is negative."""
        self.packed[group, node] += pods
        self.total[self.rules.groups[group], node] += pods
        self.free[node] -= pods * self.problem.needs[group]
        self.left[group] -= pods

    def is_limited(self, group: int) -> bool:
        """Returns whether each pod of the group changes where the next may go."""
        shape = self.rules.groups[group]
        apart = any(rule.shape == shape or rule.others[shape] for rule in self.rules.apart)
        return apart or any(rule.shape == shape or rule.others[shape] for rule in self.rules.spread)

    def nodes(self, group: int) -> Ids:
        """The nodes for the next pod of the group, the best first."""
        problem, need = self.problem, self.problem.needs[group]
        able = problem.feasible[group] & ((self.free >= need) | (need <= 0)).all(axis=1)
        shape = self.rules.groups[group]
        crowd = np.zeros(len(able), np.int64)
        for apart in self.rules.apart:
            if apart.shape == shape:
                able &= ~self._present(apart.domains, apart.others)
            elif apart.others[shape]:
                able &= ~self._present(apart.domains, np.arange(len(apart.others)) == apart.shape)
        for spread, limit in zip(self.rules.spread, self.limits, strict=True):
            if spread.shape == shape or spread.others[shape]:
                counts = sums(spread.domains, self.total[spread.others].sum(axis=0))
                after = at_nodes(counts, spread.domains) + bool(spread.others[shape])
                crowd += after
                if spread.shape == shape:
                    able &= after <= limit
                else:
                    able &= (after <= limit) | ~self._placed(spread)
        for near in self.rules.near:
            if near.shape == shape:
                beside = self._beside(near, group)
                if self._waits_for_none(near, group):
                    able &= beside
                crowd += np.where(beside, 0, len(self.total) * self.total.sum())
        if problem.inner is not None:
            for node in np.flatnonzero(able).tolist():
                able[node] = problem.inner.most_beside(self.packed, node, group, 1) > 0
        found = np.flatnonzero(able)
        free = (self.free[found] * self.weights)[:, need > 0].sum(axis=1)
        places = problem.preferred(group, self.packed) if problem.preferred is not None else []
        # The last key counts most: among equally crowded nodes those with the nearest preferred places.
        return found[np.lexsort((free, *(here[found] <= 0 for here in reversed(places)), crowd[found]))]

    def _placed(self, spread: Spread) -> Mask:
        """Nodes whose domain has a pod of the spread's shape that is placed here."""
        new = self.total[spread.shape] - self.rules.fixed[spread.shape]
        found: Mask = at_nodes(sums(spread.domains, new), spread.domains) > 0
        return found

    def _present(self, domains: Ids, shapes: Mask) -> Mask:
        """Nodes whose domain has a pod of these shapes."""
        found: Mask = at_nodes(sums(domains, self.total[shapes].sum(axis=0)), domains) > 0
        return found

    def _waits_for_none(self, near: Near, group: int) -> bool:
        """Returns whether all pods that a pod of the group may be near to are placed, and start without it."""
        supporters = near.others.copy()
        supporters[near.shape] = False
        if (supporters & ~self.rules.starts_free()).any():
            return False
        return not any(self.left[g] for g, shape in enumerate(self.rules.groups) if supporters[shape])

    def _beside(self, near: Near, group: int) -> Mask:
        """Nodes where a pod of the group finds those that it must be near to. The first pod of a series near itself goes to
        a domain that can hold all of them."""
        if near.found_in(self.total) or not near.others[near.shape]:
            return supported(near, self.total)
        able = np.ones(len(self.free), np.bool_)
        alone = capacity(self.free, self.problem.needs[group], self.problem.feasible[group], self.left[group])
        for domains in near.domains:
            able &= at_nodes(sums(domains, alone), domains) >= self.left[group]
        return able


def greedy_with_rules(problem: PackingProblem, order: Sequence[int]) -> Packed | None:
    """Places each group's pods on the best nodes. None where that fails, which proves nothing."""
    placement = _Placement(problem)
    if sum(count for g, count in enumerate(problem.counts) if placement.is_limited(g)) > MAX_GREEDY:
        return None
    for group in order:
        limited = placement.is_limited(group)
        while placement.left[group]:
            nodes = placement.nodes(group)
            if not nodes.size:
                return None
            node, pods = int(nodes[0]), 1
            if not limited:
                here = capacity(
                    placement.free[nodes[:1]], problem.needs[group], np.ones(1, np.bool_), placement.left[group]
                )
                pods = int(here[0])
                if problem.inner is not None:
                    pods = problem.inner.most_beside(placement.packed, node, group, pods)
            placement.place(group, node, pods)
    return placement.packed if placement.rules.allows(placement.packed) else None


def search_with_rules(problem: PackingProblem, order: Sequence[int], steps: int) -> Packed | None:
    """Returns a packing, or None as the proof that there is none. Raises BudgetExceeded where `steps` decide neither."""
    if sum(problem.counts) > MAX_SEARCHED:
        raise BudgetExceeded
    placement, budget = _Placement(problem), Budget(steps)
    pods = [group for group in order for _ in range(problem.counts[group])]
    kinds = _equal_nodes(problem)

    def place(at: int, refuted: Mask) -> bool:
        """`refuted`: nodes of which it is known that no pod of this group goes there."""
        if at == len(pods):
            return placement.rules.allows(placement.packed)
        group = pods[at]
        if at and pods[at - 1] != group:
            refuted = np.zeros(len(kinds), np.bool_)
        for node in placement.nodes(group).tolist():
            if refuted[node]:
                continue
            budget.spend(1)
            unused: Mask = (placement.total == 0).all(axis=0)
            placement.place(group, node)
            if place(at + 1, refuted):
                return True
            placement.place(group, node, -1)
            refuted = refuted | ((kinds == kinds[node]) & unused) if unused[node] else refuted.copy()
            refuted[node] = True
        return False

    return placement.packed if place(0, np.zeros(len(kinds), np.bool_)) else None


def _equal_nodes(problem: PackingProblem) -> NDArray[np.intp]:
    """Numbers the nodes so that equal ones have one number: as long as they are empty, they can be exchanged."""
    rules = problem.rules
    assert rules is not None
    columns: list[Amounts] = [*problem.free.T, *problem.feasible.astype(np.int64)]
    columns += [pods for pods in rules.fixed if pods.any()]
    if problem.inner is not None:
        states: dict[object, int] = {}
        of_nodes = map(problem.inner.state, range(len(problem.free)))
        columns.append(np.array([states.setdefault(state, len(states)) for state in of_nodes], np.int64))
    keys = [*(apart.domains for apart in rules.apart), *(spread.domains for spread in rules.spread)]
    for domains in chain(keys, *(near.domains for near in rules.near)):
        size = at_nodes(sums(domains, np.ones(len(domains), np.int64)), domains)
        columns.append(np.where(size == 1, -2, domains))
    numbers: NDArray[np.intp] = np.unique(np.array(columns), axis=1, return_inverse=True)[1].reshape(-1)
    return numbers
