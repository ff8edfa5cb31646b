"""The rules of decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moorage.model.claims import Decision

from .handler import NEXT_COMMIT, Batch, Dropped, EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..capacity import Capacity
    from ..ledger import Ledger

WITHDRAWN = Dropped("Withdrawn", "the revision was withdrawn, or a newer one is decided")
NO_ROOM = Dropped("", "other decisions took the room")
_GROUP_CHANGES = Dropped("", "another entry of the same commit changes the group's claims")


class DecisionHandler(EntryHandler[Decision]):
    def fold(self, entry: Decision, ledger: Ledger, effects: FoldEffects) -> None:
        if not ledger.accepts(entry):
            effects.refused.append(entry.id)
            return
        kept = {claim.id for claim in entry.claims}
        effects.withdrawn |= ledger.withdraw_claims(entry.group, kept)
        effects.withdrawn -= kept
        effects.released -= kept  # released and claimed again in one commit
        for claim in entry.claims:
            ledger.put_claim(claim, entry.group)
        effects.claims |= kept
        effects.groups.add(entry.group)
        ledger.replace_standing(entry)
        for claim in entry.claims:
            ledger.end_surge(ledger.claims[claim.id].family)
        ledger.update_idle(entry.group)

    def check(self, entry: Decision, batch: Batch) -> Dropped | None:
        groups = {entry.group}
        for claim in entry.claims:
            replaced = batch.ledger.claims.get(claim.replaces)
            if replaced is not None:  # of the group whose object it takes over
                groups.add(replaced.group)
        group_changes = not groups.isdisjoint(batch.groups)
        batch.groups |= groups
        if not batch.ledger.accepts(entry):
            return WITHDRAWN
        if group_changes:
            return _GROUP_CHANGES
        if batch.settled and any(claim.cluster in batch.settled for claim in entry.claims):
            return NEXT_COMMIT  # which of the room is left once it is settled
        return None if batch.capacity.fits(entry.id) else NO_ROOM

    def give_back(self, entry: Decision, capacity: Capacity) -> None:
        capacity.give_back(entry.id)

    def took_effect(self, entry: Decision, ledger: Ledger, refused: tuple[str, ...] | None) -> bool:
        """A withdrawal of its revision in the same commit makes a decision fold to nothing."""
        if refused is not None:
            return entry.id not in refused
        standing = ledger.standing.get(entry.group)
        return standing is not None and standing.id == entry.id
