"""The rules of allocations over the Placement interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moorage.model.claims import Allocation

from ..allocations import AllocationLedger, Exchange
from .decision import NO_ROOM
from .handler import NEXT_COMMIT, Batch, Dropped, EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..capacity import Capacity
    from ..ledger import Ledger

DEPOSED = Dropped("Deposed", "another placement worker took over")
CHANGED = Dropped("Changed", "the consumer was changed by another request")


class AllocationHandler(EntryHandler[Allocation]):
    def fold(self, entry: Allocation, ledger: Ledger, effects: FoldEffects) -> None:
        held = ledger.allocations
        if _refusal(entry, held, {}) is not None:
            effects.refused.append(entry.id)
            return
        held.generation = entry.generation
        for provider in entry.forgotten:
            held.writes.pop(provider, None)
        for write in entry.writes:
            held.apply(write)
            effects.consumers.add(write.consumer.uuid)
        for provider, inventories in entry.inventories.items():
            held.exchanges[provider] = Exchange(ledger.seq, inventories)
        if entry.recorded:
            held.record(entry.recorded)

    def check(self, entry: Allocation, batch: Batch) -> Dropped | None:
        why = _refusal(entry, batch.ledger.allocations, batch.consumers)
        if why is None and any(cluster in batch.settled for w in entry.writes for cluster in w.consumer.taken):
            why = NEXT_COMMIT
        if why is None and not batch.capacity.holds_room(entry.id):
            why = NO_ROOM
        if why is None:
            for write in entry.writes:
                new = write.consumer
                batch.consumers[new.uuid] = new.generation if new.allocations else None
        return why

    def give_back(self, entry: Allocation, capacity: Capacity) -> None:
        capacity.give_back_entry(entry.id)

    def took_effect(self, entry: Allocation, ledger: Ledger, refused: tuple[str, ...] | None) -> bool:
        if refused is not None:
            return entry.id not in refused
        held = ledger.allocations.consumers
        return all(held.get(w.consumer.uuid) == (w.consumer if w.consumer.allocations else None) for w in entry.writes)


def _refusal(entry: Allocation, held: AllocationLedger, pending: Mapping[str, int | None]) -> Dropped | None:
    """Returns why the entry would change nothing. `pending`: generations after the entries before it in its commit."""
    if entry.generation < held.generation:
        return DEPOSED
    for write in entry.writes:
        consumer = write.consumer.uuid
        stands = pending[consumer] if consumer in pending else held.generation_of(consumer)
        if stands != write.expected:
            return CHANGED
    return None
