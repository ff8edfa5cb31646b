"""The rules of settlements: slots follow pods, and make room where pods took it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moorage.model.claims import Settlement

from .handler import NEXT_COMMIT, Batch, Dropped, EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..ledger import Ledger

_OLDER_ROWS = Dropped("Overtaken", "the cluster was settled from newer rows")


class SettlementHandler(EntryHandler[Settlement]):
    """Settlements are folded before the decisions of their commit. One from older rows than the cluster's last folds to
    nothing."""

    fold_order = 2

    def fold(self, entry: Settlement, ledger: Ledger, effects: FoldEffects) -> None:
        if ledger.settled_from_newer_rows(entry.cluster, entry.epoch):
            return
        ledger.settled[entry.cluster] = entry.epoch
        for ident, slots in entry.slots.items():
            if _note_claim(ident, entry, ledger, effects):
                ledger.replace_slots(ident, slots, entry.classes.get(ident))
        for ident, refused_by in entry.confined.items():
            if _note_claim(ident, entry, ledger, effects):
                ledger.confine(ident, refused_by)
        for ident, devices in entry.vacated.items():
            if _note_claim(ident, entry, ledger, effects):
                ledger.vacate(ident, devices)
        restored = set(entry.restored)
        for group in self._groups_of(entry, ledger):
            effects.withdrawn |= ledger.end_standing(group, restored)
            effects.groups.add(group)
            if group in ledger.standing:
                again = {claim.id for claim in ledger.standing[group].claims}
                effects.claims |= again
                effects.withdrawn -= again
        effects.groups |= ledger.set_displaced(entry.cluster, entry.displaced)

    def check(self, entry: Settlement, batch: Batch) -> Dropped | None:
        if batch.ledger.settled_from_newer_rows(entry.cluster, entry.epoch):
            return _OLDER_ROWS
        idents = (*entry.slots, *entry.confined, *entry.vacated)
        groups = {a.group for ident in idents if (a := batch.ledger.claims.get(ident)) is not None}
        groups.update(self._groups_of(entry, batch.ledger))
        if entry.cluster in batch.settled or groups & batch.groups:
            return NEXT_COMMIT
        batch.groups |= groups
        batch.settled.add(entry.cluster)
        return None

    def _groups_of(self, entry: Settlement, ledger: Ledger) -> list[str]:
        """Returns the groups whose standing decisions end."""
        if not entry.ended:
            return []
        groups = {ledger.claims[ident].group for ident in ledger.by_cluster.get(entry.cluster, ())}
        return sorted(g for g in groups if g in ledger.standing and ledger.standing[g].id in entry.ended)


def _note_claim(ident: str, entry: Settlement, ledger: Ledger, effects: FoldEffects) -> bool:
    """Notes that a settlement changes a claim, and returns whether it does: the claim may be gone, or of another cluster by now."""
    active = ledger.claims.get(ident)
    if active is None or active.claim.cluster != entry.cluster:
        return False
    effects.claims.add(ident)
    effects.groups.add(active.group)
    return True
