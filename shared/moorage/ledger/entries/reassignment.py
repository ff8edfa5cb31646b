"""The rules of reassignments: a claim follows its pods to the nodes on which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moorage.model.claims import Reassignment

from .handler import Batch, Dropped, EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..ledger import Ledger


class ReassignmentHandler(EntryHandler[Reassignment]):
    def fold(self, entry: Reassignment, ledger: Ledger, effects: FoldEffects) -> None:
        active = ledger.claims.get(entry.claim)
        if active is None:
            return
        ledger.replace_slots(entry.claim, entry.slots)
        effects.claims.add(entry.claim)
        effects.groups.add(active.group)

    def check(self, entry: Reassignment, batch: Batch) -> Dropped | None:
        active = batch.ledger.claims.get(entry.claim)
        if active is None:
            return None
        if active.group in batch.groups:
            return Dropped("Overtaken", "a decision of the group is in the same commit")
        batch.groups.add(active.group)
        return None
