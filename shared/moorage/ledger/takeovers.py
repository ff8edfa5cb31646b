"""Lets new slots of an object take over older ones, and plans which pods need other places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.fit import PackingSolutions, Unassigned
from moorage.fit.asked_parts import asks_parts
from moorage.fit.budget import BudgetExceeded
from moorage.fit.cluster_fit import pods_per_row
from moorage.fit.cluster_nodes import pod_requests
from moorage.fit.inner_nodes import InnerNodes
from moorage.fit.node_filter import eligible, other_host, with_label
from moorage.fleet import Fleet
from moorage.model.candidates import OwnClaim
from moorage.model.shapes import Requirement, Shape
from moorage.model.slots import Slot, part_and_class, resized, taken_by, with_parts
from moorage.parts.pod_request import granted_groups

from .families import (
    Amounts,
    CountedClaim,
    FamilyNodes,
    NodeAmounts,
    Run,
    add,
    at_least,
    beyond,
    reserved,
    runs_by_node,
)
from .held_devices import further_pods
from .kept_places import may_start, with_counts
from .room import free_of

#: By number of the object and node: how many older slots are taken over at most.
Limits = Mapping[tuple[int, str], int]


class Wanted(NamedTuple):
    """An object to place on a cluster. `claim`: its id there; `own`: the object's claims there, the newest last; `beside`: those of
    other objects of the app there."""

    shape: Shape
    claim: str
    own: Sequence[OwnClaim] = ()
    beside: Sequence[OwnClaim] = ()

    @property
    def mine(self) -> OwnClaim | None:
        """Returns the object's claim of this pod template, if it has one there."""
        return next((claim for claim in self.own if claim.id == self.claim), None)

    @property
    def is_update(self) -> bool:
        """Returns whether the object has claims of other pod templates there."""
        return any(claim.id != self.claim for claim in self.own)


@dataclass(slots=True)
class Plan:
    """The slots of one object that are fixed, and the shape of the pods that are to be assigned yet. `granted`: the optional
    needs of all of them; None if the assignment grants them. `taken_over`: how many pods have slots that take over older ones; these
    slots are the last."""

    slots: list[Slot]
    kept: bool
    shape: Shape | None = None
    granted: list[int] | None = None
    taken_over: int = 0


@dataclass(slots=True)
class AttemptState:
    """Holds what one try to assign all pods goes by. `without_surge`: numbers of objects that go without. `fill`: as many new
    slots as fit go where the object is already, which matters where it has more pods there than slots. `anew`: new slots take
    over no older ones. `mandatory`: pods of updates get no optional needs but those that kept slots have. `spread_surge`: slots for
    a surge go anywhere, not first where the object is already."""

    fleet: Fleet
    cid: int
    wanted: Sequence[Wanted]
    solutions: PackingSolutions | None
    without_surge: set[int] = field(default_factory=set)
    fill: bool = False
    anew: bool = False
    mandatory: bool = False
    spread_surge: bool = False
    limits: Limits = field(default_factory=dict)
    taken: NodeAmounts = field(default_factory=dict)  # beyond what the claims of the group take already


class Takeover:
    """Lets new slots of an object take over older ones."""

    def __init__(self, attempt: AttemptState, number: int, surge: int) -> None:
        one = attempt.wanted[number]
        self.attempt, self.number, self.shape, self.surge = attempt, number, one.shape, surge
        self.own = one.own
        self.kept: list[Slot] = []
        fleet, cid = attempt.fleet, attempt.cid

        def counted(claim: OwnClaim) -> CountedClaim:
            return CountedClaim.reported(claim.slots, claim.id, cid, fleet)

        self.now = FamilyNodes([counted(claim) for claim in one.own])
        self.older = FamilyNodes([counted(claim) for claim in one.own if claim.id != one.claim])
        self.mine = one.mine
        self._live: dict[str, int] = {}  # pods by node
        for claim in self.now.claims:
            add(self._live, claim.live)
        self._now: dict[str, dict[str, int]] = {}  # by node, what the slots take
        self._with_pods: dict[str, dict[str, int]] = {}  # and what they take with their pods

    def _extra(self, node: str, runs: Sequence[Run]) -> dict[str, int]:
        """Returns what these slots of the new claim take on the node beyond what the object's claims and pods take there now.
        A resource of which its slots take more, but not more than its pods, is there with 0: that may be only where the node
        has room for what is taken already."""
        if node not in self._now:
            self._now[node] = self.now.reserved_on(node)
            with_pods = self._with_pods[node] = dict(self._now[node])
            at_least(with_pods, self.now.pods(node))
        after = self.older.reserved_on(node, runs)
        have = self._with_pods[node]
        return {name: max(0, after[name] - have.get(name, 0)) for name in beyond(after, self._now[node])}

    def _fits(self, row: int, node: str, extra: Mapping[str, int], resources: Iterable[str] = ()) -> bool:
        """Returns whether the node has that much free. Of these resources it must not lack any either: a slot that takes no
        more than what is counted already may be among those that do not fit."""
        taken = self.attempt.taken.get(node, {})
        for name in {*extra, *resources}:
            free = free_of(self.attempt.fleet, row, name)
            if free is None or free - taken.get(name, 0) < extra.get(name, 0):
                return False
        return True

    def _take(self, slots: Sequence[Slot]) -> None:
        """Takes what these slots need."""
        for node, runs in runs_by_node(slots).items():
            extra = self._extra(node, runs)
            if extra:
                add(self.attempt.taken.setdefault(node, {}), extra)

    def _grants(self) -> Iterator[list[int]]:
        """Yields the optional needs to try for all pods: those that its slots have, else all, those that the older claim had,
        and none."""
        wishes = self.shape.optional
        claim = self.mine if self.kept and self.mine is not None else self.own[-1]
        had = {(grant.consumer, grant.need) for grant in claim.optional if grant.granted}
        granted = [i for i, wish in enumerate(wishes) if (wish.consumer, wish.name) in had]
        if self.kept:
            yield granted
            return
        if wishes and not self.attempt.mandatory:
            yield list(range(len(wishes)))
            if 0 < len(granted) < len(wishes):
                yield granted
        yield []

    def _keep(self, count: int) -> int:
        """Keeps the slots that the claim has already, as far as they fit: those with pods first, those for a surge last.
        Returns how many pods still need one."""
        if self.mine is None:
            return count
        fleet, cid = self.attempt.fleet, self.attempt.cid
        slots = sorted(self.mine.slots, key=lambda slot: slot.surge)
        left = CountedClaim.reported(slots, self.mine.id, cid, fleet).open
        kept = dict.fromkeys(range(len(slots)), 0)
        runs: dict[str, list[Run]] = {}
        for covered in (True, False):
            for number, slot in enumerate(slots):
                pods = min(count, slot.count - left[number] if covered else left[number])
                row = fleet.row_of(cid, slot.node)
                here = runs.get(slot.node, [])
                while pods and not (
                    row is not None
                    and (covered or may_start(slot, self.mine.id, cid, fleet))
                    and self._fits(
                        row,
                        slot.node,
                        self._extra(slot.node, [*here, (taken_by(slot), pods)]),
                        () if covered else taken_by(slot),
                    )
                ):
                    pods -= 1
                if pods:
                    kept[number] += pods
                    count -= pods
                    runs.setdefault(slot.node, []).append((taken_by(slot), pods))
        self.kept = with_counts(slots, kept)
        return count

    def most_free(self, resource: str) -> int:
        """Returns the most of a resource that a node where the object is has free, with what the object takes there."""
        fleet, cid = self.attempt.fleet, self.attempt.cid
        most = 0
        for node in self.now.nodes():
            row = fleet.row_of(cid, node)
            free = free_of(fleet, row, resource) if row is not None else None
            if free is not None:
                own = self.now.reserved_on(node)
                most = max(most, free + own.get(resource, 0))
        return most

    def keep(self) -> int:
        """Keeps and takes the slots that the claim has already. Returns how many pods still need one."""
        missing = self._keep(self.shape.count + self.surge)
        self._take(self.kept)
        return missing

    def costs(self, missing: int) -> tuple[Shape, dict[str, list[Amounts]]]:
        """Returns the shape of the pods that still need a slot, and by node where the object is already what one, two and more of
        them take there beside the slots that are kept, as far as they fit."""
        granted = next(self._grants())
        resources = pod_requests(self.shape, granted)
        kept = runs_by_node(self.kept)
        found: dict[str, list[Amounts]] = {}
        for node, row, may in self._own_nodes(granted):
            runs = kept.get(node, [])
            now = self._extra(node, runs) if runs else {}
            costs: list[Amounts] = []
            while may and len(costs) < missing:
                extra = self._extra(node, [*runs, (resources, len(costs) + 1)])
                cost = {name: amount - now.get(name, 0) for name, amount in extra.items()}
                if not self._fits(row, node, cost, resources):
                    break
                costs.append(cost)
            found[node] = costs
        return self._shape_with(granted, missing), found

    def plan(self) -> Plan:
        """Returns the slots that are kept or take over older ones, and the shape of the pods that remain."""
        missing = self._keep(self.shape.count + self.surge)
        if not missing:
            self._take(self.kept)
            return Plan(self.kept, True)
        best: tuple[list[Slot], list[int]] | None = None
        for granted in self._grants():
            slots = self._take_over(missing, granted)
            best = slots, granted
            left = missing - sum(slot.count for slot in slots)
            if not granted or left <= 0 or self._counts(granted, [*self.kept, *slots], left):
                break
        assert best is not None
        slots, granted = best
        self._take([*self.kept, *slots])
        left = missing - sum(slot.count for slot in slots)
        rest = self._shape_with(granted, left, slots) if left else None
        return Plan([*self.kept, *slots], bool(self.kept), rest, granted, missing - left)

    def _shape_with(self, granted: Sequence[int], count: int, others: Sequence[Slot] = ()) -> Shape:
        """Returns the shape with these optional needs as mandatory ones, and without the others. `others`: new slots beside those
        that are kept."""
        shape = self.shape
        labels = [
            Requirement(key=label[0], operator="In", values=(label[1],))
            for i in granted
            if (label := shape.optional[i].label) is not None
        ]
        terms = [[*term, *labels] for term in shape.terms] if shape.terms else [labels] if labels else []
        groups = list(granted_groups(shape, granted)) if shape.groups else shape.groups
        rest = msgspec.structs.replace(
            shape, count=count, resources=pod_requests(shape, granted), optional=[], terms=terms, groups=groups
        )
        return further_pods(rest, (*self.kept, *others), self.attempt.fleet, self.attempt.cid)

    def _labelled(self, rows: NDArray[np.intp], granted: Sequence[int]) -> NDArray[np.bool_]:
        """Returns which rows have the labels of these optional needs."""
        able = np.ones(rows.size, np.bool_)
        for i in granted:
            labelled = with_label(self.attempt.fleet, self.shape.optional[i].label, rows)
            able = able if labelled is None else able & labelled
        return able

    def _own_nodes(self, granted: Sequence[int]) -> list[tuple[str, int, bool]]:
        """Returns the nodes with older slots or pods of the object, first those where pods run, and whether new slots may be
        there."""
        fleet, cid = self.attempt.fleet, self.attempt.cid
        own = self.older.nodes() | self._live.keys()
        nodes = [(node, row) for node in own if (row := fleet.row_of(cid, node)) is not None]
        nodes.sort(key=lambda item: (item[0] not in self._live, item[0]))
        where = np.array([row for _, row in nodes], np.intp)
        able = eligible(fleet, self.shape, where) if nodes else np.empty(0, np.bool_)
        able = able & self._labelled(where, granted)
        return [(node, row, may) for (node, row), may in zip(nodes, able.tolist(), strict=True)]

    def _take_over(self, missing: int, granted: Sequence[int]) -> list[Slot]:
        """Returns new slots in the places of older ones or of pods, first where pods of the object run."""
        fleet = self.attempt.fleet
        resources = pod_requests(self.shape, granted)
        kept = runs_by_node(self.kept)
        slots: list[Slot] = []
        for node, row, may in self._own_nodes(granted):
            runs = kept.get(node, [])
            places = max(self.older.places(node), self._live.get(node, 0)) - sum(count for _, count in runs)
            limit = self.attempt.limits.get((self.number, node), missing)
            most = min(missing, limit, missing if self.attempt.fill else places) if may else 0
            slot = Slot(node=node, host=other_host(fleet, row), resources=dict(resources))
            while most > 0 and not self._fits(row, node, self._extra(node, [*runs, (resources, most)]), resources):
                most -= 1
            found = [resized(slot, most)] if most > 0 else []
            if asks_parts(self.shape, fleet):
                found = self._with_parts(slot, row, most, granted, runs, slots)
            slots += found
            missing -= sum(one.count for one in found)
        if 0 < missing <= self.surge and self._keeps_surge_together():
            slots += self._surge_beside(slots, missing, granted)
        return slots

    def _keeps_surge_together(self) -> bool:
        """Returns whether pods of the surge may go where the object is already, whatever else is on its nodes."""
        attempt = self.attempt
        together = not (attempt.spread_surge or attempt.limits)
        return together and not self.shape.rules and not asks_parts(self.shape, attempt.fleet)

    def _surge_beside(self, others: Sequence[Slot], missing: int, granted: Sequence[int]) -> list[Slot]:
        """Returns slots for the surge beside the object's other ones. Pods prefer all nodes of their slots alike: one that a further
        node has for the time of a rollout would draw pods that must leave it, or be followed, after that."""
        fleet = self.attempt.fleet
        resources = pod_requests(self.shape, granted)
        runs = runs_by_node([*self.kept, *others])
        slots: list[Slot] = []
        for node, row, may in self._own_nodes(granted) if missing else ():
            here = runs.get(node, [])
            most = missing if may and here else 0
            while most > 0 and not self._fits(row, node, self._extra(node, [*here, (resources, most)]), resources):
                most -= 1
            if most:
                slots.append(Slot(node=node, host=other_host(fleet, row), count=most, resources=dict(resources)))
                missing -= most
        return slots

    def _with_parts(
        self,
        slot: Slot,
        row: int,
        most: int,
        granted: Sequence[int],
        beside: Sequence[Run],
        others: Sequence[Slot],
    ) -> list[Slot]:
        """Returns as many such slots with parts as the node holds. What the object takes of parts there is free for them.
        `beside`: other slots there; `others`: those that were made before, on all nodes."""
        attempt, node = self.attempt, slot.node
        own = reserved([by.get(node, ()) for by in self.now.runs]) if self.now.names_parts else {}
        taken = dict(attempt.taken.get(node, {}))
        for amounts, count in beside:
            add(taken, amounts, count)
        add(taken, {name: amount for name, amount in own.items() if part_and_class(name) is not None}, -1)
        shape = further_pods(self.shape, (*self.kept, *others), attempt.fleet, attempt.cid)
        inner = InnerNodes(
            attempt.fleet, np.array([row], np.intp), [shape], {**self._taken_elsewhere(node, others), row: taken}
        )
        for count in range(most, 0, -1):
            try:
                parts = inner.assign(0, [count], [list(granted)])
            except BudgetExceeded:
                return []
            if parts is None:
                continue
            slots = with_parts(slot, parts[0])
            runs = [(taken_by(one), one.count) for one in slots]
            if self._fits(row, node, self._extra(node, [*beside, *runs]), slot.resources):
                return slots
        return []

    def _taken_elsewhere(self, node: str, others: Sequence[Slot]) -> dict[int, dict[str, int]]:
        """Returns what is taken at other nodes, by these slots among others, if nodes reach the same parts."""
        fleet, cid = self.attempt.fleet, self.attempt.cid
        if not fleet.parts.shared_in(cid):
            return {}
        found = {name: dict(amounts) for name, amounts in self.attempt.taken.items() if name != node}
        for slot in others:
            if slot.node != node:
                add(found.setdefault(slot.node, {}), taken_by(slot), slot.count)
        rows = {name: fleet.row_of(cid, name) for name in found}
        return {row: found[name] for name, row in rows.items() if row is not None}

    def _counts(self, granted: Sequence[int], slots: Sequence[Slot], left: int) -> bool:
        """Returns whether the remaining pods have room, without regard to other objects."""
        fleet = self.attempt.fleet
        shape = self._shape_with(granted, left)
        rows = fleet.rows_of(self.attempt.cid)
        rows = rows[eligible(fleet, shape, rows)]
        pods = 0
        runs = runs_by_node(slots)
        counts = pods_per_row(fleet, shape.resources, left, rows)
        for row, most in zip(rows.tolist(), counts.tolist(), strict=True):
            node = fleet.node_name(row)
            extra = dict(self.attempt.taken.get(node, {}))
            if node in runs:
                add(extra, self._extra(node, runs[node]))
            if extra:
                while most > 0:
                    total = dict(extra)
                    add(total, shape.resources, most)
                    if self._frees(row, total):
                        break
                    most -= 1
            pods += most
        return pods >= left

    def _frees(self, row: int, amounts: Mapping[str, int]) -> bool:
        columns = ((self.attempt.fleet.free(name), amount) for name, amount in amounts.items() if amount)
        return all(free is not None and int(free[row]) >= amount for free, amount in columns)

    def on_every_node(self) -> Plan | Unassigned:
        """Plans a pod on every matching node, with one more where the rollout starts new pods beside old ones."""
        attempt, shape = self.attempt, self.shape
        fleet = attempt.fleet
        rows = fleet.rows_of(attempt.cid)
        rows = rows[eligible(fleet, shape, rows)]
        if not rows.size:
            return Plan([], False, shape)  # says why
        failure: Unassigned | None = None
        for granted in self._grants():
            resources = pod_requests(shape, granted)
            able = self._labelled(rows, granted)
            runs: list[Run] = [(resources, 2 if self.surge else 1)]
            short = [] if able.all() else rows.tolist()
            for row in rows.tolist() if able.all() else ():
                node = fleet.node_name(row)
                extra = self._extra(node, runs)
                if not self._fits(row, node, extra):
                    short.append(row)
                    failure = self._shortage(row, node, extra)
            slots: list[Slot] = []
            for row in () if short else rows.tolist():
                slot = Slot(node=fleet.node_name(row), host=other_host(fleet, row), resources=dict(resources))
                one_by_one = [slot] * (2 if self.surge else 1)
                if asks_parts(shape, fleet):
                    found = self._with_parts(slot, row, len(one_by_one), granted, (), slots)
                    one_by_one = [resized(one, 1) for one in found for _ in range(one.count)]
                if len(one_by_one) < (2 if self.surge else 1):
                    short.append(row)
                    failure = Unassigned("PartShort", self.number, message=f"no parts on {slot.node}")
                    break
                slots += [resized(one, 1, surge=bool(n)) for n, one in enumerate(one_by_one)]
            if not short:
                self._take(slots)
                return Plan(slots, False, None, granted)
        return failure or Unassigned("NodesUnusable", self.number)

    def _shortage(self, row: int, node: str, extra: Mapping[str, int]) -> Unassigned:
        taken = self.attempt.taken.get(node, {})
        for name, amount in extra.items():
            free = self.attempt.fleet.free(name)
            have = int(free[row]) - taken.get(name, 0) if free is not None else 0
            if have < amount:
                # What the object has there already counts as free for it.
                own = {name: 0}
                at_least(own, self.now.reserved_on(node))
                needed = own[name] + amount
                return Unassigned("ResourceShort", self.number, name, needed, max(0, own[name] + have))
        return Unassigned("ResourceShort", self.number)
