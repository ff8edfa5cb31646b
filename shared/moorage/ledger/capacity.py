"""Takes the room of claims and of decisions in flight from the free capacity of a fleet.

Claims of one object on one cluster are counted together (`families`). A slot counts in full until the newest report shows a
live pod of one of these claims on the slot's node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from moorage.fit.inner_rows import holds_open_pods
from moorage.fit.static_inside import StaticInside
from moorage.fleet import Fleet, FleetChange
from moorage.model.allocations import IN_COMMON
from moorage.model.claims import Allocation, Claim, Decision, SlotGrants, SlotReservations
from moorage.model.machine_slots import ReservedSlots, machine_of, reservation_claim
from moorage.model.machines import Allow
from moorage.model.slots import part_and_class

from .families import (
    Amounts,
    CountedClaim,
    Family,
    NodeAmounts,
    add,
    beyond,
    differs_from_pods,
    is_fully_covered,
    open_room,
    strays_have_open_slots,
)
from .ledger import ActiveClaim, Changes, Ledger
from .machine_room import add_slot, granted_room, loses_taken, reserved_room
from .open_pods import OpenPods
from .part_moves import parts_moved
from .room import free_in_common, free_of, is_reached
from .shared_room import SharedRoom, taken_with

FamilyAmounts = dict[Family, NodeAmounts]
ClusterAmounts = Mapping[str, NodeAmounts]


def excess(after: NodeAmounts, now: NodeAmounts) -> NodeAmounts:
    """Returns by how much `after` is more than `now`, node by node."""
    if not now:
        return after
    more = ((node, beyond(amounts, now.get(node, {}))) for node, amounts in after.items())
    return {node: extra for node, extra in more if extra}


def _changes(taken: Amounts, after: Amounts) -> tuple[Amounts, Amounts]:
    """Returns what is to be taken more, and what less, so that it is `after` instead of `taken`."""
    if not taken:
        change = after
    elif not after:
        change = {n: -a for n, a in taken.items()}
    else:
        change = {n: after.get(n, 0) - taken.get(n, 0) for n in {**after, **taken}}
    # Slots that are offered are taken amounts below zero.
    return {n: a for n, a in change.items() if a > 0}, {n: -a for n, a in change.items() if a < 0}


class Capacity:
    """Keeps the fleet's free capacity in step with the ledger, with reports and with decisions in flight. Nothing else calls
    `fleet.take`. The room of a decision in flight is held under its id until it is folded or given back; it is computed again
    whenever the claims of one of its objects take another amount."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self.fleet, self.ledger = fleet, ledger
        self._families: FamilyAmounts = {}
        self._family_of: dict[str, Family] = {}  # by claim, also of those in flight
        self._in_flight: dict[str, FamilyAmounts] = {}  # decision → what its claims take beyond `_families`
        self._claims_in_flight: dict[Family, dict[str, Claim]] = {}  # by decision, the claim that it would add
        self._allocated: dict[str, ClusterAmounts] = {}  # consumer of the Placement interface → what it holds of nodes
        self._reserved: dict[str, ClusterAmounts] = {}  # reservation of machines → what its slots take
        self._granted: dict[str, ClusterAmounts] = {}  # guest → what it takes of slots
        self._reservation_of: dict[str, set[str]] = {}  # claim whose pods fill slots → reservations
        self._shared = SharedRoom()
        #: Reservation → its cluster, and by resource who may use its slots.
        self._users: dict[str, tuple[str, dict[str, tuple[Allow, ...]]]] = {}
        # Entry → what it takes beyond what its consumers, reservations or guests take now.
        self._entries_in_flight: dict[str, ClusterAmounts] = {}
        self._totals: dict[str, NodeAmounts] = {}  # by cluster
        self._absent: dict[str, set[str]] = {}  # cluster → nodes with totals that are not there
        self._strayed: dict[str, set[Family]] = {}  # cluster → objects with both a stray pod and an open slot
        self._in_motion: dict[str, set[Family]] = {}  # cluster → objects that are not at rest
        self._open_pods = OpenPods()
        # Nodes whose totals changed since the last flush, with the amounts of that flush. None: the fleet's row is new.
        self._dirty: dict[str, dict[str, Amounts | None]] = {}
        fleet.on_change.append(self._fleet_changed)
        self.reload(ledger)

    def close(self) -> None:
        self.fleet.on_change.remove(self._fleet_changed)

    def reload(self, ledger: Ledger) -> None:
        """Recounts all claims after the ledger was loaded from a snapshot."""
        self.ledger = ledger
        self._family_of = {ident: active.family for ident, active in ledger.claims.items()}
        for family, claims in self._claims_in_flight.items():
            self._family_of.update((claim.id, family) for claim in claims.values())
        for family in {*self._families, *ledger.families, *self._claims_in_flight}:
            self._recount(family)
        self._recount_consumers({*self._allocated, *ledger.allocations.consumers})
        self._recount_machines({*self._reserved, *ledger.machines.reserved}, {*self._granted, *ledger.machines.granted})
        self._flush()

    def folded(self, changes: Changes, decisions: Iterable[Decision] = (), entries: Iterable[str] = ()) -> None:
        """Recounts the changed claims after a fold. What is held for `decisions` and for `entries` becomes theirs without
        looking free in between."""
        for entry in entries:
            self._shift_all(self._entries_in_flight.pop(entry, {}), {})
        self._recount_consumers(changes.consumers)
        reservations = changes.reservations
        if self._reservation_of or self.ledger.machines.within:
            # A claim that is new or gone may use slots: its pods fill them, or do not any more.
            reservations = reservations.union(*map(self._reservations_of, changes.claims))
        if reservations or changes.grants:
            self._recount_machines(reservations, changes.grants)
        flights = [self._remove_from_flight(d.id) for d in decisions if d.id in self._in_flight]
        changed = self._families_of(changes.claims)
        for flight in flights:
            for family in [f for f in flight if f in changed and f not in self._families]:
                self._families[family] = flight.pop(family)  # its room is taken already
        for family in changed:
            self._recount(family)
        for ident in changes.withdrawn:  # they take as much as before, but are on their way out
            if (active := self.ledger.claims.get(ident)) is not None:
                self._mark_motion(active.family, covered=False)
        for flight in flights:
            self._return(flight)
        for ident in changes.released:
            self._forget(ident)
            self._reservation_of.pop(ident, None)
        self._flush()

    def hold(self, decision: Decision) -> None:
        """Takes what the decision would claim beyond what the claims of the same objects take now."""
        flight: FamilyAmounts = {}
        for claim in decision.claims:
            family = self.ledger.family_for(decision.group, claim)
            self._family_of[claim.id] = family
            self._claims_in_flight.setdefault(family, {})[decision.id] = claim
            amounts = flight[family] = self._excess(family, claim)
            self._open_pods.hold(decision.id, family, claim)
            if amounts:
                self._shift(claim.cluster, {}, amounts)
        self._in_flight[decision.id] = flight
        self._flush()

    def give_back(self, decision: str) -> None:
        self._return(self._remove_from_flight(decision))
        self._flush()

    def hold_allocation(self, entry: Allocation) -> None:
        """Takes what the entry's consumers would hold beyond what they hold now."""
        now: dict[str, NodeAmounts] = {}
        after: dict[str, NodeAmounts] = {}
        for write in entry.writes:
            for total, held in (
                (now, self._allocated.get(write.consumer.uuid, {})),
                (after, write.consumer.taken),
            ):
                for cluster, by_node in held.items():
                    for node, amounts in by_node.items():
                        add(total.setdefault(cluster, {}).setdefault(node, {}), amounts)
        self._hold_entry(entry.id, now, after)

    def hold_reservations(self, entry: SlotReservations) -> None:
        """Takes what the reservations would take beyond what they take now. Slots that are new are not offered yet."""
        now: dict[str, NodeAmounts] = {}
        after: dict[str, NodeAmounts] = {}
        for reserved in entry.reserved:
            before = self._reserved.get(reserved.claim, {})
            for total, held in ((now, before), (after, {reserved.cluster: self._room_of(reserved)})):
                for cluster, by_node in held.items():
                    for node, amounts in by_node.items():
                        add_slot(total, cluster, node, {name: a for name, a in amounts.items() if a > 0})
        self._hold_entry(entry.id, now, after)

    def hold_grants(self, entry: SlotGrants) -> None:
        """Takes the slots that the guests would have. Slots that it takes back are free only once it is folded."""
        now: dict[str, NodeAmounts] = {}
        for slot in entry.granted:
            for cluster, by_node in self._granted.get(slot.uid, {}).items():
                for node, amounts in by_node.items():
                    add_slot(now, cluster, node, amounts)
        self._hold_entry(entry.id, now, granted_room(entry))

    def _hold_entry(self, entry: str, now: ClusterAmounts, after: ClusterAmounts) -> None:
        flight = {c: more for c, nodes in after.items() if (more := excess(nodes, now.get(c, {})))}
        self._entries_in_flight[entry] = flight
        self._shift_all({}, flight)
        self._flush()

    def give_back_entry(self, entry: str) -> None:
        self._shift_all(self._entries_in_flight.pop(entry, {}), {})
        self._flush()

    def holds_room(self, entry: str) -> bool:
        """Returns whether what is held for the entry exists and is usable, with everything else that is taken."""
        for cluster, by_node in self._entries_in_flight.get(entry, {}).items():
            cid = self.fleet.ids.get(cluster)
            for node, amounts in by_node.items():
                if node == IN_COMMON:
                    if not self._holds_in_common(cid, amounts):
                        return False
                    continue
                row = self.fleet.row_of(cid, node) if cid is not None else None
                if row is None or not self.fleet.usable[row] or not holds_open_pods(self.fleet, row):
                    return False
                if any((free := free_of(self.fleet, row, name)) is None or free < 0 for name in amounts):
                    return False
        return True

    def _holds_in_common(self, cid: int | None, amounts: Amounts) -> bool:
        return cid is not None and all(
            is_reached(self.fleet, cid, name) and (free_in_common(self.fleet, cid, name) or 0) >= 0 for name in amounts
        )

    def keeps_slots(self, entry: SlotReservations) -> bool:
        """Returns whether no slot goes that somebody has, unless all slots of the type go."""
        held = self._entries_in_flight.get(entry.id, {})
        for reserved in entry.reserved:
            before = self.ledger.machines.reserved.get(reserved.claim)
            totals = self._totals.get(reserved.cluster, {})
            for node in before.slots if before is not None and reserved.slots else ():
                taken = dict(totals.get(node, {}))
                add(taken, held.get(reserved.cluster, {}).get(node, {}), -1)
                if before is not None and loses_taken(before, reserved, node, taken):
                    return False
        return True

    def fits(self, decision: str) -> bool:
        """Returns whether what is held for the decision exists and is usable, with everything else that is taken."""
        fleet = self.fleet
        for family, by_node in self._in_flight.get(decision, {}).items():
            cid = fleet.ids.get(family.cluster)
            claim = self._claims_in_flight[family][decision]
            active = self.ledger.claims.get(claim.id)
            if active is None or active.withdrawn:
                if cid is None or not fleet.usable_clusters[cid]:
                    return False
            elif not by_node:
                continue  # a claim that stays as it is fits even where the cluster is not usable any more
            # Pods of a claim that is new there start on its nodes, even where they need no more room.
            nodes: Iterable[str] = by_node if active is not None else {slot.node for slot in claim.slots if slot.node}
            for node in nodes:
                row = fleet.row_of(cid, node) if cid is not None else None
                if row is None or not fleet.usable[row] or not self._is_free(row, by_node.get(node, {})):
                    return False
        return True

    def _is_free(self, row: int, amounts: Amounts) -> bool:
        """Returns whether a node lacks nothing of what is taken of it, and can admit the pods that may still arrive."""
        for name, amount in amounts.items():
            if amount > 0 and ((free := free_of(self.fleet, row, name)) is None or free < 0):
                return False
        return not amounts or not self.fleet.open_pods or holds_open_pods(self.fleet, row)

    def held_on(self, cluster: str) -> NodeAmounts:
        """Returns what allocations and machines hold of the cluster's nodes, and what entries in flight take beyond its claims."""
        held: NodeAmounts = {}
        idents = self.ledger.allocations.by_cluster.get(cluster, ())
        machines = [*self._reserved.values(), *self._granted.values()]
        for allocated in [*(self._allocated[i] for i in idents), *machines, *self._entries_in_flight.values()]:
            for node, amounts in allocated.get(cluster, {}).items():
                add(held.setdefault(node, {}), amounts)
        for flight in self._in_flight.values():
            for family, by_node in flight.items():
                if family.cluster == cluster:
                    for node, amounts in by_node.items():
                        add(held.setdefault(node, {}), amounts)
        return held

    def open_nodes(self, cluster: str) -> Collection[str]:
        """Returns the nodes of the cluster of which open slots or decisions in flight take something."""
        return self._totals.get(cluster, {}).keys()

    def in_motion(self, cluster: str) -> Collection[Family]:
        """Returns the objects there that are not at rest: all but those with one claim that stays, each slot of which has its pod.
        Settling changes nothing about an object at rest. DaemonSets never are, as their slots follow the nodes."""
        return self._in_motion.get(cluster, ())

    def to_settle(self, cluster: str, *, whole: bool) -> Collection[Family]:
        """Returns the objects that settling the cluster has to read. Where no node lacks room slots only follow stray pods, which
        concerns the objects of these; else, and if the `whole` cluster is to be looked at, other open slots may have to move."""
        names = {name for amounts in self._totals.get(cluster, {}).values() for name in amounts}
        in_motion = self.in_motion(cluster)
        if (
            whole
            or any(part_and_class(name) is not None or machine_of(name) is not None for name in names)
            or any(family.object.startswith("DaemonSet/") for family in in_motion)
            or self.ledger.displaced_on(cluster)
            or self._may_lack_room(cluster)
        ):
            return in_motion
        return self._strayed.get(cluster, ())

    def may_be_unsettled(self, cluster: str) -> bool:
        """Returns whether an object there has both a stray pod and an open slot, or a pod other parts than its slot, or a node with
        open slots is gone or has less room than these need. It is quick, so that it can be asked after each change."""
        return cluster in self._strayed or self._may_lack_room(cluster)

    def _may_lack_room(self, cluster: str) -> bool:
        """Returns whether a node with open slots is gone, refuses pods, or has less room than these need."""
        if cluster in self._absent:
            return True
        totals, cid = self._totals.get(cluster), self.fleet.ids.get(cluster)
        if not totals or cid is None:
            return False
        if self.fleet.pods.refused_of(cid):
            return True
        rows = self.fleet.rows_of(cid)
        for name in {name for amounts in totals.values() for name in amounts}:
            if part_and_class(name) is not None:
                if self._part_is_short(cid, totals, name):
                    return True
                continue
            free = self.fleet.free(name)
            if free is None:
                return True
            short = rows[free[rows] < 0]
            if short.size and any(totals.get(node, {}).get(name) for node in self.fleet.names_at(cid, short)):
                return True
        return False

    def _part_is_short(self, cid: int, totals: NodeAmounts, name: str) -> bool:
        """Returns whether more is taken of a part than it has. A part that is gone is not short: its claims stay."""
        for node, amounts in totals.items():
            row = self.fleet.row_of(cid, node) if amounts.get(name) else None
            if row is not None and (free_of(self.fleet, row, name) or 0) < 0:
                return True
        return False

    # -- counting -----------------------------------------------------------------------------------------------------

    def _families_of(self, claims: Iterable[str]) -> set[Family]:
        """Returns the families of claims, also those that they were in before."""
        found: set[Family] = set()
        for ident in claims:
            if (before := self._family_of.get(ident)) is not None:
                found.add(before)
            active = self.ledger.claims.get(ident)
            if active is not None:
                found.add(family := active.family)
                self._family_of[ident] = family
        return found

    def _counted(self, claims: Sequence[Claim], cluster: str) -> list[CountedClaim]:
        """Returns the claims of one object with their pods by the newest report."""
        cid, fleet = self.fleet.ids.get(cluster), self.fleet
        if cid is None:
            return [CountedClaim(claim.slots) for claim in claims]
        return [CountedClaim.reported(claim.slots, claim.id, cid, fleet) for claim in claims]

    def _mark_strays(self, family: Family, claims: Sequence[CountedClaim]) -> None:
        # The slots of a DaemonSet follow its nodes, so any difference to its pods may unsettle the cluster.
        per_node = family.object.startswith("DaemonSet/")
        has_pods = len(claims) > 1 or (len(claims) == 1 and bool(claims[0].live))
        if (has_pods or (per_node and claims)) and (
            (differs_from_pods(claims) if per_node else strays_have_open_slots(claims))
            or any(claim.named and parts_moved(claim.slots, claim.named) for claim in claims)
        ):
            self._strayed.setdefault(family.cluster, set()).add(family)
        elif (families := self._strayed.get(family.cluster)) is not None:
            families.discard(family)
            if not families:
                del self._strayed[family.cluster]

    def _mark_motion(self, family: Family, *, covered: bool) -> None:
        idents = self.ledger.families.get(family, ())
        if idents and not (covered and self._stays(family, self.ledger.claims[idents[0]])):
            self._in_motion.setdefault(family.cluster, set()).add(family)
        elif (families := self._in_motion.get(family.cluster)) is not None:
            families.discard(family)
            if not families:
                del self._in_motion[family.cluster]

    @staticmethod
    def _stays(family: Family, active: ActiveClaim) -> bool:
        """Returns whether nothing is expected to change about an object's only claim once each of its slots has a pod."""
        surge = any(slot.surge for slot in active.claim.slots)
        return not (active.withdrawn or active.claim.vacated or surge or family.object.startswith("DaemonSet/"))

    def _excess(self, family: Family, claim: Claim) -> NodeAmounts:
        """Returns what the object's claims take more once the claim is the newest of them."""
        others = [other for other in self.ledger.family_of(family) if other.id != claim.id]
        return excess(open_room(self._counted([*others, claim], family.cluster)), self._families.get(family, {}))

    def _recount(self, family: Family) -> None:
        before = self._families.pop(family, {})
        after: NodeAmounts = {}
        counted = self._counted(self.ledger.family_of(family), family.cluster)
        covered = is_fully_covered(counted)
        self._mark_motion(family, covered=covered)
        if covered:
            counted, self._families[family] = [], after
        self._mark_strays(family, counted)
        self._open_pods.recount(family, counted)
        if counted:
            after = self._families[family] = open_room(counted)
        if before != after:
            self._shift(family.cluster, before, after)
        for decision, claim in self._claims_in_flight.get(family, {}).items():
            flight = self._in_flight[decision]
            held = flight[family]
            now = self._excess(family, claim)
            if now != held:
                flight[family] = now
                self._shift(family.cluster, held, now)

    def _recount_consumers(self, idents: Iterable[str]) -> None:
        consumers = self.ledger.allocations.consumers
        for ident in idents:
            before, found = self._allocated.pop(ident, {}), consumers.get(ident)
            if found is not None and found.taken:
                self._allocated[ident] = found.taken
            self._shift_all(before, self._allocated.get(ident, {}))

    def _reservations_of(self, claim: str) -> set[str]:
        """Returns the reservations whose slots the pods of a claim fill, or filled before."""
        found = set(self._reservation_of.get(claim, ()))
        active = self.ledger.claims.get(claim)
        if active is not None and active.claim.within:
            found |= {active.claim.within, *self._reservation_of.get(active.claim.within, ())}
        return found

    def _claims_in(self, machine: str, cluster: str) -> tuple[str, ...]:
        """Returns the claims whose pods fill slots of a machine type."""
        claim = reservation_claim(machine, cluster)
        return (claim, *self.ledger.machines.within.get(claim, ()))

    def _room_of(self, reserved: ReservedSlots) -> NodeAmounts:
        return reserved_room(reserved, lambda machine: self._claims_in(machine, reserved.cluster), self.fleet)

    def _recount_machines(self, reservations: Iterable[str], guests: Iterable[str]) -> None:
        machines = self.ledger.machines
        for ident in reservations:
            before, reserved = self._reserved.pop(ident, {}), machines.reserved.get(ident)
            if reserved is not None:
                self._reserved[ident] = {reserved.cluster: self._room_of(reserved)}
                for machine in (reserved.machine, *reserved.children):
                    for claim in self._claims_in(machine, reserved.cluster):
                        self._reservation_of.setdefault(claim, set()).add(ident)
            else:
                self._reservation_of.pop(ident, None)
            self._shift_all(before, self._reserved.get(ident, {}))
            self._set_users(ident, reserved)
            for cluster, node in self._shared.set(ident, reserved):
                self._dirty.setdefault(cluster, {})[node] = None
        for uid in guests:
            before, slot = self._granted.pop(uid, {}), machines.granted.get(uid)
            if slot is not None and slot.takes:
                self._granted[uid] = {slot.cluster: {slot.node: slot.takes}}
            self._shift_all(before, self._granted.get(uid, {}))

    def _set_users(self, claim: str, reserved: ReservedSlots | None) -> None:
        """Tells the fleet who may use the slots of a reservation."""
        cluster, before = self._users.get(claim, ("", {}))
        users = reserved.users() if reserved is not None else {}
        if users == before:
            return
        for name in before:
            del self.fleet.slot_users[name][cluster]
            if not self.fleet.slot_users[name]:
                del self.fleet.slot_users[name]
        self._users.pop(claim, None)
        if reserved is None:
            return
        if users:
            self._users[claim] = reserved.cluster, users
        for name, rules in users.items():
            self.fleet.slot_users.setdefault(name, {})[reserved.cluster] = rules
        if (cid := self.fleet.ids.get(reserved.cluster)) is not None:
            for node in reserved.slots:  # those who wait may be allowed now
                self.fleet.note_improved(cid, node)

    def _shift_all(self, before: ClusterAmounts, after: ClusterAmounts) -> None:
        for cluster in {**before, **after}:
            self._shift(cluster, before.get(cluster, {}), after.get(cluster, {}))

    def _remove_from_flight(self, decision: str) -> FamilyAmounts:
        flight = self._in_flight.pop(decision, {})
        self._open_pods.give_back(decision)
        for family in flight:
            others = self._claims_in_flight[family]
            claim = others.pop(decision)
            if not others:
                del self._claims_in_flight[family]
            self._forget(claim.id)
        return flight

    def _forget(self, ident: str) -> None:
        """Drops a claim that is neither in the ledger nor in flight."""
        family = self._family_of.get(ident)
        if family is None or ident in self.ledger.claims:
            return
        if all(claim.id != ident for claim in self._claims_in_flight.get(family, {}).values()):
            del self._family_of[ident]

    def _return(self, flight: FamilyAmounts) -> None:
        for family, amounts in flight.items():
            if amounts:
                self._shift(family.cluster, amounts, {})

    def _shift(self, cluster: str, before: NodeAmounts, after: NodeAmounts) -> None:
        totals = self._totals.setdefault(cluster, {})
        dirty = self._dirty.setdefault(cluster, {})
        for sign, by_node in ((-1, before), (1, after)):
            for node, amounts in by_node.items():
                total = totals.setdefault(node, {})
                if node not in dirty:
                    dirty[node] = total.copy()
                for name, amount in amounts.items():
                    total[name] = total.get(name, 0) + sign * amount

    def _flush(self) -> None:
        """Brings the fleet up to date, once per change: room that is given back and taken again in one step never looks free
        in between."""
        dirty, self._dirty = self._dirty, {}
        for cluster, nodes in dirty.items():
            cid = self.fleet.ids.get(cluster)
            totals = self._totals.get(cluster, {})
            for node, before in nodes.items():
                after = {name: amount for name, amount in totals.get(node, {}).items() if amount}
                if after:
                    totals[node] = after
                else:
                    totals.pop(node, None)
                shared = self._shared.on(cluster, node, after)
                if cid is not None and (shared or node in self.fleet.shared_slots.get(cid, ())):
                    self.fleet.set_shared_slots(cid, node, shared)
                    self._take(cid, node, None, taken_with(after, shared))
                elif cid is not None and after != before:
                    self._take(cid, node, before, after)
            if not totals:
                self._totals.pop(cluster, None)
        changed = set(self._open_pods.take_changed())
        if self.fleet.layout is None and not self.fleet.open_pods:
            return  # no kubelet aligns anything
        for cluster, nodes in dirty.items():
            open_pods = self._open_pods.of(cluster)
            if open_pods or self.fleet.ids.get(cluster) in self.fleet.open_pods:
                changed.update((cluster, node) for node in nodes)
        for cluster, node in changed:
            self._tell_open_pods(cluster, node)

    def _tell_open_pods(self, cluster: str, node: str) -> None:
        """Tells the fleet which pods may still arrive at a node whose kubelet aligns them."""
        cid = self.fleet.ids.get(cluster)
        if cid is None:
            return
        row = self.fleet.row_of(cid, node)
        aligns = row is not None and StaticInside.of(self.fleet.inside(row)[1]).manager.rejects
        self.fleet.set_open_pods(cid, node, self._open_pods.on(cluster, node) if aligns else {})

    def _take(self, cid: int, node: str, before: Amounts | None, after: Amounts) -> None:
        """Takes the difference from the fleet's row. `before` None: from what the row has taken itself."""
        if node == IN_COMMON:
            self._take_in_common(cid, before, after)
            return
        row = self.fleet.row_of(cid, node)
        if row is None or after:
            self._mark_absent(cid, node, absent=row is None and bool(after))
        if row is None:
            return
        more, less = _changes(self.fleet.taken(row) if before is None else before, after)
        if more:
            self.fleet.take(row, more, 1)
        if less:
            self.fleet.take(row, less, -1)

    def _take_in_common(self, cid: int, before: Amounts | None, after: Amounts) -> None:
        more, less = _changes(self.fleet.taken_in_common(cid) if before is None else before, after)
        if more:
            self.fleet.take_in_common(cid, more)
        if less:
            self.fleet.take_in_common(cid, less, -1)

    def _mark_absent(self, cid: int, node: str, *, absent: bool) -> None:
        cluster = self.fleet.names[cid]
        nodes = self._absent.get(cluster)
        if absent:
            self._absent.setdefault(cluster, set()).add(node)
        elif nodes is not None:
            nodes.discard(node)
            if not nodes:
                del self._absent[cluster]

    def _fleet_changed(self, change: FleetChange) -> None:
        if change.reset:
            self.fleet.open_pods.clear()
            self.fleet.shared_slots.clear()
            for family in {*self.ledger.families, *self._claims_in_flight}:
                self._recount(family)
            self._recount_machines(list(self._reserved), ())
            for cluster, totals in self._totals.items():
                self._dirty.setdefault(cluster, {}).update(dict.fromkeys(totals))
        else:
            for family in {f for ident in change.claims if (f := self._family_of.get(ident)) is not None}:
                self._recount(family)
            if self._reservation_of:
                self._recount_machines({r for ident in change.claims for r in self._reservation_of.get(ident, ())}, ())
            for cid in {*change.node_sets.tolist(), *change.part_sets.tolist()}:
                cluster = self.fleet.names[cid]
                if cluster in self._totals:
                    self._dirty.setdefault(cluster, {}).update(dict.fromkeys(self._totals[cluster]))
        self._flush()
