"""Assigns the pods of a group to a cluster where it may have claims already, whose room is its own.

An object whose pod template stays keeps its slots. Otherwise its new slots take over older ones as far as they may: that takes
only what they need beyond these (`families`). All other pods are assigned like those of any group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.fit import Assigned, PackingSolutions, Unassigned, assign, keeps_rules
from moorage.fit.assign import pod_requests
from moorage.fit.budget import BudgetExceeded
from moorage.fit.cluster_fit import pods_per_row
from moorage.fit.inner_rows import InnerNodes
from moorage.fit.inside import asks_parts
from moorage.fit.node_filter import eligible, other_host, with_label
from moorage.fleet import Fleet
from moorage.model.candidates import OwnClaim
from moorage.model.shapes import Requirement, Shape, on_nodes
from moorage.model.slots import Slot, part_and_class, resized, taken_by, with_parts
from moorage.parts.pod_request import granted_groups

from .families import CountedClaim, FamilyNodes, NodeAmounts, Run, add, at_least, beyond, reserved, runs_by_node
from .room import free_of

#: Tries with fewer older slots taken over, where several objects have to fit together.
TRIES = 24
#: Combinations of limits that are put in order.
MOST_LIMITS = 256
#: By number of the object and node: how many older slots are taken over at most.
Limits = Mapping[tuple[int, str], int]


class Wanted(NamedTuple):
    """An object to place on a cluster. `claim`: its id there; `own`: the object's claims there, the newest last."""

    shape: Shape
    claim: str
    own: Sequence[OwnClaim] = ()

    @property
    def mine(self) -> OwnClaim | None:
        """Returns the object's claim of this pod template, if it has one there."""
        return next((claim for claim in self.own if claim.id == self.claim), None)

    @property
    def is_update(self) -> bool:
        """Returns whether the object has claims of other pod templates there."""
        return any(claim.id != self.claim for claim in self.own)


@dataclass(slots=True)
class Placed:
    """The slots of an object. `kept`: some of them were its claim's already. `met`: the optional needs that all slots that
    were not have; None where there are none. `surge_left_out`: pods that the rollout has no room for."""

    slots: list[Slot]
    kept: bool = False
    met: list[int] | None = None
    surge_left_out: int = 0


def assign_beside_own(
    fleet: Fleet, cid: int, wanted: Sequence[Wanted], solutions: PackingSolutions | None = None
) -> list[Placed] | Unassigned:
    """Assigns all pods of these objects to the cluster. Where a surge finds no room and pods may be missing meanwhile, the
    update goes without it."""
    if not any(one.own for one in wanted) and not fleet.pods.refused_of(cid):
        return _assign_new(fleet, cid, wanted, solutions)
    updates = {number for number, one in enumerate(wanted) if one.is_update}
    surging = {number for number in updates if wanted[number].shape.surge}
    dispensable = {number for number in surging if wanted[number].shape.unavailable}

    def attempt(without_surge: set[int]) -> list[Placed] | Unassigned:
        tried = _Attempt(fleet, cid, wanted, solutions, without_surge).assign()
        if updates and isinstance(tried, Unassigned):
            filled = _Attempt(fleet, cid, wanted, solutions, without_surge, fill=True).assign()
            if isinstance(filled, Unassigned) and any(one.shape.rules for one in wanted):
                # Places of older slots may break new rules.
                filled = _Attempt(fleet, cid, wanted, solutions, without_surge, anew=True).assign()
            limits = _fewer_takeovers(wanted) if len(wanted) > 1 else iter(())
            while isinstance(filled, Unassigned) and (limit := next(limits, None)) is not None:
                filled = _Attempt(fleet, cid, wanted, solutions, without_surge, limits=limit).assign()
            return tried if isinstance(filled, Unassigned) else filled
        return tried

    tried = attempt(set())
    if not isinstance(tried, Unassigned) or not surging:
        return tried
    if dispensable and not isinstance(again := attempt(dispensable), Unassigned):
        return again
    bare = attempt(surging)
    if not isinstance(bare, Unassigned):
        number = min(surging - dispensable)
        shape = wanted[number].shape
        beside = "on every node " if shape.per_node else ""
        message = (
            f"the update of {shape.object} needs room {beside}for {shape.surge} more "
            f"{'pod' if shape.surge == 1 else 'pods'} while older ones run (maxSurge {shape.surge}, maxUnavailable 0)"
        )
        return Unassigned("SurgeShort", number, "", shape.surge, 0, message)
    return bare


def _assign_new(
    fleet: Fleet, cid: int, wanted: Sequence[Wanted], solutions: PackingSolutions | None
) -> list[Placed] | Unassigned:
    """Assigns all pods of objects that have no claims on the cluster, and that no node there refused."""
    found = assign(fleet, fleet.rows_of(cid), [one.shape for one in wanted], solutions=solutions)
    if isinstance(found, Unassigned):
        return found
    return [Placed(slots, met=met) for slots, met in zip(found.slots, found.met, strict=True)]


def _fewer_takeovers(wanted: Sequence[Wanted]) -> Iterator[Limits]:
    """Yields limits for the older slots to take over, those that lower few first: the room that one object's larger pods
    would take there may be all that another has."""
    places: dict[tuple[int, str], int] = {}
    for number, one in enumerate(wanted):
        for claim in one.own if one.is_update and not one.shape.per_node else ():
            for node, runs in runs_by_node(claim.slots).items():
                count = sum(count for _, count in runs)
                places[number, node] = max(places.get((number, node), 0), count)
    counts = list(places.values())
    if math.prod(count + 1 for count in counts) <= MOST_LIMITS:
        lowered = sorted(product(*(range(count + 1) for count in counts)), key=sum)
    else:
        lowered = [tuple(c if at == i else 0 for i, c in enumerate(counts)) for at in range(len(counts))]
    for fewer in lowered[:TRIES]:
        if any(fewer):
            yield {key: count - less for (key, count), less in zip(places.items(), fewer, strict=True)}


def kept_slots(slots: Sequence[Slot], claim: str, count: int, cid: int | None, fleet: Fleet) -> tuple[list[Slot], int]:
    """Returns the slots of a claim that stay for `count` pods, and how many pods still need one. The hash of the template is
    part of the claim's id, so claims of one id have pods of one size. Slots with pods come first; open ones are kept only
    where they fit on a usable node."""
    left = [slot.count for slot in slots]
    if cid is not None:
        left = CountedClaim.reported(slots, claim, cid, fleet).open
    kept: dict[int, int] = {}  # number of the slot → pods
    missing = count
    for number, slot in enumerate(slots):
        kept[number] = min(missing, slot.count - left[number])
        missing -= kept[number]
    for number, slot in enumerate(slots):
        pods = min(missing, left[number])
        if pods and (cid is None or (_may_start(slot, claim, cid, fleet) and _has_room(slot, cid, fleet))):
            kept[number] += pods
            missing -= pods
    return _with_counts(slots, kept), missing


def daemon_set_fits(claim: OwnClaim, cid: int, fleet: Fleet) -> bool:
    """Returns whether the open slots of a DaemonSet's claim have room where they are."""
    left = CountedClaim.reported(claim.slots, claim.id, cid, fleet).open
    return all(not count or _has_room(slot, cid, fleet) for slot, count in zip(claim.slots, left, strict=True))


def nodes_without_slot(shape: Shape, claim: OwnClaim, cid: int, fleet: Fleet) -> list[str]:
    """Returns the nodes that a DaemonSet selects and on which its claim has no slot."""
    rows = fleet.rows_of(cid)
    selected = fleet.names_at(cid, rows[eligible(fleet, shape, rows)])
    have = {slot.node for slot in claim.slots}
    return [node for node in selected if node not in have]


def _with_counts(slots: Sequence[Slot], counts: Mapping[int, int]) -> list[Slot]:
    """Returns the slots, in their order, each for so many pods."""
    return [resized(slots[number], pods) for number, pods in sorted(counts.items()) if pods]


def _may_start(slot: Slot, claim: str, cid: int, fleet: Fleet) -> bool:
    """Returns whether pods of the claim could start on the slot's node: it is usable, and did not refuse one. A settlement would
    take an open slot back from any other node, and the next decision would give it there again."""
    row = fleet.row_of(cid, slot.node)
    return row is not None and bool(fleet.usable[row]) and slot.node not in fleet.pods.refused_of(cid).get(claim, ())


def _has_room(slot: Slot, cid: int, fleet: Fleet) -> bool:
    """Returns whether an open slot fits on its node. It is taken from what the node has free already."""
    row = fleet.row_of(cid, slot.node)
    if row is None:
        return False
    return all(_is_free(fleet, row, name) for name, amount in taken_by(slot).items() if amount)


def _is_free(fleet: Fleet, row: int, name: str) -> bool:
    """Returns whether a node lacks nothing of what is taken of it. A part that is gone has no room."""
    free = free_of(fleet, row, name)
    return part_and_class(name) is None if free is None else free >= 0


@dataclass(slots=True)
class _Plan:
    """The slots of one object that are fixed, and the shape of the pods that are to be assigned yet. `granted`: the optional
    needs of all of them; None if the assignment grants them."""

    slots: list[Slot]
    kept: bool
    shape: Shape | None = None
    granted: list[int] | None = None


@dataclass(slots=True)
class _Attempt:
    """One try to assign all pods. `without_surge`: numbers of objects that go without. `fill`: as many new slots as fit go
    where the object is already, which matters where it has more pods there than slots. `anew`: new slots take over no
    older ones."""

    fleet: Fleet
    cid: int
    wanted: Sequence[Wanted]
    solutions: PackingSolutions | None
    without_surge: set[int] = field(default_factory=set)
    fill: bool = False
    anew: bool = False
    limits: Limits = field(default_factory=dict)
    taken: NodeAmounts = field(default_factory=dict)  # beyond what the claims of the group take already

    def assign(self) -> list[Placed] | Unassigned:
        plans: list[_Plan] = []
        for number in range(len(self.wanted)):
            plan = self._plan(number)
            if isinstance(plan, Unassigned):
                return plan
            plans.append(plan)
        open_plans = [n for n, plan in enumerate(plans) if plan.shape is not None]
        found = Assigned([], [])
        if open_plans:
            shapes = [shape for plan in plans if (shape := plan.shape) is not None]
            standing = self._standing(plans)
            kept = [plans[number].slots for number in (*open_plans, *standing)] if self.has_rules else None
            shapes += [
                msgspec.structs.replace(self.wanted[n].shape, count=0, per_node=False, optional=[]) for n in standing
            ]
            rows = {row: amounts for node, amounts in self.taken.items() if (row := self._row(node)) is not None}
            result = assign(
                self.fleet,
                self.fleet.rows_of(self.cid),
                shapes,
                kept=kept,
                solutions=self.solutions,
                taken=rows,
            )
            if isinstance(result, Unassigned):
                return self._failure(result, [*open_plans, *standing][result.shape], plans)
            found = result
        placed = [Placed(plan.slots, plan.kept, plan.granted) for plan in plans]
        for number, slots, met in zip(open_plans, found.slots, found.met, strict=False):
            granted = plans[number].granted
            placed[number].slots = [*placed[number].slots, *slots]
            placed[number].met = met if granted is None else granted
        for number, one in enumerate(self.wanted):
            if one.is_update:
                if not one.shape.per_node:
                    slots = placed[number].slots
                    placed[number].slots = _with_surge(
                        _one_per_node_first(slots) if self.has_rules else slots, one.shape.count
                    )
                if number in self.without_surge:
                    placed[number].surge_left_out = one.shape.surge
        return self._with_rules(placed)

    @property
    def has_rules(self) -> bool:
        return any(one.shape.rules for one in self.wanted)

    def _standing(self, plans: Sequence[_Plan]) -> list[int]:
        """Returns the objects whose pods all have a place already. These matter to the rules of the others."""
        return [n for n, plan in enumerate(plans) if plan.shape is None] if self.has_rules else []

    def _with_rules(self, placed: list[Placed]) -> list[Placed] | Unassigned:
        """Returns the slots if they keep the rules of pods about each other. Those of an object that does not change stay."""
        if not self.has_rules or not any(one.is_update for one in self.wanted):
            return placed  # the assignment kept them
        shapes = [one.shape for one in self.wanted]
        stays = [one.kept and not wanted.is_update for one, wanted in zip(placed, self.wanted, strict=True)]
        kept = [one.slots if stay else [] for one, stay in zip(placed, stays, strict=True)]
        new = [[] if stay else one.slots for one, stay in zip(placed, stays, strict=True)]
        without_surge = [[slot for slot in slots if not slot.surge] for slots in new]
        rows = self.fleet.rows_of(self.cid)
        if all(keeps_rules(self.fleet, rows, shapes, kept, slots) for slots in (new, without_surge)):
            return placed
        number = next(n for n, shape in enumerate(shapes) if shape.rules)
        return Unassigned("PodRulesFail", number)

    def _failure(self, failure: Unassigned, number: int, plans: Sequence[_Plan]) -> Unassigned:
        """Counts the pods that have a place already, too."""
        one = self.wanted[number]
        if (refused := self.refused(one)) and failure.code not in ("PackingFails", "PodRulesFail", "SearchBound"):
            words = self.fleet.pods.refusal_words(self.cid).get(one.claim, "")
            message = f"{', '.join(refused)} refused pods of {one.shape.object}, and no other node fits: {words}"
            return Unassigned("NodeRefused", number, message=message)
        fixed = sum(slot.count for slot in plans[number].slots)
        if failure.code == "CapacityShort":
            return Unassigned(
                failure.code, number, failure.resource, failure.needed + fixed, failure.best + fixed, failure.message
            )
        return Unassigned(failure.code, number, failure.resource, failure.needed, failure.best, failure.message)

    def _plan_on_nodes(self, one: Wanted, mine: OwnClaim) -> _Plan:
        """Keeps the slots of a DaemonSet, which cannot move, and lacks those of nodes that came later."""
        if not daemon_set_fits(mine, self.cid, self.fleet):
            return _Plan([], False, one.shape)  # says why
        lacking = nodes_without_slot(one.shape, mine, self.cid, self.fleet)
        if not lacking:
            return _Plan(mine.slots, True)
        return _Plan(mine.slots, True, on_nodes(one.shape, "In", lacking))

    def refused(self, one: Wanted) -> list[str]:
        """Returns the nodes that refused pods of this object and have not changed since."""
        return self.fleet.pods.refused_of(self.cid).get(one.claim, [])

    def _row(self, node: str) -> int | None:
        return self.fleet.row_of(self.cid, node)

    def _plan(self, number: int) -> _Plan | Unassigned:
        one = self.wanted[number]
        shape = one.shape
        if (refused := self.refused(one)) and (one.own or not shape.per_node):
            shape = on_nodes(shape, "NotIn", refused)
            one = one._replace(shape=shape)
        if not one.own:
            return _Plan([], False, shape)
        mine, update = one.mine, one.is_update
        surge = shape.surge if update and number not in self.without_surge else 0
        if update and self.anew and not shape.per_node:
            return _Plan([], False, msgspec.structs.replace(shape, count=shape.count + surge))
        if shape.per_node:
            if mine is not None:
                return self._plan_on_nodes(one, mine)
            return _Takeover(self, number, surge).on_every_node()
        if update:
            return _Takeover(self, number, surge).plan()
        kept: list[Slot] = []
        missing = shape.count
        if mine is not None:
            kept, missing = kept_slots(mine.slots, one.claim, missing, self.cid, self.fleet)
        if not missing:
            return _Plan(kept, True)
        rest = shape if missing == shape.count else msgspec.structs.replace(shape, count=missing)
        return _Plan(kept, bool(kept), rest)


class _Takeover:
    """Lets new slots of an object take over older ones."""

    def __init__(self, attempt: _Attempt, number: int, surge: int) -> None:
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
        self._now: dict[str, dict[str, int]] = {}  # by node, what the slots take
        self._with_pods: dict[str, dict[str, int]] = {}  # and what they take with their pods

    def _extra(self, node: str, runs: Sequence[Run]) -> dict[str, int]:
        """Returns what these slots of the new claim take on the node beyond what the object's claims and pods take there now.
        A resource of which its slots take more, but not more than its pods, is there with 0: that may be only where the node
        has room for what is taken already."""
        if node not in self._now:
            self._now[node] = reserved([by.get(node, ()) for by in self.now.runs])
            with_pods = self._with_pods[node] = dict(self._now[node])
            at_least(with_pods, self.now.pods(node))
        after = reserved([*(by.get(node, ()) for by in self.older.runs), runs])
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
        if wishes:
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
                    and (covered or _may_start(slot, self.mine.id, cid, fleet))
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
        self.kept = _with_counts(slots, kept)
        return count

    def plan(self) -> _Plan:
        """Returns the slots that are kept or take over older ones, and the shape of the pods that remain."""
        missing = self._keep(self.shape.count + self.surge)
        if not missing:
            self._take(self.kept)
            return _Plan(self.kept, True)
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
        rest = self._shape_with(granted, left) if left else None
        return _Plan([*self.kept, *slots], bool(self.kept), rest, granted)

    def _shape_with(self, granted: Sequence[int], count: int) -> Shape:
        """Returns the shape with these optional needs as mandatory ones, and without the others."""
        shape = self.shape
        labels = [
            Requirement(key=label[0], operator="In", values=(label[1],))
            for i in granted
            if (label := shape.optional[i].label) is not None
        ]
        terms = [[*term, *labels] for term in shape.terms] if shape.terms else [labels] if labels else []
        groups = list(granted_groups(shape, granted)) if shape.groups else shape.groups
        return msgspec.structs.replace(
            shape, count=count, resources=pod_requests(shape, granted), optional=[], terms=terms, groups=groups
        )

    def _labelled(self, rows: NDArray[np.intp], granted: Sequence[int]) -> NDArray[np.bool_]:
        """Returns which rows have the labels of these optional needs."""
        able = np.ones(rows.size, np.bool_)
        for i in granted:
            labelled = with_label(self.attempt.fleet, self.shape.optional[i].label, rows)
            able = able if labelled is None else able & labelled
        return able

    def _take_over(self, missing: int, granted: Sequence[int]) -> list[Slot]:
        """Returns new slots in the places of older ones or of pods, first where pods of the object run."""
        fleet, cid = self.attempt.fleet, self.attempt.cid
        resources = pod_requests(self.shape, granted)
        live: dict[str, int] = {}
        for claim in self.now.claims:
            add(live, claim.live)
        kept = runs_by_node(self.kept)
        slots: list[Slot] = []
        own = self.older.nodes() | live.keys()
        nodes = [(node, row) for node in own if (row := fleet.row_of(cid, node)) is not None]
        nodes.sort(key=lambda item: (item[0] not in live, item[0]))
        where = np.array([row for _, row in nodes], np.intp)
        able = eligible(fleet, self.shape, where) if nodes else np.empty(0, np.bool_)
        able = able & self._labelled(where, granted)
        for (node, row), may in zip(nodes, able.tolist(), strict=True):
            runs = kept.get(node, [])
            places = max(self.older.places(node), live.get(node, 0)) - sum(count for _, count in runs)
            limit = self.attempt.limits.get((self.number, node), missing)
            most = min(missing, limit, missing if self.attempt.fill else places) if may else 0
            slot = Slot(node=node, host=other_host(fleet, row), resources=dict(resources))
            while most > 0 and not self._fits(row, node, self._extra(node, [*runs, (resources, most)]), resources):
                most -= 1
            found = [resized(slot, most)] if most > 0 else []
            if asks_parts(self.shape, fleet):
                found = self._with_parts(slot, row, most, granted, runs)
            slots += found
            missing -= sum(one.count for one in found)
        return slots

    def _with_parts(self, slot: Slot, row: int, most: int, granted: Sequence[int], beside: Sequence[Run]) -> list[Slot]:
        """Returns as many such slots with parts as the node holds. What the object takes of parts there is free for them."""
        attempt, node = self.attempt, slot.node
        own = reserved([by.get(node, ()) for by in self.now.runs]) if self.now.names_parts else {}
        taken = dict(attempt.taken.get(node, {}))
        for amounts, count in beside:
            add(taken, amounts, count)
        add(taken, {name: amount for name, amount in own.items() if part_and_class(name) is not None}, -1)
        inner = InnerNodes(attempt.fleet, np.array([row], np.intp), [self.shape], {row: taken})
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

    def on_every_node(self) -> _Plan | Unassigned:
        """Plans a pod on every matching node, with one more where the rollout starts new pods beside old ones."""
        attempt, shape = self.attempt, self.shape
        fleet = attempt.fleet
        rows = fleet.rows_of(attempt.cid)
        rows = rows[eligible(fleet, shape, rows)]
        if not rows.size:
            return _Plan([], False, shape)  # says why
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
                    found = self._with_parts(slot, row, len(one_by_one), granted, ())
                    one_by_one = [resized(one, 1) for one in found for _ in range(one.count)]
                if len(one_by_one) < (2 if self.surge else 1):
                    short.append(row)
                    failure = Unassigned("PartShort", self.number, message=f"no parts on {slot.node}")
                    break
                slots += [resized(one, 1, surge=bool(n)) for n, one in enumerate(one_by_one)]
            if not short:
                self._take(slots)
                return _Plan(slots, False, None, granted)
        return failure or Unassigned("NodesUnusable", self.number)

    def _shortage(self, row: int, node: str, extra: Mapping[str, int]) -> Unassigned:
        taken = self.attempt.taken.get(node, {})
        for name, amount in extra.items():
            free = self.attempt.fleet.free(name)
            have = int(free[row]) - taken.get(name, 0) if free is not None else 0
            if have < amount:
                # What the object has there already counts as free for it.
                own = {name: 0}
                at_least(own, reserved([by.get(node, ()) for by in self.now.runs]))
                needed = own[name] + amount
                return Unassigned("ResourceShort", self.number, name, needed, max(0, own[name] + have))
        return Unassigned("ResourceShort", self.number)


def _one_per_node_first(slots: Sequence[Slot]) -> list[Slot]:
    """Returns the slots in an order in which those that come last leave the others spread over the nodes."""
    seen: dict[str, int] = {}
    ranked: list[tuple[int, Slot]] = []
    for slot in slots:
        for _ in range(slot.count):
            ranked.append((seen.get(slot.node, 0), msgspec.structs.replace(slot, count=1)))
            add(seen, {slot.node: 1})
    ordered: list[Slot] = []
    for _, slot in sorted(ranked, key=lambda entry: entry[0]):
        if ordered and msgspec.structs.replace(ordered[-1], count=1) == slot:
            ordered[-1].count += 1
        else:
            ordered.append(slot)
    return ordered


def _with_surge(slots: Sequence[Slot], count: int) -> list[Slot]:
    """Returns the slots, of which those beyond the first `count` are for the surge."""
    result: list[Slot] = []
    for slot in slots:
        plain = min(slot.count, count)
        count -= plain
        for pods, surge in ((plain, False), (slot.count - plain, True)):
            if pods:
                result.append(resized(slot, pods, surge=surge))
    return result
