"""Reads one cluster for settling: its pods, the open places of its claims, and what its nodes have free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
import numpy as np

from moorage.fit.node_filter import other_host
from moorage.fit.protocols import Ids
from moorage.fleet import Fleet
from moorage.ledger import ActiveClaim, CountedClaim, Family, Ledger, NodeAmounts
from moorage.ledger.families import FamilyNodes, add, beyond, places_by_node
from moorage.ledger.families import Place as FamilyPlace
from moorage.ledger.part_moves import NamedByNode, follow_parts, parts_moved, same_slots
from moorage.model.claims import Claim, Slot, claim_id
from moorage.model.groups import Revision
from moorage.model.machine_slots import machine_of, uses_slots, without_slots
from moorage.model.shapes import Shape, on_nodes
from moorage.model.slots import part_and_class, part_resources, place_in, resized, taken_by

from .device_failures import Failures
from .device_moves import (
    ClaimFailures,
    Mover,
    devices_on,
    doomed_pods,
    failures_of,
    has_untold_devices,
    names,
    pods_with,
)
from .node_room import NodeRoom, PartLinks
from .open_places import OpenPlaces, Place, add_on, is_per_node, merged_slots

Documents = Mapping[str, Revision]  # by group


class Progress(NamedTuple):
    """The progress of a group. `reached`: its standing decision ran in full at least once. `ran`: this or an earlier decision did.
    `restorable`: the document of the decision before is stored, so that it can stand again."""

    reached: bool
    ran: bool
    restorable: bool


#: Returns a group's progress; None if it is not known yet.
ProgressOf = Callable[[str], Progress | None]


class Surroundings(NamedTuple):
    """The inputs of settling a cluster beside ledger and rows. `held`: what decisions in flight take. `lost`: nodes that
    were unusable for so long that nothing is expected of them. `objects`: those that have to be read; None: all."""

    documents: Documents = {}
    held: NodeAmounts = {}
    lost: AbstractSet[str] = frozenset()
    progress: ProgressOf = lambda _group: None
    failures: Failures = Failures()
    objects: Collection[Family] | None = None


class Draft:
    """One cluster as ledger and rows show it, until `settle` changes it. What is in `around` may be added to before."""

    def __init__(self, cid: int, ledger: Ledger, fleet: Fleet, around: Surroundings | None = None) -> None:
        around = around or Surroundings()
        self.cid, self.ledger, self.fleet, self.around = cid, ledger, fleet, around
        self.cluster = fleet.names[cid]
        self.rows: dict[str, int] = fleet.places(cid)
        self.where: Ids = np.array(sorted(self.rows.values()), np.intp)
        self.places: list[Place] = []
        self.covered: dict[str, list[Slot]] = {}
        self.strays: dict[Family, dict[str, int]] = {}
        self.parts_moved = False  # pods have other parts of their nodes than their slots
        self.growing: NodeAmounts = {}  # what covered places take beyond the pods that cover them
        self.leaving: NodeAmounts = {}  # what goes soon: ending pods, and withdrawn claims with their pods
        self.running: dict[str, NodeAmounts] = {}  # claim → what its pods take
        self._shapes: dict[str, Shape | None] = {}
        self._failures: dict[str, ClaimFailures] = {}
        self.movers: list[Mover] = []
        self.waiting: dict[str, list[Slot]] = {}  # of DaemonSets, on failed devices of nodes without others
        # Only claims that may change are read: most stay as they are.
        self.active: dict[str, ActiveClaim] = {ident: ledger.claims[ident] for ident in sorted(self._idents())}
        for family in dict.fromkeys(active.family for active in self.active.values()):
            self._read_family(family)
        for ident, active in self.active.items():
            self._read_pods(ident, active)
        self.has_strays = any(place.family in self.strays for place in self.places)
        per_node = {a.family for a in self.active.values() if is_per_node(a.claim) and not a.withdrawn}
        self.has_daemon_sets = any(p.family in per_node for p in self.places) or not per_node.isdisjoint(self.strays)
        self.room = self._read_room()

    def _idents(self) -> AbstractSet[str]:
        """Returns the claims on the cluster that may change: of each group with an object to read all, as its decision may end.
        Failed devices, and nodes that refuse pods, concern objects at rest, too."""
        ledger, here = self.ledger, self.ledger.by_cluster.get(self.cluster, set())
        if self.around.objects is None or self.around.failures.failed:
            return here
        refused = here & self.fleet.pods.refused_of(self.cid).keys()
        families = {*self.around.objects, *(ledger.claims[ident].family for ident in refused)}
        groups = {ledger.claims[ident].group for family in families for ident in ledger.families.get(family, ())}
        found = {ident for group in groups for ident in here & ledger.by_group[group]}
        return found.union(*(ledger.families[ledger.claims[ident].family] for ident in found))

    def _read_family(self, family: Family) -> None:
        """Reads which places of an object pods cover. A pod of any of its claims covers a place."""
        idents = self.ledger.families[family]
        if len(idents) == 1 and self._is_at_rest(only := self.active[idents[0]]):
            self.covered[only.claim.id] = list(only.claim.slots)
            return
        nodes = FamilyNodes([self._counted(ident) for ident in idents])
        newest = self.active[idents[-1]]
        strays = nodes.strays()
        if self.around.failures.failed:
            strays = self._without_doomed(strays, idents)
        if strays:
            self.strays[family] = strays
        for ident in idents:
            self.covered[ident] = []
        first = self.active[idents[0]].claim
        self.covered[first.id] += [slot for slot in first.slots if slot.surge]  # they do not count
        by_node = places_by_node(
            {ident: [s for s in claim.slots if s.node] for ident, claim in zip(idents, nodes.claims, strict=True)}
        )
        staying = self._staying(idents)
        for node, places in by_node.items():
            pods = nodes.covering_on(node)
            if not (newest.withdrawn and self.leaves(newest.group)):
                # The next pods of the object take what these leave.
                for place in places[staying.get(node, 0) : pods]:
                    add_on(self.leaving, node, place.resources, -1)
            moving = self._moving(newest, node, places, pods)
            for place in places[:pods]:
                for ident, slot in place.slots.items():
                    if ident != newest.claim.id or id(place) not in moving:
                        self.covered[ident].append(resized(slot, 1))
            rest = nodes.open_on(node)
            for place in places:
                if id(place) in moving:
                    self.movers.append(moving[id(place)])
                    if not moving[id(place)].has_pod:
                        add(rest, place.resources, -1)
            for place in [place for place in places[pods:] if id(place) not in moving]:
                withdrawn = newest.withdrawn or newest.claim.id not in place.slots
                host = next(iter(place.slots.values())).host
                self.places.append(
                    Place(newest.group, newest.claim, family, withdrawn, place.slots, place.resources, node, host)
                )
                add(rest, place.resources, -1)
            add_on(self.growing, node, rest)
            if not staying.get(node):  # it goes with the pods
                add_on(self.leaving, node, rest)

    def _counted(self, ident: str) -> CountedClaim:
        """Returns a claim with its pods, and the parts that these have. Slots do not follow pods to devices that failed."""
        slots = self.active[ident].claim.slots
        counted = CountedClaim.reported(slots, ident, self.cid, self.fleet)
        followed = self._followed(ident, counted.named)
        if not followed or not parts_moved(slots, followed):
            return counted
        self.parts_moved = True
        return counted._replace(slots=follow_parts(slots, followed))

    def _followed(self, ident: str, named: NamedByNode) -> NamedByNode:
        """Returns what pods of a claim take of parts, without those that have devices that failed."""
        left = self.failures(ident).left if named else None
        if not left:
            return named
        runs = ((node, [run for run in told if left.keys().isdisjoint(run[0])]) for node, told in named.items())
        return {node: kept for node, kept in runs if kept}

    def failures(self, ident: str) -> ClaimFailures:
        """Returns what failures of devices mean for a claim."""
        found = self._failures.get(ident)
        if found is None:
            found = self._failures[ident] = failures_of(self, self.active[ident])
        return found

    def _without_doomed(self, strays: Mapping[str, int], idents: Iterable[str]) -> dict[str, int]:
        """Returns the stray pods without those that leave their devices: nothing follows these."""
        left = dict(strays)
        for ident in idents:
            for node, pods in doomed_pods(self, self.active[ident]).items():
                left[node] = left.get(node, 0) - pods
        return {node: pods for node, pods in left.items() if pods > 0}

    def _moving(self, newest: ActiveClaim, node: str, places: Sequence[FamilyPlace], pods: int) -> dict[int, Mover]:
        """Returns the places on a node that leave their devices, by identity."""
        found = self.failures(newest.claim.id) if self.around.failures.failed else None
        if found is None or not (found.left or found.closed):
            return {}
        having, unnamed = pods_with(self, newest, node)
        unnamed = min(unnamed, pods)
        moving: dict[int, Mover] = {}
        for place in places:
            slot = place.slots.get(newest.claim.id)
            if slot is None or not (names(slot, found.left) or names(slot, found.closed)):
                continue
            has_pod = not having.isdisjoint(slot.parts)
            if not has_pod and unnamed:
                has_pod, unnamed = True, unnamed - 1
            if names(slot, found.left) or not has_pod:
                moving[id(place)] = Mover(newest, place, has_pod)
        return moving

    def replace_device(self, mover: Mover, slot: Slot) -> None:
        """Gives a place that leaves its devices others of its node."""
        self.room.know(slot.node, part_resources(slot.parts))
        if mover.has_pod:  # which has what the slot named before
            self.room.take(slot.node, beyond(part_resources(slot.parts), part_resources(mover.slot.parts)))
            self.covered[mover.active.claim.id].append(slot)
            return
        place = self._open_place(mover)
        place.resources, place.inside = taken_by(slot), place_in(slot)

    def leave_device(self, mover: Mover) -> None:
        """Makes an open place of one that leaves its devices. That of a DaemonSet stays on its node, and waits."""
        newest = mover.active.claim
        if not is_per_node(newest):
            self._open_place(mover).leaves = True
            return
        slot = resized(mover.slot, 1)
        self.waiting.setdefault(newest.id, []).append(slot)
        if mover.has_pod:
            self.covered[newest.id].append(slot)
        else:
            self._open_place(mover)

    def _open_place(self, mover: Mover) -> Place:
        # Older claims of the object keep their slots; their pods end with the rollout.
        active, slot = mover.active, resized(mover.slot, 1)
        newest, members = active.claim, {active.claim.id: slot}
        place = Place(
            active.group, newest, active.family, False, members, mover.place.resources, mover.place.node, slot.host
        )
        self.places.append(place)
        return place

    def _is_at_rest(self, active: ActiveClaim) -> bool:
        """Returns whether the claim stays and each of its slots has a pod that does. Most are so, and are read quickly."""
        claim, pods = active.claim, self.fleet.pods
        if active.withdrawn or pods.ending(claim.id, self.cid):
            return False
        if any(slot.surge or slot.parts or uses_slots(slot.resources) for slot in claim.slots):
            return False
        wanted: dict[str, int] = {}
        for slot in claim.slots:
            wanted[slot.node] = wanted.get(slot.node, 0) + slot.count
        return wanted == pods.live(claim.id, self.cid)

    def _read_pods(self, ident: str, active: ActiveClaim) -> None:
        """Reads what the claim's pods take, and what of it goes soon."""
        slots, fleet = active.claim.slots, self.fleet
        if not slots:
            return
        live, ending = fleet.pods.live(ident, self.cid), fleet.pods.ending(ident, self.cid)
        size = slots[0].resources
        sizes = {node: _pods_on(slots, node) for node in live} if any(slot.parts for slot in slots) else {}
        going = live if active.withdrawn and self.leaves(active.group) else ending
        for node, pods in going.items():
            # The parts of those that stay are not free, so no more than those of all pods are.
            for taken in sizes.get(node, [])[:pods] if going is live else ():
                add_on(self.leaving, node, {n: a for n, a in taken.items() if part_and_class(n) is not None})
            add_on(self.leaving, node, size, pods)
        running = self.running.setdefault(ident, {})
        for node, pods in live.items():
            add_on(running, node, size, pods - ending.get(node, 0))

    def _staying(self, idents: Iterable[str]) -> dict[str, int]:
        """Returns the pods of these claims by node that do not go soon."""
        staying: dict[str, int] = {}
        for ident in idents:
            active = self.active[ident]
            if not (active.withdrawn and self.leaves(active.group)):
                add(staying, self.fleet.pods.live(ident, self.cid))
                add(staying, self.fleet.pods.ending(ident, self.cid), -1)
        return staying

    def is_older(self, ident: str) -> bool:
        """Returns whether a claim only follows its pods: it is withdrawn, or another group takes the object over."""
        active = self.active[ident]
        return active.withdrawn or self.ledger.families[active.family][-1] != ident

    def leaves(self, group: str) -> bool:
        """Returns whether the group's withdrawn claims are on their way out. They are kept until the new place runs."""
        if group not in self.ledger.standing:
            return True
        progress = self.around.progress(group)
        return progress is not None and progress.reached

    def _read_room(self) -> NodeRoom:
        """Returns allocatable - requested of each node, for the resources of the claims here, and what their parts have."""
        fleet, where = self.fleet, self.where
        slots = [slot for active in self.active.values() for slot in active.claim.slots]
        free: NodeAmounts = {node: {} for node in self.rows}
        for name in sorted({name for slot in slots for name in taken_by(slot)} | self._shared_types()):
            allocatable = fleet.allocatable(name)
            if allocatable is None:
                continue
            used = fleet.requested(name, where)
            left = dict(zip(where.tolist(), (allocatable[where] - used).tolist(), strict=True))
            for node, row in self.rows.items():
                free[node][name] = left[row]
        room = NodeRoom(fleet, PartLinks(fleet, self.cid, self.rows), free)
        if fleet.layout is not None:
            for slot in slots:
                room.know(slot.node, part_resources(slot.parts))
            for place in self.places:
                room.know(place.node, place.resources)
        for node, amounts in self.growing.items():
            room.take(node, amounts)
        for node, amounts in self.around.held.items():
            # Slots of machines are offered by what is held. Nobody reports them, so a node has no others.
            room.take(node, {name: amount for name, amount in amounts.items() if machine_of(name) is not None})
        return room

    def held(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yields what decisions in flight, allocations and machines take of nodes, but for the slots of machines."""
        return ((node, without_slots(amounts)) for node, amounts in self.around.held.items())

    def _shared_types(self) -> set[str]:
        """Returns the machine types whose slots are shared here. Each takes of what the others may have."""
        shared = self.fleet.shared_slots.get(self.cid, {}).values()
        return {kind.resource for on_node in shared for slots in on_node for kind in slots.types}

    # -- pods ---------------------------------------------------------------------------------------------------------

    def follow_pods(self) -> None:
        """Lets each stray pod take over an open slot of its claim, first one on an overfull node. A node that refused pods of the
        claim will refuse the next one, too. Where nobody tells which devices pods have, slots with devices follow only to nodes that
        have some: else the pod is of an older template, and ends with the rollout."""
        refused = self.fleet.pods.refused_of(self.cid)
        given: NodeAmounts = {}
        open_places = OpenPlaces(self)
        by_family: dict[Family, list[Place]] = {}
        for place in self.places:
            by_family.setdefault(place.family, []).append(place)
        for family, strays in self.strays.items():
            if is_per_node(family):
                continue  # each of its slots stays on its node
            mine = by_family.get(family, [])
            mine.sort(key=lambda place: place.node in self.rows and not open_places.is_overfull(place.node))
            avoided = refused.get(mine[0].claim.id, ()) if mine else ()
            nodes = [node for node, count in sorted(strays.items()) if node not in avoided for _ in range(count)]
            for place, node in zip(mine, nodes, strict=False):
                if has_untold_devices(self, place, node):
                    found = devices_on(self, node, self.active[place.claim.id], 1, given)
                    if not found:
                        continue
                    place.inside = found[0]
                    add_on(given, node, part_resources(found[0].parts))
                open_places.leave(place)
                place.node, place.host, place.stray = node, self.host(node), True

    def host(self, node: str) -> str:
        row = self.rows.get(node)
        return "" if row is None else other_host(self.fleet, row)

    def open(self) -> list[Place]:
        return [place for place in self.places if not (place.stray or place.dropped)]

    def movable(self) -> list[Place]:
        """Returns the open places of standing decisions that may be on another node."""
        return [place for place in self.open() if not place.withdrawn and not is_per_node(place.claim)]

    def overfull(self) -> set[str]:
        """Returns the nodes with open places that pods and open places together leave no room for."""
        open_places = OpenPlaces(self)
        return {node for node in open_places.nodes if open_places.is_overfull(node)}

    def room_beside(self, places: Iterable[Place]) -> NodeRoom:
        """Returns what is free beside pods and these places."""
        room = self.room.copy()
        for place in places:
            room.take(place.node, place.resources)
        return room

    def bad_nodes(self) -> set[str]:
        """Returns the nodes on which open places of standing decisions have lost their room, and those that are lost."""
        overfull = self.overfull()
        return {
            place.node
            for place in self.open()
            if not place.withdrawn
            and place.node
            and (
                (not is_per_node(place.claim) and self.must_leave(place))
                or (place.node in overfull and self.is_usable(place.node))
            )
        }

    def is_usable(self, node: str) -> bool:
        row = self.rows.get(node)
        return row is not None and bool(self.fleet.usable[row])

    def is_lost(self, node: str) -> bool:
        """Returns whether the node is gone or was unusable for too long."""
        return node not in self.rows or (node in self.around.lost and not self.is_usable(node))

    def is_refused(self, place: Place) -> bool:
        """Returns whether the place's node did not admit a pod of the claim and has not changed since."""
        return place.node in self.fleet.pods.refused_of(self.cid).get(place.claim.id, ())

    def must_leave(self, place: Place) -> bool:
        """Returns whether a place cannot stay where it is, whatever the node has free."""
        return place.leaves or self.is_lost(place.node) or self.is_refused(place)

    def refusal_words(self, claim: Claim) -> str:
        """Returns what the node said that refused a pod of the claim last."""
        return self.fleet.pods.refusal_words(self.cid).get(claim.id, "")

    def to_confine(self, slots: Mapping[str, Sequence[Slot]]) -> dict[str, dict[str, str]]:
        """Returns the claims, with these slots or those that they have, whose pods may still be bound to a node that refuses
        them, each with these nodes and what they said."""
        result: dict[str, dict[str, str]] = {}
        for ident, nodes in self.fleet.pods.refused_of(self.cid).items():
            active = self.active.get(ident)
            if active is None or self.is_older(ident) or is_per_node(active.claim):
                continue
            claim = active.claim
            there = {slot.node for slot in slots.get(ident, claim.slots) if slot.node}
            if claim.pinned:  # only to remember what the nodes said
                to_tell = not claim.refused_by.keys() >= set(nodes)
            else:
                may_be_bound = not claim.required_nodes or not claim.required_nodes.keys().isdisjoint(nodes)
                to_tell = may_be_bound and claim.required_nodes.keys() != there
            if to_tell and not there <= set(nodes):
                result[ident] = dict.fromkeys(nodes, self.refusal_words(claim))
        return result

    # -- shapes -------------------------------------------------------------------------------------------------------

    def shape(self, place: Place) -> Shape | None:
        return self.shape_of(place.claim, place.group)

    def shape_of(self, claim: Claim, group: str) -> Shape | None:
        """Returns the shape of the claim's pods, confined to the nodes that it requires; None if no document has it."""
        if claim.id not in self._shapes:
            found = _find_shape(claim, group, self.around.documents.get(group))
            nodes = claim.required_nodes
            # The pods' template is changed where it requires a node that is lost.
            if found is not None and nodes and not any(self.is_lost(node) for node in nodes):
                found = on_nodes(found, "In", nodes)
            if found is not None and (refused := self.fleet.pods.refused_of(self.cid).get(claim.id)):
                found = on_nodes(found, "NotIn", refused)
            self._shapes[claim.id] = found and _with_own_rules(found, group)
        return self._shapes[claim.id]

    # -- the result ---------------------------------------------------------------------------------------------------

    def changed_slots(self) -> dict[str, list[Slot]]:
        """Returns the slots of the claims that change."""
        result: dict[str, list[Slot]] = {}
        expected: dict[str, list[Slot]] = {}
        for place in self.places:
            for ident in place.members if not place.dropped else ():
                expected.setdefault(ident, []).append(place.slot(ident))
        arrived = {ident for place in self.places if place.stray for ident in place.members}
        for ident, active in self.active.items():
            before = active.claim.slots
            slots: Sequence[Slot] = [*self.covered[ident], *expected.get(ident, ())]
            if ident in arrived:
                slots = follow_parts(slots, self._followed(ident, self.fleet.pods.named(ident, self.cid)))
            if slots != before and not same_slots(slots, before):
                result[ident] = merged_slots(slots)
        return result


def _pods_on(slots: Iterable[Slot], node: str) -> list[Mapping[str, int]]:
    """Returns what each pod with a slot on the node takes."""
    return [taken_by(slot) for slot in slots if slot.node == node for _ in range(slot.count)]


def _with_own_rules(shape: Shape, group: str) -> Shape:
    """Returns the shape with rules about pods of its group only. Selectors of other groups may be the same."""
    if not shape.rules and not shape.marks:
        return shape
    rules = [msgspec.structs.replace(rule, pods=rule.pods and f"{group} {rule.pods}") for rule in shape.rules]
    return msgspec.structs.replace(shape, rules=rules, marks=[f"{group} {mark}" for mark in shape.marks])


def _find_shape(claim: Claim, group: str, document: Revision | None) -> Shape | None:
    for app in document.apps if document is not None else ():
        if app.name != claim.app:
            continue
        for shape in app.shapes:
            made = claim_id(group, app.name, shape.object, claim.cluster, shape.template)
            if shape.object == claim.object and made == claim.id:
                return shape
    return None
