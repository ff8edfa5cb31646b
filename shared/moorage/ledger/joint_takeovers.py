"""Finds how many older slots each object of an update takes over on each node so that the pods of all objects fit.

What new slots take beside older ones does not grow evenly with their number (`families`), but each node is independent of the
others. So the assignment's search over the nodes serves here, and is as complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from moorage.fit import Ids
from moorage.fit.budget import BudgetExceeded
from moorage.fit.cluster_fit import pods_per_row
from moorage.fit.node_filter import eligible
from moorage.fit.packing import (
    EXACT_NODES,
    SearchNode,
    Vector,
    enumeration_size,
    fill_nodes,
    maximal_choices,
    search_budget,
)
from moorage.model.shapes import Shape
from moorage.model.slots import part_and_class

from .families import Amounts, add
from .takeovers import AttemptState, Limits, Takeover

#: Pods, and nodes with older slots, beyond which no search is tried; steps of one that is not to be complete.
MOST_PODS, MOST_NODES, STEPS = 32, 32, 4_000


class _Pods(NamedTuple):
    """Pods of one object that need places. `older`: by node where the object is already, what one, two and more of them
    take."""

    shape: Shape
    older: Mapping[str, Sequence[Amounts]] = {}


class _Room:
    """The room of the nodes of a search, and what pods take there. `costs`: per group and node, what one, two and more of
    its pods take, as far as they fit alone."""

    def __init__(self, free: Sequence[Vector], costs: Sequence[Sequence[Sequence[Vector]]]) -> None:
        self.free, self.costs = free, costs

    def most(self, at: int, taken: Sequence[int], group: int, limit: int) -> int:
        """Returns how many pods of a group, at most `limit`, the node holds beside so many of the others."""
        left = list(self.free[at])
        for other, count in enumerate(taken):
            for column, amount in enumerate(self.costs[other][at][count - 1] if count and other != group else ()):
                left[column] -= amount
        for count in range(limit, 0, -1):
            if _within(self.costs[group][at][count - 1], left):
                return count
        return 0

    def search(self, counts: Sequence[int]) -> list[list[int]] | None:
        """Returns pods per group and node, or None where none were found."""
        alone = [tuple(len(of_group[at]) for of_group in self.costs) for at in range(len(self.free))]
        usable = [at for at, most in enumerate(alone) if any(most)]
        budget, nodes = search_budget(sum(counts), len(usable), STEPS), []
        try:
            for at in usable:
                budget.spend(enumeration_size(alone[at]))
                groups: list[tuple[int, Vector, int]] = [(g, (), most) for g, most in enumerate(alone[at]) if most]
                groups.sort(key=lambda group: group[2])
                choices = maximal_choices((), groups, len(counts), budget, partial(self.most, at))
                nodes.append(SearchNode(at, alone[at], choices))
            nodes.sort(key=lambda node: len(node.choices))
            found = fill_nodes(nodes, tuple(counts), len(self.free), budget)
        except BudgetExceeded:
            return None
        return None if found is None else [of_group.tolist() for of_group in found]


def joint_limits(
    attempt: AttemptState, updates: Mapping[int, tuple[Takeover, int]], others: Sequence[Shape]
) -> Limits | None:
    """Returns how many older slots are taken over such that all pods fit by what nodes have free; None where no such way was
    found. `updates`: by number of the object, its slots that are kept and how many pods need one; `others`: what else is
    assigned. Optional needs, parts of nodes and rules of pods about each other are not looked at."""
    fixed = [shape for shape in others if shape.per_node]
    pods = {number: _Pods(*takeover.costs(missing)) for number, (takeover, missing) in updates.items() if missing}
    groups = [*pods.values(), *(_Pods(shape) for shape in others if shape.count and not shape.per_node)]
    older = sorted({node for group in groups for node in group.older})
    if not pods or sum(group.shape.count for group in groups) > MOST_PODS or len(older) > MOST_NODES:
        return None
    rows = _rows_to_search(attempt, groups, older)
    room = _room_of(attempt, groups, fixed, rows)
    found = room.search([group.shape.count for group in groups])
    if found is None:
        return None
    at = {attempt.fleet.node_name(row): position for position, row in enumerate(rows.tolist())}
    return {
        (number, node): of_node[at[node]]
        for (number, group), of_node in zip(pods.items(), found, strict=False)
        for node in group.older
    }


def _rows_to_search(attempt: AttemptState, groups: Sequence[_Pods], older: Sequence[str]) -> Ids:
    """Returns the nodes with older slots, and of the others those with the most room, as many as a search may have."""
    fleet, cid = attempt.fleet, attempt.cid
    rows = fleet.rows_of(cid)
    if len(rows) <= EXACT_NODES:
        return rows
    own = np.array([row for node in older if (row := fleet.row_of(cid, node)) is not None], rows.dtype)
    rest = np.setdiff1d(rows, own)
    pods = np.zeros(len(rest), np.int64)
    for group in groups:
        shape = group.shape
        pods += eligible(fleet, shape, rest) * pods_per_row(fleet, shape.resources, shape.count, rest)
    emptiest = rest[np.argsort(-pods, kind="stable")]
    size = EXACT_NODES if len(own) < EXACT_NODES else MOST_NODES
    return np.concatenate([own, emptiest[: size - len(own)]])


def _room_of(attempt: AttemptState, groups: Sequence[_Pods], fixed: Sequence[Shape], rows: Ids) -> _Room:
    """Returns what the rows have free beside pods that run on every node, and what pods of the groups take there."""
    fleet = attempt.fleet
    names = list(
        dict.fromkeys(
            name
            for group in groups
            for amounts in (group.shape.resources, *(one for costs in group.older.values() for one in costs))
            for name in amounts
            if part_and_class(name) is None
        )
    )
    columns = [None if (column := fleet.free(name)) is None else column[rows].tolist() for name in names]
    on_each = [(shape.resources, eligible(fleet, shape, rows)) for shape in fixed]
    able = [eligible(fleet, group.shape, rows) for group in groups]
    free: list[Vector] = []
    costs: list[list[list[Vector]]] = [[] for _ in groups]
    for position, row in enumerate(rows.tolist()):
        node = fleet.node_name(row)
        taken = dict(attempt.taken.get(node, {}))
        for resources, runs in on_each:
            add(taken, resources, int(runs[position]))
        left = tuple(
            (0 if column is None else column[position]) - taken.get(name, 0)
            for name, column in zip(names, columns, strict=True)
        )
        free.append(left)
        for number, group in enumerate(groups):
            if (beside := group.older.get(node)) is not None:
                found = [tuple(amounts.get(name, 0) for name in names) for amounts in beside]
            else:
                need = [group.shape.resources.get(name, 0) for name in names]
                most = range(1, group.shape.count + 1 if able[number][position] else 1)
                found = [tuple(pods * amount for amount in need) for pods in most]
            costs[number].append([cost for cost in found if _within(cost, left)])
    return _Room(free, costs)


def _within(cost: Vector, left: Sequence[int]) -> bool:
    """Returns whether there is room. What takes nothing of a resource fits however little of that is left."""
    return all(amount <= have for amount, have in zip(cost, left, strict=True) if amount)
