"""Releases withdrawn claims once their pods are gone."""

from __future__ import annotations

import asyncio

import msgspec

from moorage.bus.failpoints import reached
from moorage.fleet import FleetChange
from moorage.model.claims import Release
from moorage.model.status import ClaimsRemoved

from .core.removals import Removal, sort_removals
from .decider import Decider

#: Claims in one entry of the log.
BATCH = 256

_decode = msgspec.json.Decoder(ClaimsRemoved).decode


class Releases:
    """Collects confirmed removals and appends the releases. Sets `wake` when there may be something to release."""

    def __init__(self, decider: Decider, wake: asyncio.Event) -> None:
        self._decider, self._wake = decider, wake
        self._removals: dict[str, Removal] = {}
        self._changed = False  # a removal was confirmed or a cluster reported since the last look

    def removal_confirmed(self, _subject: str, data: bytes) -> None:
        removed = _decode(data)
        removal = Removal(removed.cluster, None if removed.gone else removed.as_of)
        self._removals.update(dict.fromkeys(removed.claims, removal))
        self._changed = True
        self._wake.set()

    def fleet_changed(self, change: FleetChange) -> None:
        if self._removals and (len(change.refreshed) or len(change.clusters)):
            self._changed = True
            self._wake.set()

    async def append_ready(self) -> None:
        if not self._changed:
            return
        self._changed = False
        releasable, self._removals = sort_removals(self._removals, self._decider.ledger, self._decider.fleet)
        for start in range(0, len(releasable), BATCH):
            await self._decider.committer.commit(Release(claims=releasable[start : start + BATCH]))
            reached("merger.released")
