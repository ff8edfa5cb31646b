"""The rules of reassignments: a claim follows its pods to the nodes on which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from moorage.model.claims import Reassignment

from .handler import Batch, Dropped, EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..ledger import Ledger


class ReassignmentHandler(EntryHandler[Reassignment]):
    def fold(self, entry: Reassignment, ledger: Ledger, effects: FoldEffects) -> None:
        active = ledger.claims.get(entry.claim)
        if active is None:
            return
        claim = msgspec.structs.replace(active.claim, slots=entry.slots)
        ledger.claims[entry.claim] = active._replace(claim=claim)
        standing = ledger.standing.get(active.group)
        if standing is not None and not active.withdrawn:
            claims = [claim if c.id == claim.id else c for c in standing.claims]
            ledger.standing[active.group] = msgspec.structs.replace(standing, claims=claims)
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
