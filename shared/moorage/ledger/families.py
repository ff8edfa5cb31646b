"""Counts what the claims of one object on one cluster take together.

During an update an object has an older claim, whose pods go, and a newer one, whose pods come. On each node a new slot takes
over an old one while there are any, so the two together take, per resource, the larger of the sum of the old slots and of the
sum over the new slots of the larger of new and old; and never less than their pods there. Sums alone would let three smaller
pods follow two larger ones on a full node: Kubernetes starts the third first, and waits for ever. For the same reason old pods
that run beyond the old slots there are followed like slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moorage.fleet import Fleet
from moorage.model.claims import Claim
from moorage.model.machine_slots import uses_slots, without_slots
from moorage.model.slots import PartAmounts, Slot, part_resources, taken_by

from .coverage import cover
from .room import of_node

Amounts = dict[str, int]  # by resource
NodeAmounts = dict[str, Amounts]
#: Equal pods on one node: what one takes of the node and of its parts, and how many.
Run = tuple[Mapping[str, int], int]


class Family(NamedTuple):
    """The key of all claims of one object of an app on one cluster. Where the object passes from one group to another, `group` is
    the first of them that has claims there."""

    group: str
    app: str
    object: str
    cluster: str

    @classmethod
    def of(cls, group: str, claim: Claim) -> Family:
        """Returns the family of a group's claim that takes over no object of another group."""
        return cls(group, claim.app, claim.object, claim.cluster)


class CountedClaim(NamedTuple):
    """A claim's slots, and its live pods by node, of which `ending` are being deleted. `counted`: those that what is in use of
    zones includes. `named`: what pods take of parts, where it is told of each; that is in use, too."""

    slots: Sequence[Slot]
    live: Mapping[str, int] = {}
    ending: Mapping[str, int] = {}
    counted: Mapping[str, int] = {}
    named: Mapping[str, Sequence[tuple[PartAmounts, int]]] = {}

    @classmethod
    def reported(cls, slots: Sequence[Slot], claim: str, cid: int, fleet: Fleet) -> CountedClaim:
        """Returns the slots of a claim on a cluster with its pods by the newest report."""
        pods = fleet.pods
        live = pods.live(claim, cid)
        if not live:
            return cls(slots)
        return cls(slots, live, pods.ending(claim, cid), pods.counted(claim, cid), pods.named(claim, cid))

    @property
    def open(self) -> list[int]:
        """Returns, for each slot, how many of its places no pod covers."""
        return cover(self.slots, self.live, self.ending).open


def add(total: Amounts, amounts: Mapping[str, int], times: int = 1) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount * times


def at_least(total: Amounts, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        if amount > total.get(name, 0):
            total[name] = amount


def beyond(amounts: Mapping[str, int], have: Mapping[str, int]) -> Amounts:
    """Returns by how much `amounts` are more than `have`."""
    return {name: amount - have.get(name, 0) for name, amount in amounts.items() if amount > have.get(name, 0)}


def without_surge(slots: Sequence[Slot]) -> Sequence[Slot]:
    return [slot for slot in slots if not slot.surge] if any(slot.surge for slot in slots) else slots


def counted(claims: Sequence[CountedClaim]) -> list[CountedClaim]:
    """Returns the claims with the slots that count: those for a surge only beside an older claim."""
    first, *others = claims
    return [first._replace(slots=without_surge(first.slots)), *others]


def runs_by_node(slots: Iterable[Slot]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for slot in slots:
        if slot.node:
            found.setdefault(slot.node, []).append((taken_by(slot), slot.count))
    return found


def reserved(claims: Sequence[Sequence[Run]]) -> Amounts:
    """Returns what the claims take on one node, the newest last."""
    *older, newest = claims
    total = _taken_over(newest, [list(runs) for runs in older if runs])
    for runs in older:
        at_least(total, _sum(runs))
    return total


def _sum(runs: Sequence[Run]) -> Amounts:
    total: Amounts = {}
    for resources, count in runs:
        add(total, resources, count)
    return total


def _taken_over(newest: Sequence[Run], older: list[list[Run]]) -> Amounts:
    """Returns the sum over the new slots of the larger of new and old. The first slot takes over the first one of each older
    claim, as these took over each other."""
    total: Amounts = {}
    for resources, count in newest:
        while count:
            step = min([count, *(runs[0][1] for runs in older)])
            larger = dict(resources)
            for runs in older:
                old, left = runs[0]
                at_least(larger, old)
                if left > step:
                    runs[0] = old, left - step
                else:
                    del runs[0]
            older = [runs for runs in older if runs]
            add(total, larger, step)
            count -= step
    return total


def pods_on(runs: Sequence[Run], default: Mapping[str, int], pods: int) -> Amounts:
    """Returns what this many pods of a claim take on one node, where it has these slots. Those beyond them are as large as
    `default`."""
    total: Amounts = {}
    for resources, count in runs:
        add(total, resources, min(count, pods))
        pods -= min(count, pods)
    add(total, default, pods)
    return total


class FamilyNodes:
    """The claims of one object by node, the oldest first."""

    def __init__(self, claims: Sequence[CountedClaim]) -> None:
        self.claims = counted(claims)
        self.runs = [runs_by_node(claim.slots) for claim in self.claims]
        self.covering = covering_pods(self.claims, self.runs)
        self.names_parts = any(slot.parts for claim in self.claims for slot in claim.slots)
        self.uses_slots = any(uses_slots(slot.resources) for claim in self.claims for slot in claim.slots)

    def nodes(self) -> set[str]:
        return {node for runs in self.runs for node in runs}

    def places(self, node: str) -> int:
        return places(self.runs, node)

    def strays(self) -> dict[str, int]:
        """Returns the pods by node beyond the places there, without those that are being deleted."""
        running: dict[str, int] = {}
        for claim in self.claims:
            add(running, claim.live)
            add(running, claim.ending, -1)
        beyond_places = {node: pods - self.places(node) for node, pods in running.items()}
        return {node: pods for node, pods in beyond_places.items() if pods > 0}

    def covering_on(self, node: str) -> int:
        """Returns how many pods cover places on the node, or more."""
        return sum(live.get(node, 0) for live in self.covering)

    def pods(self, node: str) -> Amounts:
        """Returns what the pods that cover slots on the node take."""
        total: Amounts = {}
        for claim, runs, live in zip(self.claims, self.runs, self.covering, strict=True):
            if count := live.get(node, 0):
                default = claim.slots[0].resources if claim.slots else {}
                add(total, pods_on(runs.get(node, ()), default, count))
        total = without_slots(total) if self.uses_slots else total
        return total if not self.names_parts else of_node(total) | self._parts_in_use(node)

    def _parts_in_use(self, node: str) -> Amounts:
        """Returns what pods take of parts that is among what is reported in use. Of pods that no source names it counts beside
        that."""
        total: Amounts = {}
        for claim, live in zip(self.claims, self.covering, strict=True):
            covering = live.get(node, 0)
            for parts, pods in claim.named.get(node, ()):
                add(total, part_resources(parts), min(pods, covering))
                covering -= min(pods, covering)
            pods = min(claim.counted.get(node, 0), live.get(node, 0))
            for slot in claim.slots if pods else ():
                if slot.node == node:
                    add(total, part_resources(slot.aligned), min(pods, slot.count))
                    pods -= min(pods, slot.count)
        return total

    def reserved_on(self, node: str, *newest: Sequence[Run]) -> Amounts:
        """Returns what the claims, with the slots of another one that is newer, take on the node."""
        runs: list[Sequence[Run]] = [by.get(node, ()) for by in self.runs]
        older = len(runs) if newest else len(runs) - 1
        for number, claim in enumerate(self.claims[:older]):
            runs[number] = self._with_pods_beyond(claim, node, runs[number])
        return reserved([*runs, *newest])

    def _with_pods_beyond(self, claim: CountedClaim, node: str, runs: Sequence[Run]) -> Sequence[Run]:
        """Returns the slots of an older claim on a node, and pods there that stay and have none."""
        pods = claim.live.get(node, 0) - claim.ending.get(node, 0) - sum(count for _, count in runs)
        if pods <= 0 or not claim.slots:
            return runs
        resources = claim.slots[0].resources
        return [*runs, (without_slots(resources) if self.uses_slots else resources, pods)]

    def open_on(self, node: str) -> Amounts:
        """Returns what the claims take on the node beyond their pods."""
        return beyond(self.reserved_on(node), self.pods(node))


class Place(NamedTuple):
    """A place for one pod of an object: the slots there that claims of the object have for it, the newest last. `resources`:
    the larger of them, each resource for itself."""

    node: str
    slots: dict[str, Slot]
    resources: Amounts


def places_by_node(claims: Mapping[str, Sequence[Slot]]) -> dict[str, list[Place]]:
    """Returns the places of an object's claims, of which the newest is the last. Those of the newest claim come first."""
    by_node: dict[str, list[dict[str, Slot]]] = {}
    for ident, slots in claims.items():
        taken: dict[str, int] = {}
        for slot in slots:
            for _ in range(slot.count):
                at = taken[slot.node] = taken.get(slot.node, -1) + 1
                there = by_node.setdefault(slot.node, [])
                if at == len(there):
                    there.append({})
                there[at][ident] = slot
    return {node: [_place(node, slots) for slots in there] for node, there in by_node.items()}


def _place(node: str, slots: dict[str, Slot]) -> Place:
    resources: Amounts = {}
    for slot in slots.values():
        at_least(resources, taken_by(slot))
    return Place(node, slots, resources)


def places(runs: Iterable[Mapping[str, Sequence[Run]]], node: str) -> int:
    """Returns how many pods the claims have room for on the node."""
    return max((sum(count for _, count in by_node.get(node, ())) for by_node in runs), default=0)


def covering_pods(
    claims: Sequence[CountedClaim], runs: Sequence[Mapping[str, Sequence[Run]]]
) -> list[Mapping[str, int]]:
    """Returns the pods by node that cover slots. Those that are being deleted do so only while there is no stray."""
    if not any(claim.ending for claim in claims):
        return [claim.live for claim in claims]
    staying = [{node: pods - claim.ending.get(node, 0) for node, pods in claim.live.items()} for claim in claims]
    total: dict[str, int] = {}
    for live in staying:
        add(total, live)
    if any(pods > places(runs, node) for node, pods in total.items()):
        return list(staying)
    return [claim.live for claim in claims]


def is_fully_covered(claims: Sequence[CountedClaim]) -> bool:
    """Returns whether the object has one claim, whose places each have their pod, and no other pods: it takes nothing beyond
    these. False where that takes more than a count to tell."""
    if len(claims) != 1 or not claims[0].live or claims[0].ending:
        return False
    pods: dict[str, int] = {}
    for slot in without_surge(claims[0].slots):
        if slot.parts or slot.aligned or uses_slots(slot.resources):
            return False
        pods[slot.node] = pods.get(slot.node, 0) + slot.count
    return pods == claims[0].live


def open_room(claims: Sequence[CountedClaim], family: FamilyNodes | None = None) -> NodeAmounts:
    """Returns what the claims of one object, the oldest first, take by node beyond their pods. `family`: the same claims by node, where
    that is known already."""
    if len(claims) == 1 and not claims[0].live:
        return _room_of_slots(claims[0].slots)
    family = family or FamilyNodes(claims)
    found = ((node, family.open_on(node)) for node in family.nodes())
    return {node: amounts for node, amounts in found if amounts}


def _room_of_slots(slots: Iterable[Slot]) -> NodeAmounts:
    """Returns what slots take by node while no pod has one of them, without those for a surge."""
    found: NodeAmounts = {}
    for slot in slots:
        if slot.node and not slot.surge:
            add(found.setdefault(slot.node, {}), taken_by(slot), slot.count)
    return found


def differs_from_pods(family: FamilyNodes) -> bool:
    """Returns whether the object has an open slot, or a pod beyond its slots."""
    return bool(family.strays()) or any(family.places(node) > family.covering_on(node) for node in family.nodes())


def strays_have_open_slots(family: FamilyNodes) -> bool:
    """Returns whether pods of the object run beyond its slots on a node while it has an open slot elsewhere."""
    return bool(family.strays()) and any(family.places(node) > family.covering_on(node) for node in family.nodes())
