"""Claims that were withdrawn, from then until the log shows their release: mergers release them once they hear that the
agent has removed what ran there, or that no agent is left to do so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Set as AbstractSet

import nats.errors

from moorage.bus import Bus, BusError, subjects
from moorage.ledger import Changes, LedgerFollower
from moorage.model.claims import Commit

from .core.claim_removal import abandoned_claims, removed_claims
from .core.desired_state import claims_of
from .group_queue import GroupQueue

REMIND = 1.0


class Removals:
    """`left`: clusters that are no longer part of the fleet."""

    def __init__(self, bus: Bus, desk: GroupQueue, follower: LedgerFollower, left: AbstractSet[str]) -> None:
        self._bus, self._desk, self._follower, self._left = bus, desk, follower, left
        self._removing: dict[str, None] = {}  # groups with withdrawn claims
        follower.on_fold.append(self._folded)
        follower.on_reload.append(lambda _ledger: self._everything())
        self._everything()

    def __contains__(self, group: str) -> bool:
        return group in self._removing

    def _folded(self, _commit: Commit, changes: Changes) -> None:
        ledger = self._follower.ledger
        for ident in changes.withdrawn - changes.released:
            self._removing[ledger.claims[ident].group] = None
        if changes.released:
            for group in list(self._removing):
                if not any(held.withdrawn for held in claims_of(ledger, group)):
                    del self._removing[group]
                    self._desk.mark(group)

    def _everything(self) -> None:
        self._removing = {held.group: None for held in self._follower.ledger.claims.values() if held.withdrawn}

    async def remind(self) -> None:
        """Mergers hear of confirmed removals until the log shows the release."""
        while True:
            await asyncio.sleep(REMIND)
            for group in list(self._removing):
                await self.tell(group)

    async def tell(self, group: str) -> None:
        ledger, confirmed = self._follower.ledger, self._desk.confirmed.get(group, {})
        found = removed_claims(ledger, group, self._desk.desired.get(group), confirmed)
        for removed in [*found, *abandoned_claims(ledger, group, self._left)]:
            with contextlib.suppress(BusError, nats.errors.Error, OSError):
                await self._bus.publish(subjects.MERGER_REMOVED, removed)
