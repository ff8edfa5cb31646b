"""Assigns the pods of a group to a cluster where it may have claims already, whose room is its own.

An object whose pod template stays keeps its slots. Otherwise its new slots take over older ones as far as they may: that takes
only what they need beyond these (`families`). All other pods are assigned like those of any group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import msgspec

from moorage.fit import Assigned, PackingSolutions, Unassigned, assign, keeps_rules
from moorage.fit.cluster_nodes import parts_serve
from moorage.fleet import Fleet
from moorage.model.candidates import OwnClaim
from moorage.model.shapes import Shape, on_nodes
from moorage.model.slots import Slot, resized

from .families import add, runs_by_node
from .held_devices import further_pods, hold_common, without_common
from .joint_takeovers import joint_limits
from .kept_places import daemon_set_fits, kept_slots, nodes_without_slot
from .takeovers import AttemptState, Limits, Plan, Takeover, Wanted

#: Tries with fewer older slots taken over, where several objects have to fit together.
TRIES = 24
#: Combinations of limits that are put in order.
MOST_LIMITS = 256


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
    refused = fleet.pods.refused_of(cid)
    if not any(one.own for one in wanted) and not refused:
        return _assign_new(fleet, cid, wanted, solutions)
    wanted = [_elsewhere(one, refused.get(one.claim, ())) for one in wanted]
    updates = {number for number, one in enumerate(wanted) if one.is_update}
    surging = {number for number in updates if wanted[number].shape.surge}
    dispensable = {number for number in surging if wanted[number].shape.unavailable}

    def attempt(without_surge: set[int]) -> list[Placed] | Unassigned:
        tried = _Attempt(fleet, cid, wanted, solutions, without_surge).assign()
        if isinstance(tried, Unassigned) and surging - without_surge and len(wanted) > 1:
            tried = _Attempt(fleet, cid, wanted, solutions, without_surge, spread_surge=True).assign()
        if updates and isinstance(tried, Unassigned):
            filled = _Attempt(fleet, cid, wanted, solutions, without_surge, fill=True).assign()
            if isinstance(filled, Unassigned) and any(one.shape.rules for one in wanted):
                # Places of older slots may break new rules.
                filled = _Attempt(fleet, cid, wanted, solutions, without_surge, anew=True).assign()
            limits = _fewer_takeovers(wanted) if len(wanted) > 1 else iter(())
            while isinstance(filled, Unassigned) and (limit := next(limits, None)) is not None:
                filled = _Attempt(fleet, cid, wanted, solutions, without_surge, limits=limit).assign()
            if isinstance(filled, Unassigned) and len(wanted) > 1:
                filled = _assign_jointly(fleet, cid, wanted, solutions, without_surge) or filled
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


def _elsewhere(one: Wanted, refused: Sequence[str]) -> Wanted:
    """Returns the object without the nodes that refused pods of it. A DaemonSet that is new there runs on every node that it selects."""
    if not refused or (one.shape.per_node and not one.own):
        return one
    return one._replace(shape=on_nodes(one.shape, "NotIn", refused))


def _assign_new(
    fleet: Fleet, cid: int, wanted: Sequence[Wanted], solutions: PackingSolutions | None
) -> list[Placed] | Unassigned:
    """Assigns all pods of objects that have no claims on the cluster, and that no node there refused."""
    found = assign(fleet, fleet.rows_of(cid), [one.shape for one in wanted], solutions=solutions)
    if isinstance(found, Unassigned):
        return found
    return [Placed(slots, met=met) for slots, met in zip(found.slots, found.met, strict=True)]


def _assign_jointly(
    fleet: Fleet,
    cid: int,
    wanted: Sequence[Wanted],
    solutions: PackingSolutions | None,
    without_surge: set[int],
) -> list[Placed] | None:
    """Assigns all pods by a search for the older slots that they take over, with optional needs only where these fit, too."""
    limits = _Attempt(fleet, cid, wanted, solutions, without_surge, mandatory=True).limits_that_fit()
    if limits is None:
        return None
    for mandatory in (False, True):
        found = _Attempt(
            fleet, cid, wanted, solutions, without_surge, fill=True, mandatory=mandatory, limits=limits
        ).assign()
        if not isinstance(found, Unassigned):
            return found
    return None


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


@dataclass(slots=True)
class _Attempt(AttemptState):
    """One try to assign all pods."""

    def assign(self) -> list[Placed] | Unassigned:
        plans: list[Plan] = []
        for number in range(len(self.wanted)):
            plan = self._plan(number)
            if isinstance(plan, Unassigned):
                return plan
            plans.append(plan)
        open_plans = [n for n, plan in enumerate(plans) if plan.shape is not None]
        for plan in plans:
            plan.slots = [*plan.slots]  # they may be those of a claim
        common = hold_common(self.wanted, [plan.slots for plan in plans])
        found = Assigned([], [])
        if open_plans:
            shapes = [without_common(shape, common) for plan in plans if (shape := plan.shape) is not None]
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
                    placed[number].slots = self._with_surge(number, plans[number], placed[number].slots)
                if number in self.without_surge:
                    placed[number].surge_left_out = one.shape.surge
        return self._with_rules(placed)

    def _with_surge(self, number: int, plan: Plan, slots: list[Slot]) -> list[Slot]:
        """Marks the slots that are for the surge. The first pods of a rollout start where nothing is to go before, and stay there: where
        a node has no room beside the older pods, the slot elsewhere is not the one that ends with the rollout."""
        if self.has_rules:
            ordered: Sequence[Slot] = _one_per_node_first(slots)
        else:
            fixed = len(plan.slots)
            kept = fixed - _runs_of(plan.slots, plan.taken_over)
            ordered = [*slots[:kept], *slots[fixed:], *slots[kept:fixed]]
        return _with_surge(ordered, self.wanted[number].shape.count)

    def limits_that_fit(self) -> Limits | None:
        """Returns how many older slots each object takes over on each node such that all pods fit; None where no such way was
        found."""
        updates: dict[int, tuple[Takeover, int]] = {}
        others: list[Shape] = []
        for number, one in enumerate(self.wanted):
            if one.is_update and not one.shape.per_node:
                takeover = Takeover(self, number, self._surge(number))
                updates[number] = takeover, takeover.keep()
                continue
            plan = self._plan(number)
            if isinstance(plan, Unassigned):
                return None
            if plan.shape is not None:
                others.append(plan.shape)
        return joint_limits(self, updates, others)

    def _surge(self, number: int) -> int:
        one = self.wanted[number]
        return one.shape.surge if one.is_update and number not in self.without_surge else 0

    @property
    def has_rules(self) -> bool:
        return any(one.shape.rules for one in self.wanted)

    def _standing(self, plans: Sequence[Plan]) -> list[int]:
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

    def _failure(self, failure: Unassigned, number: int, plans: Sequence[Plan]) -> Unassigned:
        """Counts the pods that have a place already, too."""
        one = self.wanted[number]
        if (refused := self.refused(one)) and failure.code not in ("PackingFails", "PodRulesFail", "SearchBound"):
            words = self.fleet.pods.refusal_words(self.cid).get(one.claim, "")
            message = f"{', '.join(refused)} refused pods of {one.shape.object}, and no other node fits: {words}"
            return Unassigned("NodeRefused", number, message=message)
        fixed = sum(slot.count for slot in plans[number].slots)
        if failure.code in ("CapacityShort", "PartShort"):
            needed, best = failure.needed + fixed, failure.best + fixed
            message = parts_serve(best, needed) if failure.code == "PartShort" and fixed else failure.message
            return Unassigned(failure.code, number, failure.resource, needed, best, message)
        best = failure.best
        if failure.code == "ResourceShort" and one.is_update:  # of one pod on one node
            best = max(best, min(Takeover(self, number, 0).most_free(failure.resource), failure.needed - 1))
        return Unassigned(failure.code, number, failure.resource, failure.needed, best, failure.message)

    def _plan_on_nodes(self, one: Wanted, mine: OwnClaim) -> Plan:
        """Keeps the slots of a DaemonSet, which cannot move, and lacks those of nodes that came later."""
        if not daemon_set_fits(mine, self.cid, self.fleet):
            return Plan([], False, one.shape)  # says why
        lacking = nodes_without_slot(one.shape, mine, self.cid, self.fleet)
        if not lacking:
            return Plan(mine.slots, True)
        return Plan(mine.slots, True, on_nodes(one.shape, "In", lacking))

    def refused(self, one: Wanted) -> list[str]:
        """Returns the nodes that refused pods of this object and have not changed since."""
        return self.fleet.pods.refused_of(self.cid).get(one.claim, [])

    def _row(self, node: str) -> int | None:
        return self.fleet.row_of(self.cid, node)

    def _plan(self, number: int) -> Plan | Unassigned:
        one = self.wanted[number]
        shape = one.shape
        if not one.own:
            return Plan([], False, shape)
        mine, update = one.mine, one.is_update
        surge = self._surge(number)
        if update and self.anew and not shape.per_node:
            return Plan([], False, msgspec.structs.replace(shape, count=shape.count + surge))
        if shape.per_node:
            if mine is not None:
                return self._plan_on_nodes(one, mine)
            return Takeover(self, number, surge).on_every_node()
        if update:
            return Takeover(self, number, surge).plan()
        kept: list[Slot] = []
        missing = shape.count
        if mine is not None:
            kept, missing = kept_slots(mine.slots, one.claim, missing, self.cid, self.fleet)
        if not missing:
            return Plan(kept, True)
        rest = shape if missing == shape.count else msgspec.structs.replace(shape, count=missing)
        return Plan(kept, bool(kept), further_pods(rest, kept, self.fleet, self.cid))


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


def _runs_of(slots: Sequence[Slot], pods: int) -> int:
    """Returns how many of the last slots these pods have."""
    runs = 0
    while pods > 0:
        runs += 1
        pods -= slots[-runs].count
    return runs


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
