"""All pods of all apps onto the nodes of one cluster together: the exact answer behind every claim.

Never accepts what does not fit; complete for up to 8 pods on 16 nodes, bounded beyond. Optional needs are granted the
heaviest first, to whole objects, and only while everything still fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moorage.model.claims import Slot
from moorage.model.shapes import Shape

from .fit_cache import unsupported_reason
from .node_filter import eligible, other_host, selected_by_terms, with_label
from .packing import Bound, Packed, Problem, capacity, pack
from .protocols import Amounts, Ids, Mask, Rows

STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Assigned:
    """Per shape, its runs of pods, and the indexes of the optional needs that all its pods got."""

    slots: list[list[Slot]]
    met: list[list[int]]


@dataclass(frozen=True, slots=True)
class Unassigned:
    """Why not: a reason code, the shape it is about, and where one resource is short, how much of it."""

    code: str
    shape: int
    resource: str = ""
    needed: int = 0
    best: int = 0
    message: str = ""


class _Cluster:
    """One cluster's nodes as small matrices, and what is asked of them."""

    def __init__(self, rows: Rows, where: Ids, shapes: Sequence[Shape]) -> None:
        self.rows, self.where, self.shapes = rows, where, shapes
        names = {r: None for shape in shapes for r, need in shape.resources.items() if need > 0}
        names.update({r: None for s in shapes for o in s.optional for r, need in o.resources.items() if need > 0})
        self.resources = list(names)
        columns = (rows.free(resource) for resource in self.resources)
        none = np.zeros(len(where), np.int64)
        self.free: Amounts = np.array([none if free is None else free[where] for free in columns], np.int64).T
        self.able = [eligible(rows, shape, where) for shape in shapes]

    def need(self, shape: Shape, granted: Iterable[int]) -> list[int]:
        need = [shape.resources.get(r, 0) for r in self.resources]
        for i in granted:
            more = shape.optional[i].resources
            need = [amount + more.get(r, 0) for amount, r in zip(need, self.resources, strict=True)]
        return need

    def able_with(self, number: int, granted: Iterable[int]) -> Mask:
        """Nodes that the shape's pods may go to, with the labels of what they are granted."""
        mask = self.able[number]
        for i in granted:
            carried = with_label(self.rows, self.shapes[number].optional[i].label, self.where)
            if carried is not None:
                mask = mask & carried
        return mask

    def pack(self, granted: Sequence[Sequence[int]], steps: int) -> Packed | int:
        """Pods per shape and node, or the shape that fails. Raises Bound."""
        free = self.free.copy()
        packed = np.zeros((len(self.shapes), len(self.where)), np.int64)
        groups: list[int] = []
        for number, shape in enumerate(self.shapes):
            if shape.per_node:
                # No choice here: one pod on every node that matches, before all others.
                able, need = self.able[number], np.array(self.need(shape, granted[number]), np.int64)
                free[able] -= need
                if not able.any() or not self.able_with(number, granted[number])[able].all():
                    return number
                if (free[able][:, need > 0] < 0).any():
                    return number
                packed[number] = able
            elif shape.count > 0:
                groups.append(number)
        if not groups:
            return packed
        problem = Problem(
            free=free,
            needs=np.array([self.need(self.shapes[g], granted[g]) for g in groups], np.int64),
            counts=[self.shapes[g].count for g in groups],
            able=np.array([self.able_with(g, granted[g]) for g in groups]),
        )
        found = pack(problem, steps)
        if isinstance(found, int):
            return groups[found]
        packed[groups] = found
        return packed

    def refusal(self, together: Unassigned) -> Unassigned:
        """What stands against a shape alone; else why they do not go together."""
        alone = (self.alone(number) for number in range(len(self.shapes)))
        return next((reason for reason in alone if reason is not None), together)

    def alone(self, number: int) -> Unassigned | None:
        shape, able = self.shapes[number], self.able[number]
        if not shape.count and not shape.per_node:
            return None
        if not able.any():
            named = selected_by_terms(self.rows, shape.terms, self.where)
            missing = named is not None and not named.any()
            return Unassigned("LabelMissing" if missing else "NodesUnusable", number)
        need, free = np.array(self.need(shape, ()), np.int64), self.free[able]
        # A pod that runs on every node is refused by the least of them, any other only by the best.
        have = free.min(axis=0) if shape.per_node else free.max(axis=0)
        for column, resource in enumerate(self.resources):
            if need[column] > max(0, have[column]):
                return Unassigned("ResourceShort", number, resource, int(need[column]), int(have[column]))
        if shape.per_node:
            return None
        pods = int(capacity(self.free, need, able, shape.count).sum())
        if not pods:
            return Unassigned("ResourceShort", number, message="no node has enough of all resources at once")
        return Unassigned("CapacityShort", number, "", shape.count, pods) if pods < shape.count else None

    def assigned(self, packed: Packed, granted: Sequence[Sequence[int]]) -> Assigned:
        slots: list[list[Slot]] = [[] for _ in self.shapes]
        taking = []  # per shape, what one of its pods takes
        for shape, options in zip(self.shapes, granted, strict=True):
            resources = {r: need for r, need in shape.resources.items() if need > 0}
            for i in options:
                for r, more in shape.optional[i].resources.items():
                    resources[r] = resources.get(r, 0) + more
            taking.append(resources)
        numbers, nodes = packed.nonzero()
        for number, row, count in zip(
            numbers.tolist(), self.where[nodes].tolist(), packed[numbers, nodes].tolist(), strict=True
        ):
            name, host = self.rows.node_name(row), other_host(self.rows, row)
            slots[number].append(Slot(node=name, host=host, count=count, resources=dict(taking[number])))
        return Assigned(slots, [sorted(g) for g in granted])


def assign(rows: Rows, where: Ids, shapes: Sequence[Shape], *, steps: int = STEPS) -> Assigned | Unassigned:
    """Places for all pods of `shapes` on the rows `where` of one cluster."""
    for number, shape in enumerate(shapes):
        reason = unsupported_reason(shape)
        if reason:
            return Unassigned("Unsupported", number, message=reason)
    cluster = _Cluster(rows, where, shapes)
    options = [(-o.weight, number, i) for number, s in enumerate(shapes) for i, o in enumerate(s.optional)]
    options.sort()
    granted: list[list[int]] = [[] for _ in shapes]
    if options:
        everything = [list(range(len(s.optional))) for s in shapes]
        all_granted = _tried(cluster, everything, 0)
        if all_granted is not None:
            return cluster.assigned(all_granted, everything)
    try:
        packed = cluster.pack(granted, steps)
    except Bound:
        return cluster.refusal(Unassigned("SearchBound", 0))
    if isinstance(packed, int):
        return cluster.refusal(Unassigned("PackingFails", packed))
    for _, number, i in options:
        wider = [[*g, i] if n == number else g for n, g in enumerate(granted)]
        better = _tried(cluster, wider, steps)
        if better is not None:
            packed, granted = better, wider
    return cluster.assigned(packed, granted)


def _tried(cluster: _Cluster, granted: Sequence[Sequence[int]], steps: int) -> Packed | None:
    """A packing with these optional needs granted. An optional need that is not found in bounds is not granted."""
    try:
        found = cluster.pack(granted, steps)
    except Bound:
        return None
    return None if isinstance(found, int) else found


def still_fits(rows: Rows, where: Ids, shapes: Sequence[Shape], slots: Sequence[Sequence[Slot]]) -> bool:
    """Whether slots assigned earlier are still there: others may have committed and nodes changed meanwhile."""
    by_name = {rows.node_name(int(row)): at for at, row in enumerate(where)}
    used: dict[str, Amounts] = {}
    for shape, runs in zip(shapes, slots, strict=True):
        able = eligible(rows, shape, where)
        for slot in runs:
            at = by_name.get(slot.node)
            if at is None or not able[at]:
                return False
            for resource, amount in slot.resources.items():
                column = used.setdefault(resource, np.zeros(len(where), np.int64))
                column[at] += amount * slot.count
    for resource, column in used.items():
        free = rows.free(resource)
        if free is None or (column > free[where])[column > 0].any():
            return False
    return True
