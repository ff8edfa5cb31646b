"""Publishes which withdrawn claims are removed, repeatedly until the log shows their release."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import nats.errors

from moorage.bus import Bus, BusError, subjects
from moorage.ledger import Changes, LedgerFollower
from moorage.model.claims import Commit

from .core.claim_removal import abandoned_claims, removed_claims
from .group_queue import GroupQueue

#: Seconds between two messages about the same claims.
REPEAT = 1.0


class Removals:
    """The groups with withdrawn claims that are not released yet."""

    def __init__(self, bus: Bus, groups: GroupQueue, follower: LedgerFollower) -> None:
        self._bus, self._groups, self._follower = bus, groups, follower
        self._removing: dict[str, set[str]] = {}  # group → its claims that are withdrawn and not released
        self._group_of: dict[str, str] = {}  # claim among these → its group
        follower.on_fold.append(self._learn_commit)
        follower.on_reload.append(lambda _ledger: self._load())
        self._load()

    def __contains__(self, group: str) -> bool:
        return group in self._removing

    def _load(self) -> None:
        claims = self._follower.ledger.claims
        self._removing.clear()
        self._group_of.clear()
        self._note(ident for ident, active in claims.items() if active.withdrawn)

    def _learn_commit(self, _commit: Commit, changes: Changes) -> None:
        self._note(changes.withdrawn - changes.released)
        claims = self._follower.ledger.claims
        for ident in changes.claims & self._group_of.keys():
            if (active := claims.get(ident)) is not None and active.withdrawn:
                continue
            group = self._group_of.pop(ident)
            self._removing[group].discard(ident)
            if not self._removing[group]:
                del self._removing[group]
                self._groups.mark(group)

    def _note(self, idents: Iterable[str]) -> None:
        for ident in idents:
            group = self._group_of[ident] = self._follower.ledger.claims[ident].group
            self._removing.setdefault(group, set()).add(ident)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REPEAT)
            for group in list(self._removing):
                await self.publish(group)

    async def publish(self, group: str) -> None:
        """Publishes which of the group's claims are removed, confirmed by an agent or because the cluster left."""
        ledger, desired = self._follower.ledger, self._groups.desired.get(group)
        confirmed = removed_claims(ledger, group, desired, self._groups.confirmed.get(group, {}))
        for removed in [*confirmed, *abandoned_claims(ledger, group, self._groups.left)]:
            with contextlib.suppress(BusError, nats.errors.Error, OSError):
                await self._bus.publish(subjects.MERGER_REMOVED, removed)
