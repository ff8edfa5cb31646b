"""Packs the pods of shapes onto the nodes of one cluster, and says which shape does not fit, and why."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from moorage.model.claims import Slot
from moorage.model.machine_slots import machine_of
from moorage.model.shapes import Shape
from moorage.model.slots import with_parts
from moorage.podspec import is_host_port, port_text

from .asked_parts import asks_parts
from .budget import BudgetExceeded
from .cluster_fit import add_optional
from .inner_nodes import InnerGroups, InnerNodes
from .node_filter import eligible, other_host, selected_by_terms, with_label
from .packing import Packed, PackingProblem, PackingSolutions, PreferredPlaces, ProblemKey, capacity, pack
from .pod_rules import ExclusiveNodes, PodRules, compile_rules
from .protocols import Amounts, Ids, Mask, Rows
from .rule_limits import rule_limits
from .rule_packing import pack_with_rules
from .shared_slots import SharedNodes

MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Assigned:
    """Per shape: its slots (runs of equal pods on a node), and the indexes of the optional needs granted to all its pods."""

    slots: list[list[Slot]]
    met: list[list[int]]


@dataclass(frozen=True, slots=True)
class Unassigned:
    """The reason why there is no assignment: a code and the shape that fails, with the amounts where one resource is
    short (`best`: the most that a node has free; for CapacityShort, the pods that fit)."""

    code: str
    shape: int
    resource: str = ""
    needed: int = 0
    best: int = 0
    message: str = ""


def parts_serve(pods: int, of: int) -> str:
    """Says how many pods parts are there for."""
    return f"parts of the nodes serve {pods} of the {of} pods"


class ClusterNodes:
    """The nodes of one cluster as small matrices, with the shapes to place on them."""

    def __init__(
        self,
        rows: Rows,
        where: Ids,
        shapes: Sequence[Shape],
        taken: Mapping[int, Mapping[str, int]],
        kept: Sequence[Sequence[Slot]] | None = None,
    ) -> None:
        self.rows, self.where, self.shapes = rows, where, shapes
        names = {r: None for shape in shapes for r, need in shape.resources.items() if need > 0}
        names.update({r: None for s in shapes for o in s.optional for r, need in o.resources.items() if need > 0})
        self.resources = list(names)
        columns = (rows.free(resource) for resource in self.resources)
        zeros = np.zeros(len(where), np.int64)
        self.free: Amounts = np.array([zeros if free is None else free[where] for free in columns], np.int64).T
        for row, amounts in taken.items():
            at = np.flatnonzero(where == row)
            for column, resource in enumerate(self.resources):
                self.free[at, column] -= amounts.get(resource, 0)
        shared = self._shared = SharedNodes(rows, where, shapes, taken)
        for position, left in shared.free().items() if taken else ():
            for column, resource in enumerate(self.resources):
                if resource in left:
                    self.free[position, column] = left[resource]
        self.feasible = _eligible_by_shape(rows, shapes, where)
        self._alone: dict[tuple[int, tuple[int, ...]], bool] = {}
        self.rules: PodRules | None = None
        self.exclusive: list[ExclusiveNodes] = []
        if any(shape.rules for shape in shapes):
            groups = [number for number, shape in enumerate(shapes) if not shape.per_node and shape.count > 0]
            fixed = pods_of(kept, rows, where) if kept else np.zeros((len(shapes), len(where)), np.int64)
            self.rules, self.exclusive = compile_rules(rows, where, shapes, fixed, groups)
            self.free = np.column_stack([self.free, *(exclusive.free for exclusive in self.exclusive)])
        self.inner: InnerNodes | None = None
        if shared or any(asks_parts(shape, rows) for shape in shapes):
            self.inner = InnerNodes(rows, where, shapes, taken)

    def need(self, number: int, granted: Iterable[int]) -> list[int]:
        """Returns the amount of each resource that one pod takes with these optional needs granted."""
        requests = pod_requests(self.shapes[number], granted)
        exclusive = [int(rule.needs[number]) for rule in self.exclusive]
        return [requests.get(r, 0) for r in self.resources] + exclusive

    def feasible_with(self, number: int, granted: Iterable[int]) -> Mask:
        """Returns the nodes that pass the shape's filters and carry the labels of its granted optional needs."""
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
                feasible, need = self.feasible[number], np.array(self.need(number, granted[number]), np.int64)
                free[feasible] -= need
                if not feasible.any() or not self.feasible_with(number, granted[number])[feasible].all():
                    return number
                if (free[feasible][:, need > 0] < 0).any():
                    return number
                packed[number] = feasible
            elif shape.count > 0:
                groups.append(number)
        if self.inner is not None and packed.any():
            short = self._without_parts(packed, granted)
            if short is not None:
                return short
        if not groups:
            return packed if self.rules is None or self.rules.holds(packed) else self._first_with_rules()
        problem = PackingProblem(
            free=free,
            needs=np.array([self.need(g, granted[g]) for g in groups], np.int64),
            counts=[self.shapes[g].count for g in groups],
            feasible=np.array([self.feasible_with(g, granted[g]) for g in groups]),
            rules=self.rules.after(packed) if self.rules is not None else None,
            inner=InnerGroups(self.inner, groups, packed.copy(), granted) if self.inner is not None else None,
            preferred=self._preferred(groups, packed.copy()),
        )
        result = (pack if problem.rules is None else pack_with_rules)(problem, steps, solutions)
        if isinstance(result, int):
            return groups[result]
        packed[groups] = result
        return packed if self.rules is None or self.rules.holds(packed) else self._first_with_rules()

    def _preferred(self, groups: Sequence[int], fixed: Packed) -> PreferredPlaces | None:
        """Returns where pods go first that live in slots which others of their type have opened already. `fixed`: pods that are placed
        whatever the packing."""
        if not any(self._shared.lives_in_another(number) for number in groups):
            return None

        def places(group: int, packed: Packed) -> list[Amounts]:
            pods = fixed.copy()
            pods[groups] += packed
            return self._shared.in_opened(groups[group], pods)

        return places

    def chosen(self, solutions: PackingSolutions) -> Packed | None:
        """Returns where the algorithm that chooses devices puts the pods, if all of them need devices and fit there."""
        if self.inner is None or self.rules is not None or not all(map(_needs_devices, self.shapes)):
            return None
        feasible = np.array(self.feasible)
        key = self._problem_of_devices(feasible)
        if key not in solutions.solved:
            if solutions.choose is None:
                return None
            solutions.solved[key] = solutions.choose(self.shapes, self.where, feasible)
        found = solutions.solved[key]
        return found if isinstance(found, np.ndarray) and self._fits(found, feasible) else None

    def _problem_of_devices(self, feasible: Mask) -> ProblemKey:
        assert self.inner is not None
        needs = np.array([self.need(number, ()) for number in range(len(self.shapes))], np.int64)
        where = feasible.tobytes() + self.inner.digest() + _hash_of([shape.key for shape in self.shapes])
        return self.free.tobytes(), needs.tobytes(), tuple(shape.count for shape in self.shapes), where

    def _fits(self, packed: Packed, feasible: Mask) -> bool:
        assert self.inner is not None
        counts = [shape.count for shape in self.shapes]
        if packed.shape != feasible.shape or (packed[~feasible] > 0).any() or packed.sum(axis=1).tolist() != counts:
            return False
        needs = np.array([self.need(number, ()) for number in range(len(self.shapes))], np.int64)
        if (packed.T @ needs > np.maximum(self.free, 0)).any():
            return False
        nothing: list[list[int]] = [[] for _ in self.shapes]
        try:
            return self.inner.holds_all(packed, nothing)
        except BudgetExceeded:
            return False

    def _without_parts(self, packed: Packed, granted: Sequence[Sequence[int]]) -> int | None:
        """Returns a shape with a pod on every node for which a node has no parts; None if all have them."""
        assert self.inner is not None
        for at in np.flatnonzero(packed.any(axis=0)).tolist():
            if not self.inner.holds(at, packed[:, at].tolist(), granted):
                return next(n for n in np.flatnonzero(packed[:, at]).tolist() if self._asks_inside(n))
        if not self.inner.holds_all(packed, granted):
            return next(n for n in np.flatnonzero(packed.any(axis=1)).tolist() if self._asks_inside(n))
        return None

    def _asks_inside(self, number: int) -> bool:
        return asks_parts(self.shapes[number], self.rows) or bool(self.shapes[number].machine)

    def _first_with_rules(self) -> int:
        return next(number for number, shape in enumerate(self.shapes) if shape.rules)

    def failure(self, joint: Unassigned) -> Unassigned:
        """Returns the first shape that fails even alone; else `joint`, the failure of all shapes together."""
        alone = (self.single_shape_failure(number) for number in range(len(self.shapes)))
        found = next((failure for failure in alone if failure is not None), joint)
        if found.code == "PackingFails" and self.rules is not None:
            without = copy.copy(self)
            without.rules, without.exclusive = None, []
            without.free = self.free[:, : len(self.resources)]
            with contextlib.suppress(BudgetExceeded):
                if not isinstance(without.pack([()] * len(self.shapes), 0), int):
                    return dataclasses.replace(found, code="PodRulesFail", shape=self._first_with_rules())
        return found

    def single_shape_failure(self, number: int) -> Unassigned | None:
        """Returns why the shape does not fit with the cluster to itself; None if it does."""
        shape, feasible = self.shapes[number], self.feasible[number]
        if not shape.count and not shape.per_node:
            return None
        if not feasible.any():
            selected = selected_by_terms(self.rows, shape.terms, self.where)
            missing = selected is not None and not selected.any()
            return Unassigned("LabelMissing" if missing else "NodesUnusable", number)
        width = len(self.resources)
        need, free = np.array(self.need(number, ()), np.int64)[:width], self.free[feasible, :width]
        # The smallest node decides for a pod that runs on every node, the largest for any other.
        have = free.min(axis=0) if shape.per_node else free.max(axis=0)
        for column, resource in enumerate(self.resources):
            if need[column] > max(0, have[column]) and is_host_port(resource):
                return Unassigned("HostPortTaken", number, port_text(resource), shape.count, 0)
            if need[column] > max(0, have[column]):
                code = "ResourceShort" if machine_of(resource) is None else "SlotShort"
                return Unassigned(code, number, resource, int(need[column]), max(0, int(have[column])))
        pods = capacity(self.free[:, :width], need, feasible, 1 if shape.per_node else shape.count)
        if self.inner is not None and asks_parts(shape, self.rows):
            short = self._short_inside(number, pods)
            if short is not None:
                return short
        count, total = (int(feasible.sum()) if shape.per_node else shape.count), int(pods.sum())
        if not total:
            return Unassigned("ResourceShort", number, message="no node has enough of all resources at once")
        if total < count:
            return Unassigned("SlotShort" if shape.machine else "CapacityShort", number, "", count, total)
        return self._broken_rule(number, pods, count) if shape.rules else None

    def _short_inside(self, number: int, pods: Amounts) -> Unassigned | None:
        """Says that the parts of the nodes serve too few pods of the shape; None if they serve all."""
        assert self.inner is not None
        shape, nothing = self.shapes[number], [0] * len(self.shapes)
        none_granted: list[list[int]] = [[] for _ in self.shapes]
        held = 0
        for at in np.flatnonzero(pods).tolist():
            try:
                held += self.inner.most(at, nothing, number, int(pods[at]), none_granted)
            except BudgetExceeded:
                return Unassigned("SearchBound", number)
        count = int(np.count_nonzero(self.feasible[number])) if shape.per_node else shape.count
        if int(pods.sum()) < count:
            return None
        if self.inner.in_common and not shape.per_node:  # each node was asked as if it had these parts alone
            held = self._held_together(number, min(held, count))
        if held >= count:
            return None
        return Unassigned("PartShort", number, "", count, held, parts_serve(held, count))

    def _held_together(self, number: int, count: int) -> int:
        """Returns how many pods of the shape alone, at most `count`, nodes hold that reach the same parts."""
        alone = copy.copy(self)
        alone.rules, alone.exclusive, low, high = None, [], 0, count
        alone.free = self.free[:, : len(self.resources)]
        while low < high:
            middle = high if high - low == count else (low + high + 1) // 2
            alone.shapes = [
                msgspec.structs.replace(shape, count=middle if at == number else 0, per_node=False)
                for at, shape in enumerate(self.shapes)
            ]
            try:
                packed = alone.pack([()] * len(self.shapes), MAX_STEPS)
            except BudgetExceeded:
                packed = 0
            low, high = (low, middle - 1) if isinstance(packed, int) else (middle, high)
        return low

    def may_hold(self, granted: Sequence[Sequence[int]]) -> bool:
        """Returns whether each shape fits alone with its optional needs, which is much faster to tell than whether all fit."""
        for key in ((number, tuple(needs)) for number, needs in enumerate(granted) if needs):
            if key not in self._alone:
                self._alone[key] = self.holds_alone(*key)
            if not self._alone[key]:
                return False
        return True

    def holds_alone(self, number: int, granted: Sequence[int]) -> bool:
        """Returns whether the pods of one shape have room for these optional needs with the cluster to themselves."""
        shape, width = self.shapes[number], len(self.resources)
        feasible = self.feasible_with(number, granted)
        if shape.per_node:
            return bool(feasible[self.feasible[number]].all())
        need = np.array(self.need(number, granted), np.int64)[:width]
        return int(capacity(self.free[:, :width], need, feasible, shape.count).sum()) >= shape.count

    def _broken_rule(self, number: int, pods: Amounts, count: int) -> Unassigned | None:
        """Says which rule of the shape's pods about each other leaves too few places."""
        cluster = int(self.rows.cluster[self.where[0]])
        for code, limit in rule_limits(self.rows, self.shapes[number], self.where, pods):
            if limit[cluster] < count:
                message = f"room for at most {limit[cluster]} of the {count} pods"
                return Unassigned(code, number, "", count, int(limit[cluster]), message)
        return None

    def assignment(self, packed: Packed, granted: Sequence[Sequence[int]]) -> Assigned:
        """Turns packed pods into slots that name their nodes."""
        slots: list[list[Slot]] = [[] for _ in self.shapes]
        requests = [pod_requests(shape, options) for shape, options in zip(self.shapes, granted, strict=True)]
        places = self.inner.assign_held(packed, granted) if self.inner is not None else {}
        assert places is not None  # the packing asked the same
        numbers, nodes = packed.nonzero()
        for number, at, count in zip(numbers.tolist(), nodes.tolist(), packed[numbers, nodes].tolist(), strict=True):
            row = int(self.where[at])
            name, host = self.rows.node_name(row), other_host(self.rows, row)
            slot = Slot(node=name, host=host, count=count, resources=dict(requests[number]))
            slots[number] += with_parts(slot, places[at][number]) if places else [slot]
        return Assigned(slots, [sorted(g) for g in granted])


def _needs_devices(shape: Shape) -> bool:
    return not shape.per_node and shape.count > 0 and any(group.devices for group in shape.groups)


def _hash_of(value: object) -> bytes:
    """Returns a short form of the value, equal for equal ones in every process."""
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=16).digest()


def _eligible_by_shape(rows: Rows, shapes: Sequence[Shape], where: Ids) -> list[Mask]:
    """Returns the eligible rows of each shape. Most shapes of a group have the same terms and tolerations."""
    found: list[Mask] = []
    for number, shape in enumerate(shapes):
        before = shapes[number - 1] if number else None
        if before is not None and _filters(before) == _filters(shape):
            found.append(found[-1])
        else:
            found.append(eligible(rows, shape, where))
    return found


def _filters(shape: Shape) -> tuple[object, ...]:
    """Returns what `eligible` reads of a shape."""
    return shape.terms, shape.tolerations, shape.rules


def pods_of(slots_by_shape: Sequence[Sequence[Slot]], rows: Rows, where: Ids) -> Packed:
    """Returns the pods of slots per shape and node. Slots on nodes that are gone are left out."""
    pods = np.zeros((len(slots_by_shape), len(where)), np.int64)
    names = {rows.node_name(row): at for at, row in enumerate(where.tolist())}
    for number, slots in enumerate(slots_by_shape):
        for slot in slots:
            if (at := names.get(slot.node)) is not None:
                pods[number, at] += slot.count
    return pods


def pod_requests(shape: Shape, granted: Iterable[int]) -> dict[str, int]:
    """Returns the request of one pod of the shape per resource, with these optional needs granted."""
    requests = {r: need for r, need in shape.resources.items() if need > 0}
    for i in granted:
        requests = add_optional(requests, shape.optional[i])
    return requests
