"""The rules of withdrawals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moorage.model.claims import Withdrawal

from .handler import Batch, Dropped, EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..ledger import Ledger


class WithdrawalHandler(EntryHandler[Withdrawal]):
    """Withdrawals are folded first: a decision of the same commit that they end must never count."""

    fold_order = 0

    def fold(self, entry: Withdrawal, ledger: Ledger, effects: FoldEffects) -> None:
        if ledger.is_forgotten(entry.based_on):
            return
        ledger.ended_revisions[entry.group] = max(entry.revision, ledger.ended_revisions.get(entry.group, 0))
        # Also where no decision stands: the group's later decisions are refused from now on.
        effects.groups.add(entry.group)
        standing = ledger.standing.get(entry.group)
        if standing is not None and standing.revision > entry.revision:
            return
        ledger.forget_settlements(entry.group)
        if standing is not None:
            del ledger.standing[entry.group]
            effects.withdrawn |= ledger.withdraw_claims(entry.group)
        ledger.update_idle(entry.group)

    def check(self, entry: Withdrawal, batch: Batch) -> Dropped | None:
        if batch.ledger.is_forgotten(entry.based_on):
            return Dropped("Overtaken", "the hint is too old")
        return None
