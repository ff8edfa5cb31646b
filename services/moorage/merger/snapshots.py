"""Writes snapshots of the ledger, which also lets the decision log be cut."""

from __future__ import annotations

import asyncio

import structlog

from moorage.bus import Bus, BusError, NoAnswer, until_done
from moorage.ledger import LedgerFollower, newest_snapshot, write_snapshot

log = structlog.get_logger("merger")

#: Commits from one snapshot to the next.
SNAPSHOT_EVERY = 2000
#: Seconds between attempts to list the snapshots.
RETRY = 1.0


class Snapshots:
    """Sets `wake` when a snapshot may have become due other than by a fold."""

    def __init__(self, bus: Bus, follower: LedgerFollower, wake: asyncio.Event) -> None:
        self._bus, self._follower, self._wake = bus, follower, wake
        self._last = follower.ledger.seq

    @property
    def due(self) -> bool:
        return self._follower.ledger.seq - self._last >= SNAPSHOT_EVERY

    async def find_last(self) -> None:
        """Counts from the last snapshot of any merger. Otherwise the log would never be cut where the lease changes hands
        more often than snapshots are due."""
        async for attempt in until_done((NoAnswer, BusError), first=RETRY):
            with attempt:
                self._last = await newest_snapshot(self._bus)
        self._wake.set()

    async def write_if_due(self) -> None:
        if not self.due:
            return
        ledger = self._follower.ledger
        self._last = ledger.seq
        try:
            await write_snapshot(self._bus, ledger)
        except (NoAnswer, BusError) as error:
            # The log is complete without it. It is tried again after half as many commits.
            log.warning("a ledger snapshot was not written", error=str(error))
            self._last = ledger.seq - SNAPSHOT_EVERY // 2
