"""The part of the ledger that belongs to machine groups: reserved slots, and which guests have one."""

from __future__ import annotations

from moorage.model.base import Model
from moorage.model.claims import SlotGrants, SlotReservations
from moorage.model.machine_slots import GrantedSlot, ReservedSlots, reservation_claim


class MachineSnapshot(Model, kw_only=True):
    generation: int = 0
    reserved: list[ReservedSlots] = []
    granted: list[GrantedSlot] = []


class MachineLedger:
    """Folded reservations and grants. `reserved` is by claim, `granted` by the uid of the guest's Pod."""

    def __init__(self) -> None:
        self.generation = 0  # of the newest lease under which `slots` wrote
        self.reserved: dict[str, ReservedSlots] = {}
        self.granted: dict[str, GrantedSlot] = {}
        self.guests: dict[str, set[str]] = {}  # reservation → guests that have one of its slots
        self.within: dict[str, set[str]] = {}  # reservation → claims of applications that use its slots
        self._reserved_in: dict[str, set[str]] = {}  # cluster → reservations
        self._granted_in: dict[str, set[str]] = {}  # cluster → guests

    def accepts(self, entry: SlotReservations | SlotGrants) -> bool:
        return entry.generation >= self.generation

    def reserve(self, new: ReservedSlots) -> None:
        if new.slots:
            self.reserved[new.claim] = new
            self._reserved_in.setdefault(new.cluster, set()).add(new.claim)
        elif self.reserved.pop(new.claim, None) is not None:
            _discard(self._reserved_in, new.cluster, new.claim)

    def grant(self, slot: GrantedSlot) -> None:
        self.take_back(slot.uid)
        self.granted[slot.uid] = slot
        self.guests.setdefault(reservation_claim(slot.machine, slot.cluster), set()).add(slot.uid)
        self._granted_in.setdefault(slot.cluster, set()).add(slot.uid)

    def take_back(self, uid: str) -> GrantedSlot | None:
        found = self.granted.pop(uid, None)
        if found is not None:
            _discard(self.guests, reservation_claim(found.machine, found.cluster), uid)
            _discard(self._granted_in, found.cluster, uid)
        return found

    def use(self, reservation: str, claim: str) -> None:
        """Notes that a claim uses slots of a reservation."""
        self.within.setdefault(reservation, set()).add(claim)

    def leave(self, reservation: str, claim: str) -> None:
        _discard(self.within, reservation, claim)

    def guests_of(self, reservation: str) -> list[GrantedSlot]:
        return [self.granted[uid] for uid in self.guests.get(reservation, ())]

    def of_cluster(self, cluster: str) -> list[ReservedSlots]:
        return [self.reserved[claim] for claim in self._reserved_in.get(cluster, ())]

    def granted_in(self, cluster: str) -> dict[str, GrantedSlot]:
        """Returns the slots that guests have in a cluster, by uid."""
        return {uid: self.granted[uid] for uid in self._granted_in.get(cluster, ())}

    def snapshot(self) -> MachineSnapshot:
        return MachineSnapshot(
            generation=self.generation, reserved=list(self.reserved.values()), granted=list(self.granted.values())
        )

    def load(self, snapshot: MachineSnapshot) -> None:
        self.generation = snapshot.generation
        for reserved in snapshot.reserved:
            self.reserve(reserved)
        for slot in snapshot.granted:
            self.grant(slot)


def _discard(index: dict[str, set[str]], key: str, member: str) -> None:
    members = index.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del index[key]
