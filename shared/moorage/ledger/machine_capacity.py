"""Counts what slots of machines and their guests take of the fleet, and tells the fleet who may use which slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from moorage.fleet import Fleet
from moorage.model.machine_slots import ReservedSlots, reservation_claim
from moorage.model.machines import Allow

from .families import NodeAmounts
from .ledger import Ledger
from .machine_room import ClusterAmounts, reserved_room
from .shared_room import SharedRoom
from .taken_room import TakenRoom


class MachineCapacity:
    def __init__(self, fleet: Fleet, ledger: Ledger, taken: TakenRoom, shared: SharedRoom) -> None:
        self.ledger = ledger
        self._fleet, self._taken, self._shared = fleet, taken, shared
        self._reserved: dict[str, ClusterAmounts] = {}  # reservation of machines → what its slots take
        self._granted: dict[str, ClusterAmounts] = {}  # guest → what it takes of slots
        self._reservation_of: dict[str, set[str]] = {}  # claim whose pods fill slots → reservations
        #: Machine type → times of its reservations, see `ReservedSlots.before`.
        self._times: dict[str, Counter[int]] = {}
        self._times_of: dict[str, tuple[str, tuple[int, ...]]] = {}  # reservation → its machine type, and its times
        #: Reservation → its cluster, and by resource who may use its slots.
        self._users: dict[str, tuple[str, dict[str, tuple[Allow, ...]]]] = {}

    def reload(self, ledger: Ledger) -> None:
        """Counts all reservations and guests again after the ledger was loaded from a snapshot."""
        self.ledger = ledger
        self.recount({*self._reserved, *ledger.machines.reserved}, {*self._granted, *ledger.machines.granted})

    def recount_reserved(self) -> None:
        """Counts all reservations again: the fleet was replaced."""
        self.recount(list(self._reserved), ())

    def of_reservation(self, claim: str) -> ClusterAmounts:
        """Returns what the slots of a reservation take."""
        return self._reserved.get(claim, {})

    def of_guest(self, uid: str) -> ClusterAmounts:
        """Returns what a guest takes of slots."""
        return self._granted.get(uid, {})

    def amounts(self) -> Iterator[ClusterAmounts]:
        """Yields what each reservation and each guest takes."""
        yield from self._reserved.values()
        yield from self._granted.values()

    def affected(self, claims: Iterable[str]) -> set[str]:
        """Returns the reservations whose slots the pods of claims fill, or filled before."""
        if not (self._reservation_of or self.ledger.machines.within):
            return set()
        return set().union(*map(self._reservations_of, claims))

    def recount_pods(self, claims: Iterable[str]) -> None:
        """Counts the reservations again whose slots the pods of these claims fill."""
        if self._reservation_of:
            self.recount({r for ident in claims for r in self._reservation_of.get(ident, ())}, ())

    def forget_claim(self, claim: str) -> None:
        """Forgets a claim that was released."""
        self._reservation_of.pop(claim, None)

    def recount(self, reservations: Iterable[str], guests: Iterable[str]) -> None:
        machines = self.ledger.machines
        reservations = [*reservations]
        for ident in dict.fromkeys([*reservations, *self._at_other_times(reservations)]):
            before, reserved = self._reserved.pop(ident, {}), machines.reserved.get(ident)
            if reserved is not None:
                self._reserved[ident] = {reserved.cluster: self.room_of(reserved)}
                for machine in (reserved.machine, *reserved.children):
                    for claim in self._claims_in(machine, reserved.cluster):
                        self._reservation_of.setdefault(claim, set()).add(ident)
            else:
                self._reservation_of.pop(ident, None)
            self._taken.shift_all(before, self._reserved.get(ident, {}))
            at_times = (
                reserved.at_times(self._fleet.slot_times.get(reserved.machine, ())) if reserved is not None else None
            )
            self._set_users(ident, at_times)
            for cluster, node in self._shared.set(ident, at_times):
                self._taken.mark_node(cluster, node)
        for uid in guests:
            before, slot = self._granted.pop(uid, {}), machines.granted.get(uid)
            if slot is not None and slot.takes:
                self._granted[uid] = {slot.cluster: {slot.node: slot.takes}}
            self._taken.shift_all(before, self._granted.get(uid, {}))

    def _at_other_times(self, reservations: Iterable[str]) -> set[str]:
        """Counts the times by which pods may be gone. Returns the reservations of the machine types of which these are others now."""
        machines: set[str] = set()
        for ident in reservations:
            machine, before = self._times_of.pop(ident, ("", ()))
            reserved = self.ledger.machines.reserved.get(ident)
            if reserved is not None and reserved.before:
                self._times_of[ident] = reserved.machine, tuple(reserved.before)
                self._times.setdefault(reserved.machine, Counter()).update(reserved.before.keys())
                machines.add(reserved.machine)
            if before:
                self._times[machine].subtract(before)
                machines.add(machine)
        changed = set()
        for machine in machines:
            counts = self._times[machine] = +self._times[machine]  # without times that nobody has any more
            times = tuple(sorted(counts))
            if times != self._fleet.slot_times.get(machine, ()):
                changed.add(machine)
                self._fleet.slot_times[machine] = times
            if not times:
                del self._fleet.slot_times[machine], self._times[machine]
        return {c for c, one in self.ledger.machines.reserved.items() if one.machine in changed} if changed else set()

    def room_of(self, reserved: ReservedSlots) -> NodeAmounts:
        """Returns what the slots of a reservation take by node, with the pods that are there now."""
        return reserved_room(reserved, lambda machine: self._claims_in(machine, reserved.cluster), self._fleet)

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

    def _set_users(self, claim: str, reserved: ReservedSlots | None) -> None:
        """Tells the fleet who may use the slots of a reservation."""
        cluster, before = self._users.get(claim, ("", {}))
        users = reserved.users() if reserved is not None else {}
        if users == before:
            return
        for name in before:
            del self._fleet.slot_users[name][cluster]
            if not self._fleet.slot_users[name]:
                del self._fleet.slot_users[name]
        self._users.pop(claim, None)
        if reserved is None:
            return
        if users:
            self._users[claim] = reserved.cluster, users
        for name, rules in users.items():
            self._fleet.slot_users.setdefault(name, {})[reserved.cluster] = rules
        if (cid := self._fleet.ids.get(reserved.cluster)) is not None:
            for node in reserved.slots:  # those who wait may be allowed now
                self._fleet.note_improved(cid, node)
