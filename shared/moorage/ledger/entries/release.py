"""The rules of releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moorage.model.claims import Release

from .handler import EntryHandler, FoldEffects

if TYPE_CHECKING:
    from ..ledger import Ledger


class ReleaseHandler(EntryHandler[Release]):
    fold_order = 1

    def fold(self, entry: Release, ledger: Ledger, effects: FoldEffects) -> None:
        for ident in entry.claims:
            active = ledger.claims.get(ident)
            # A claim that a later decision took up again is not the one whose removal was confirmed.
            if active is not None and active.withdrawn:
                family = ledger.remove_claim(ident)
                ledger.drop_impossible(active.group)
                effects.released.add(ident)
                effects.released_on.add(active.claim.cluster)
                # The rollout is over once nothing of the older claims is left.
                if standing := ledger.end_surge(family):
                    effects.claims.add(standing)
                    effects.groups |= {active.group, ledger.claims[standing].group}
