"""The rules of reservations of machines, and of grants of their slots to guests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moorage.model.claims import SlotGrants, SlotReservations
from moorage.model.machine_slots import reservation_claim

from .decision import NO_ROOM
from .handler import NEXT_COMMIT, Batch, Dropped, EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..capacity import Capacity
    from ..ledger import Ledger

DEPOSED = Dropped("Deposed", "another worker took over")


class ReservationHandler(EntryHandler[SlotReservations]):
    def fold(self, entry: SlotReservations, ledger: Ledger, effects: FoldEffects) -> None:
        machines = ledger.machines
        if not machines.accepts(entry):
            effects.refused.append(entry.id)
            return
        machines.generation = entry.generation
        for reserved in entry.reserved:
            machines.reserve(reserved)
            effects.reservations.add(reserved.claim)

    def check(self, entry: SlotReservations, batch: Batch) -> Dropped | None:
        if not batch.ledger.machines.accepts(entry):
            return DEPOSED
        if any(reserved.cluster in batch.settled for reserved in entry.reserved):
            return NEXT_COMMIT
        return None if batch.capacity.holds_room(entry.id) and batch.capacity.keeps_slots(entry) else NO_ROOM

    def give_back(self, entry: SlotReservations, capacity: Capacity) -> None:
        capacity.give_back_entry(entry.id)

    def took_effect(self, entry: SlotReservations, ledger: Ledger, refused: tuple[str, ...] | None) -> bool:
        if refused is not None:
            return entry.id not in refused
        held = ledger.machines.reserved
        return all(held.get(r.claim) == (r if r.slots else None) for r in entry.reserved)


class GrantHandler(EntryHandler[SlotGrants]):
    def fold(self, entry: SlotGrants, ledger: Ledger, effects: FoldEffects) -> None:
        machines = ledger.machines
        if not machines.accepts(entry):
            effects.refused.append(entry.id)
            return
        machines.generation = entry.generation
        for uid in entry.withdrawn:
            before = machines.take_back(uid)
            if before is not None:
                effects.grants.add(uid)
                effects.reservations.add(reservation_claim(before.machine, before.cluster))
        for slot in entry.granted:
            machines.grant(slot)
            effects.grants.add(slot.uid)
            effects.reservations.add(reservation_claim(slot.machine, slot.cluster))

    def check(self, entry: SlotGrants, batch: Batch) -> Dropped | None:
        if not batch.ledger.machines.accepts(entry):
            return DEPOSED
        if entry.observed:
            return None
        return None if batch.capacity.holds_room(entry.id) else NO_ROOM

    def give_back(self, entry: SlotGrants, capacity: Capacity) -> None:
        capacity.give_back_entry(entry.id)

    def took_effect(self, entry: SlotGrants, ledger: Ledger, refused: tuple[str, ...] | None) -> bool:
        if refused is not None:
            return entry.id not in refused
        held = ledger.machines.granted
        return all(held.get(slot.uid) == slot for slot in entry.granted)
