"""Assigns all pods of all apps to the nodes of one cluster jointly: the exact answer behind every claim.

An assignment always fits. The search is complete for up to 8 pods on 16 nodes and bounded beyond; then solutions that were
found elsewhere are used. Optional needs are granted the heaviest first, to all pods of an object, and only while everything still fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moorage.model.claims import Slot
from moorage.model.shapes import Shape

from .cluster_fit import add_optional, unsupported_reason
from .node_filter import eligible, other_host, selected_by_terms, with_label
from .packing import BudgetExceeded, Packed, PackingProblem, PackingSolutions, capacity, pack
from .protocols import Amounts, Ids, Mask, Rows

MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Assigned:
    """Per shape: its slots (runs of equal pods on a node), and the indexes of the optional needs granted to all its pods."""

    slots: list[list[Slot]]
    met: list[list[int]]


@dataclass(frozen=True, slots=True)
class Unassigned:
    """Says why there is no assignment: a reason code and the shape that fails, with the amounts where one resource is
    short (`best`: the most that a node has free; for CapacityShort, the pods that fit)."""

    code: str
    shape: int
    resource: str = ""
    needed: int = 0
    best: int = 0
    message: str = ""


class _ClusterNodes:
    """The nodes of one cluster as small matrices, with the shapes to place on them."""

    def __init__(self, rows: Rows, where: Ids, shapes: Sequence[Shape]) -> None:
        self.rows, self.where, self.shapes = rows, where, shapes
        names = {r: None for shape in shapes for r, need in shape.resources.items() if need > 0}
        names.update({r: None for s in shapes for o in s.optional for r, need in o.resources.items() if need > 0})
        self.resources = list(names)
        columns = (rows.free(resource) for resource in self.resources)
        zeros = np.zeros(len(where), np.int64)
        self.free: Amounts = np.array([zeros if free is None else free[where] for free in columns], np.int64).T
        self.feasible = [eligible(rows, shape, where) for shape in shapes]

    def need(self, shape: Shape, granted: Iterable[int]) -> list[int]:
        """The amount of each resource that one pod takes with these optional needs granted."""
        requests = pod_requests(shape, granted)
        return [requests.get(r, 0) for r in self.resources]

    def feasible_with(self, number: int, granted: Iterable[int]) -> Mask:
        """Nodes that pass the shape's filters and carry the labels of its granted optional needs."""
        mask = self.feasible[number]
        for i in granted:
            labelled = with_label(self.rows, self.shapes[number].optional[i].label, self.where)
            if labelled is not None:
                mask = mask & labelled
        return mask

    def pack(
        self, granted: Sequence[Sequence[int]], steps: int, solutions: PackingSolutions | None = None
    ) -> Packed | int:
        """Returns pods per shape and node, or the number of the shape that fails. Raises BudgetExceeded."""
        free = self.free.copy()
        packed = np.zeros((len(self.shapes), len(self.where)), np.int64)
        groups: list[int] = []
        for number, shape in enumerate(self.shapes):
            if shape.per_node:
                # A pod per matching node leaves no choice, so these are placed before all others.
                feasible, need = self.feasible[number], np.array(self.need(shape, granted[number]), np.int64)
                free[feasible] -= need
                if not feasible.any() or not self.feasible_with(number, granted[number])[feasible].all():
                    return number
                if (free[feasible][:, need > 0] < 0).any():
                    return number
                packed[number] = feasible
            elif shape.count > 0:
                groups.append(number)
        if not groups:
            return packed
        problem = PackingProblem(
            free=free,
            needs=np.array([self.need(self.shapes[g], granted[g]) for g in groups], np.int64),
            counts=[self.shapes[g].count for g in groups],
            feasible=np.array([self.feasible_with(g, granted[g]) for g in groups]),
        )
        result = pack(problem, steps, solutions)
        if isinstance(result, int):
            return groups[result]
        packed[groups] = result
        return packed

    def failure(self, joint: Unassigned) -> Unassigned:
        """Returns the first shape that fails even alone; else `joint`, the failure of all shapes together."""
        alone = (self.single_shape_failure(number) for number in range(len(self.shapes)))
        return next((failure for failure in alone if failure is not None), joint)

    def single_shape_failure(self, number: int) -> Unassigned | None:
        """Says why the shape does not fit with the cluster to itself; None if it does."""
        shape, feasible = self.shapes[number], self.feasible[number]
        if not shape.count and not shape.per_node:
            return None
        if not feasible.any():
            selected = selected_by_terms(self.rows, shape.terms, self.where)
            missing = selected is not None and not selected.any()
            return Unassigned("LabelMissing" if missing else "NodesUnusable", number)
        need, free = np.array(self.need(shape, ()), np.int64), self.free[feasible]
        # The smallest node decides for a pod that runs on every node, the largest for any other.
        have = free.min(axis=0) if shape.per_node else free.max(axis=0)
        for column, resource in enumerate(self.resources):
            if need[column] > max(0, have[column]):
                return Unassigned("ResourceShort", number, resource, int(need[column]), int(have[column]))
        if shape.per_node:
            return None
        pods = int(capacity(self.free, need, feasible, shape.count).sum())
        if not pods:
            return Unassigned("ResourceShort", number, message="no node has enough of all resources at once")
        return Unassigned("CapacityShort", number, "", shape.count, pods) if pods < shape.count else None

    def assignment(self, packed: Packed, granted: Sequence[Sequence[int]]) -> Assigned:
        """Turns packed pods into slots that name their nodes."""
        slots: list[list[Slot]] = [[] for _ in self.shapes]
        requests = [pod_requests(shape, options) for shape, options in zip(self.shapes, granted, strict=True)]
        numbers, nodes = packed.nonzero()
        for number, row, count in zip(
            numbers.tolist(), self.where[nodes].tolist(), packed[numbers, nodes].tolist(), strict=True
        ):
            name, host = self.rows.node_name(row), other_host(self.rows, row)
            slots[number].append(Slot(node=name, host=host, count=count, resources=dict(requests[number])))
        return Assigned(slots, [sorted(g) for g in granted])


def pod_requests(shape: Shape, granted: Iterable[int]) -> dict[str, int]:
    """Returns the request of one pod of the shape per resource, with these optional needs granted."""
    requests = {r: need for r, need in shape.resources.items() if need > 0}
    for i in granted:
        requests = add_optional(requests, shape.optional[i])
    return requests


def assign(
    rows: Rows,
    where: Ids,
    shapes: Sequence[Shape],
    *,
    steps: int = MAX_STEPS,
    solutions: PackingSolutions | None = None,
) -> Assigned | Unassigned:
    """Assigns all pods of `shapes` to the rows `where` of one cluster. `solutions` has the answers to hard problems, and
    learns which ones are missing."""
    for number, shape in enumerate(shapes):
        reason = unsupported_reason(shape)
        if reason:
            return Unassigned("Unsupported", number, message=reason)
    cluster = _ClusterNodes(rows, where, shapes)
    options = [(-o.weight, number, i) for number, s in enumerate(shapes) for i, o in enumerate(s.optional)]
    options.sort()
    granted: list[list[int]] = [[] for _ in shapes]
    if options:
        everything = [list(range(len(s.optional))) for s in shapes]
        all_granted = _try_pack(cluster, everything, 0)
        if all_granted is not None:
            return cluster.assignment(all_granted, everything)
    try:
        packed = cluster.pack(granted, steps, solutions)
    except BudgetExceeded as bound:
        gave_up = f"gave up after {bound.seconds * 1e3:.0f} ms; it may fit" if bound.seconds else ""
        return cluster.failure(Unassigned("SearchBound", 0, message=gave_up))
    if isinstance(packed, int):
        return cluster.failure(Unassigned("PackingFails", packed))
    for _, number, i in options:
        extended = [[*g, i] if n == number else g for n, g in enumerate(granted)]
        repacked = _try_pack(cluster, extended, steps)
        if repacked is not None:
            packed, granted = repacked, extended
    return cluster.assignment(packed, granted)


def _try_pack(cluster: _ClusterNodes, granted: Sequence[Sequence[int]], steps: int) -> Packed | None:
    """Packs with these optional needs granted. None where the search fails or is cut off: optional needs are granted
    only when proven to fit."""
    try:
        packed = cluster.pack(granted, steps)
    except BudgetExceeded:
        return None
    return None if isinstance(packed, int) else packed


def still_fits(rows: Rows, where: Ids, shapes: Sequence[Shape], slots: Sequence[Sequence[Slot]]) -> bool:
    """Checks that slots assigned earlier still fit; other commits and changes of nodes may have taken their capacity."""
    by_name = {rows.node_name(int(row)): at for at, row in enumerate(where)}
    used: dict[str, Amounts] = {}
    for shape, runs in zip(shapes, slots, strict=True):
        feasible = eligible(rows, shape, where)
        for slot in runs:
            at = by_name.get(slot.node)
            if at is None or not feasible[at]:
                return False
            for resource, amount in slot.resources.items():
                column = used.setdefault(resource, np.zeros(len(where), np.int64))
                column[at] += amount * slot.count
    for resource, column in used.items():
        free = rows.free(resource)
        if free is None or (column > free[where])[column > 0].any():
            return False
    return True
