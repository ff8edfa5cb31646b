"""Takes the room of claims and of decisions in flight from the free capacity of a fleet.

Claims of one object on one cluster are counted together (`families`). A slot counts in full until the newest report shows a
live pod of one of these claims on the slot's node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from moorage.fit.inner_rows import holds_open_pods
from moorage.fleet import Fleet, FleetChange
from moorage.model.allocations import IN_COMMON
from moorage.model.claims import Allocation, Claim, Decision, SlotGrants, SlotReservations
from moorage.model.machine_slots import machine_of
from moorage.model.slots import part_and_class

from .families import (
    Amounts,
    CountedClaim,
    Family,
    FamilyNodes,
    NodeAmounts,
    add,
    beyond,
    is_fully_covered,
    open_room,
)
from .ledger import Changes, Ledger
from .machine_capacity import MachineCapacity
from .machine_room import ClusterAmounts, add_slot, granted_room, loses_taken
from .open_pods import OpenPods
from .room import free_in_common, free_of, is_reached
from .shared_room import SharedRoom
from .taken_room import TakenRoom
from .unsettled_objects import UnsettledObjects

#: Objects whose count is put off at most: counting them takes some 50 ms.
MOST_OUTDATED = 2048

FamilyAmounts = dict[Family, NodeAmounts]


def excess(after: NodeAmounts, now: NodeAmounts) -> NodeAmounts:
    """Returns by how much `after` is more than `now`, node by node."""
    if not now:
        return after
    more = ((node, beyond(amounts, now.get(node, {}))) for node, amounts in after.items())
    return {node: extra for node, extra in more if extra}


class Capacity:
    """Keeps the fleet's free capacity in step with the ledger, with reports and with decisions in flight. The room of a decision
    in flight is held under its id until it is folded or given back; it is computed again whenever the claims of one of its
    objects take another amount. `lazy`: the claims of objects that change are counted by `refresh`, before the free capacity is
    read; what changes several times until then is counted once."""

    def __init__(self, fleet: Fleet, ledger: Ledger, *, lazy: bool = False) -> None:
        self.fleet, self.ledger, self._lazy = fleet, ledger, lazy
        self._outdated: dict[Family, None] = {}  # objects to count by the next `refresh`
        self._families: FamilyAmounts = {}
        self._family_of: dict[str, Family] = {}  # by claim, also of those in flight
        self._in_flight: dict[str, FamilyAmounts] = {}  # decision → what its claims take beyond `_families`
        self._claims_in_flight: dict[Family, dict[str, Claim]] = {}  # by decision, the claim that it would add
        self._allocated: dict[str, ClusterAmounts] = {}  # consumer of the Placement interface → what it holds of nodes
        # Entry → what it takes beyond what its consumers, reservations or guests take now.
        self._entries_in_flight: dict[str, ClusterAmounts] = {}
        self._unsettled = UnsettledObjects()
        self._open_pods = OpenPods()
        shared = SharedRoom()
        self._taken = TakenRoom(fleet, self._open_pods, shared)
        self._machines = MachineCapacity(fleet, ledger, self._taken, shared)
        fleet.on_change.append(self._fleet_changed)
        self.reload(ledger)

    def refresh(self) -> None:
        """Counts the claims of objects that changed since the last time, as far as that was put off."""
        if self._outdated:
            outdated, self._outdated = self._outdated, {}
            self._recount_each(outdated)
            self._taken.flush()

    def close(self) -> None:
        self.fleet.on_change.remove(self._fleet_changed)

    def reload(self, ledger: Ledger) -> None:
        """Recounts all claims after the ledger was loaded from a snapshot."""
        self.ledger = ledger
        self._family_of = {ident: active.family for ident, active in ledger.claims.items()}
        for family, claims in self._claims_in_flight.items():
            self._family_of.update((claim.id, family) for claim in claims.values())
        self._outdated.clear()
        self._recount_each({*self._families, *ledger.families, *self._claims_in_flight})
        self._recount_consumers({*self._allocated, *ledger.allocations.consumers})
        self._machines.reload(ledger)
        self._taken.flush()

    def folded(self, changes: Changes, decisions: Iterable[Decision] = (), entries: Iterable[str] = ()) -> None:
        """Recounts the changed claims after a fold. What is held for `decisions` and for `entries` becomes theirs without
        looking free in between."""
        for entry in entries:
            self._taken.shift_all(self._entries_in_flight.pop(entry, {}), {})
        self._recount_consumers(changes.consumers)
        # A claim that is new or gone may use slots: its pods fill them, or do not any more.
        self._machines.recount(changes.reservations | self._machines.affected(changes.claims), changes.grants)
        flights = [self._remove_from_flight(d.id) for d in decisions if d.id in self._in_flight]
        changed = self._families_of(changes.claims)
        for flight in flights:
            for family in [f for f in flight if f in changed and f not in self._families]:
                self._families[family] = flight.pop(family)  # its room is taken already
        self._recount_or_put_off(changed)
        for ident in changes.withdrawn:  # they take as much as before, but are on their way out
            if (active := self.ledger.claims.get(ident)) is not None:
                self._unsettled.mark_motion(active.family, self.ledger, covered=False)
        for flight in flights:
            self._return(flight)
        for ident in changes.released:
            self._forget(ident)
            self._machines.forget_claim(ident)
        self._taken.flush()

    def hold(self, decision: Decision) -> None:
        """Takes what the decision would claim beyond what the claims of the same objects take now."""
        self.refresh()
        flight: FamilyAmounts = {}
        for claim in decision.claims:
            family = self.ledger.family_for(decision.group, claim)
            self._family_of[claim.id] = family
            self._claims_in_flight.setdefault(family, {})[decision.id] = claim
            amounts = flight[family] = self._excess(family, claim)
            self._open_pods.hold(decision.id, family, claim)
            if amounts:
                self._taken.shift(claim.cluster, {}, amounts)
        self._in_flight[decision.id] = flight
        self._taken.flush()

    def give_back(self, decision: str) -> None:
        self._return(self._remove_from_flight(decision))
        self._taken.flush()

    def hold_allocation(self, entry: Allocation) -> None:
        """Takes what the entry's consumers would hold beyond what they hold now."""
        self.refresh()
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
        self.refresh()
        now: dict[str, NodeAmounts] = {}
        after: dict[str, NodeAmounts] = {}
        for reserved in entry.reserved:
            before = self._machines.of_reservation(reserved.claim)
            for total, held in ((now, before), (after, {reserved.cluster: self._machines.room_of(reserved)})):
                for cluster, by_node in held.items():
                    for node, amounts in by_node.items():
                        add_slot(total, cluster, node, {name: a for name, a in amounts.items() if a > 0})
        self._hold_entry(entry.id, now, after)

    def hold_grants(self, entry: SlotGrants) -> None:
        """Takes the slots that the guests would have. Slots that it takes back are free only once it is folded."""
        self.refresh()
        now: dict[str, NodeAmounts] = {}
        for slot in entry.granted:
            for cluster, by_node in self._machines.of_guest(slot.uid).items():
                for node, amounts in by_node.items():
                    add_slot(now, cluster, node, amounts)
        self._hold_entry(entry.id, now, granted_room(entry))

    def _hold_entry(self, entry: str, now: ClusterAmounts, after: ClusterAmounts) -> None:
        flight = {c: more for c, nodes in after.items() if (more := excess(nodes, now.get(c, {})))}
        self._entries_in_flight[entry] = flight
        self._taken.shift_all({}, flight)
        self._taken.flush()

    def give_back_entry(self, entry: str) -> None:
        self._taken.shift_all(self._entries_in_flight.pop(entry, {}), {})
        self._taken.flush()

    def holds_room(self, entry: str) -> bool:
        """Returns whether what is held for the entry exists and is usable, with everything else that is taken."""
        self.refresh()
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
        self.refresh()
        held = self._entries_in_flight.get(entry.id, {})
        for reserved in entry.reserved:
            before = self.ledger.machines.reserved.get(reserved.claim)
            totals = self._taken.on(reserved.cluster)
            for node in before.slots if before is not None and reserved.slots else ():
                taken = dict(totals.get(node, {}))
                add(taken, held.get(reserved.cluster, {}).get(node, {}), -1)
                if before is not None and loses_taken(before, reserved, node, taken):
                    return False
        return True

    def fits(self, decision: str) -> bool:
        """Returns whether what is held for the decision exists and is usable, with everything else that is taken."""
        self.refresh()
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
        for allocated in [
            *(self._allocated[i] for i in idents),
            *self._machines.amounts(),
            *self._entries_in_flight.values(),
        ]:
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
        return self._taken.on(cluster).keys()

    def in_motion(self, cluster: str) -> Collection[Family]:
        """Returns the objects there that are not at rest: all but those with one claim that stays, each slot of which has its pod.
        Settling changes nothing about an object at rest. DaemonSets never are, as their slots follow the nodes."""
        return self._unsettled.in_motion(cluster)

    def to_settle(self, cluster: str, *, whole: bool) -> Collection[Family]:
        """Returns the objects that settling the cluster has to read. Where no node lacks room slots only follow stray pods, which
        concerns the objects of these; else, and if the `whole` cluster is to be looked at, other open slots may have to move."""
        names = {name for amounts in self._taken.on(cluster).values() for name in amounts}
        in_motion = self.in_motion(cluster)
        if (
            whole
            or any(part_and_class(name) is not None or machine_of(name) is not None for name in names)
            or any(family.object.startswith("DaemonSet/") for family in in_motion)
            or self.ledger.displaced_on(cluster)
            or self._taken.may_lack_room(cluster)
        ):
            return in_motion
        return self._unsettled.strayed(cluster)

    def may_be_unsettled(self, cluster: str) -> bool:
        """Returns whether an object there has both a stray pod and an open slot, or a pod other parts than its slot, or a node with
        open slots is gone or has less room than these need. It is quick, so that it can be asked after each change."""
        return bool(self._unsettled.strayed(cluster)) or self._taken.may_lack_room(cluster)

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

    def _excess(self, family: Family, claim: Claim) -> NodeAmounts:
        """Returns what the object's claims take more once the claim is the newest of them."""
        others = [other for other in self.ledger.family_of(family) if other.id != claim.id]
        return excess(open_room(self._counted([*others, claim], family.cluster)), self._families.get(family, {}))

    def _recount_or_put_off(self, families: Collection[Family]) -> None:
        if self._lazy:
            self._outdated.update(dict.fromkeys(families))
            if len(self._outdated) > MOST_OUTDATED:
                self.refresh()
        else:
            self._recount_each(families)

    def _recount_each(self, families: Iterable[Family]) -> None:
        for family in families:
            self._recount(family)

    def _recount(self, family: Family) -> None:
        before = self._families.pop(family, {})
        after: NodeAmounts = {}
        counted = self._counted(self.ledger.family_of(family), family.cluster)
        covered = is_fully_covered(counted)
        self._unsettled.mark_motion(family, self.ledger, covered=covered)
        if covered:
            counted, self._families[family] = [], after
        looked_at = any(claim.live for claim in counted) or (family.object.startswith("DaemonSet/") and counted)
        nodes = FamilyNodes(counted) if looked_at else None
        self._unsettled.mark_strays(family, counted, nodes)
        self._open_pods.recount(family, counted)
        if counted:
            after = self._families[family] = open_room(counted, nodes)
        if before != after:
            self._taken.shift(family.cluster, before, after)
        for decision, claim in self._claims_in_flight.get(family, {}).items():
            flight = self._in_flight[decision]
            held = flight[family]
            now = self._excess(family, claim)
            if now != held:
                flight[family] = now
                self._taken.shift(family.cluster, held, now)

    def _recount_consumers(self, idents: Iterable[str]) -> None:
        consumers = self.ledger.allocations.consumers
        for ident in idents:
            before, found = self._allocated.pop(ident, {}), consumers.get(ident)
            if found is not None and found.taken:
                self._allocated[ident] = found.taken
            self._taken.shift_all(before, self._allocated.get(ident, {}))

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
                self._taken.shift(family.cluster, amounts, {})

    def _fleet_changed(self, change: FleetChange) -> None:
        if change.reset:
            self.fleet.open_pods.clear()
            self.fleet.shared_slots.clear()
            self._recount_each({*self.ledger.families, *self._claims_in_flight, *self._outdated})
            self._outdated.clear()
            self._machines.recount_reserved()
            self._taken.mark_all()
        else:
            self._recount_or_put_off({f for c in change.claims if (f := self._family_of.get(c)) is not None})
            self._machines.recount_pods(change.claims)
            for cid in {*change.node_sets.tolist(), *change.part_sets.tolist()}:
                self._taken.mark_cluster(self.fleet.names[cid])
        self._taken.flush()
