"""Reassigns claims to the nodes on which their pods run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from moorage.ledger import Dropped, Guard, Ledger
from moorage.model.claims import Claim, Reassignment

from .core.displaced_claims import DisplacedClaims, displaced_slots
from .decider import Decider


class Displacement:
    """Watches the claims whose pods moved and appends the reassignments. Sets `wake` when a claim has to be looked at."""

    def __init__(self, decider: Decider, wake: asyncio.Event) -> None:
        self._decider, self._wake = decider, wake
        self._displaced = DisplacedClaims()

    def suspect(self, claims: Iterable[str]) -> None:
        self._displaced.suspect(claims)
        if self._displaced.has_suspects:
            self._wake.set()

    def next_due(self) -> float | None:
        return self._displaced.next_due()

    async def append_due(self) -> None:
        decider, now = self._decider, asyncio.get_running_loop().time()
        for ident, slots in self._displaced.take_due(decider.ledger, decider.capacity, now).items():
            if displaced_slots(ident, decider.ledger, decider.capacity) != slots:
                continue  # its pods moved again while others were appended
            claim = decider.ledger.claims[ident].claim
            result = await decider.committer.commit(Reassignment(claim=ident, slots=slots), _unchanged(claim))
            if isinstance(result, Dropped):
                self.suspect([ident])


def _unchanged(claim: Claim) -> Guard:
    def guard(ledger: Ledger) -> Dropped | None:
        active = ledger.claims.get(claim.id)
        if active is not None and not active.withdrawn and active.claim.slots == claim.slots:
            return None
        return Dropped("Overtaken", "the claim changed meanwhile")

    return guard
