"""Keeps the traces of deleted groups for as long as the decision log knows them: a group of the same name must begin above the
revisions that are withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import Container

import msgspec
import structlog

from moorage.bus import Bucket, Bus, BusError, Conflict, NoAnswer, subjects
from moorage.model.groups import EndedGroups
from moorage.model.names import GroupName
from moorage.model.problems import Refused

log = structlog.get_logger("intents")

#: Seconds that a tombstone is kept at least, and between two looks at the older ones.
KEPT, SWEEP = 120.0, 30.0
#: Groups in one question to the mergers.
BATCH = 1000
_KEYS = "*.*.*.*.deleted"


class Tombstone(msgspec.Struct, omit_defaults=True):
    """The trace of a deleted group, written before the deletion: its last revision, and the id and cause of its event."""

    revision: int
    told: str = ""
    cause: str = ""


read_tombstone = msgspec.json.Decoder(Tombstone).decode
_encode = msgspec.json.Encoder().encode


class _Known(msgspec.Struct):
    revision: int
    at: int  # the bucket's revision of the tombstone
    since: float  # when this worker learned of it


class Tombstones:
    """A copy of all tombstones in memory. Every intent store removes those that the log has forgotten; the others then find
    nothing to do."""

    def __init__(self, bus: Bus, revisions: Bucket, groups: Container[str]) -> None:
        """`groups`: the tokens of the groups that exist. They need no tombstone: the next deletion leaves another one."""
        self._bus, self._revisions, self._groups = bus, revisions, groups
        self._known: dict[str, _Known] = {}  # by the group's tokens
        self._forgotten: set[str] = set()  # those that the log did not know when it was asked last

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, tokens: str) -> bool:
        return tokens in self._known

    def learned_at(self, tokens: str) -> float:
        """Returns when this worker learned of the group's deletion, by the loop's clock; 0 if it knows of none."""
        known = self._known.get(tokens)
        return known.since if known is not None else 0.0

    async def start(self) -> None:
        await self._revisions.mirror(self._changed, keys=_KEYS)
        self._bus.spawn(self._run())

    async def put(self, tokens: str, tombstone: Tombstone) -> None:
        self._learn(tokens, tombstone.revision, await self._revisions.put(f"{tokens}.deleted", _encode(tombstone)))

    async def read(self, tokens: str) -> int:
        """Returns the last revision of a deleted group of this name from the bucket; 0 if there was none."""
        entry = await self._revisions.get(f"{tokens}.deleted")
        if entry is None:
            return 0
        self._learn(tokens, read_tombstone(entry.value).revision, entry.revision)
        return self._known[tokens].revision

    def _changed(self, key: str, value: bytes | None, at: int) -> None:
        tokens = key.removesuffix(".deleted")
        if value is None:
            known = self._known.get(tokens)
            if known is not None and (at == 0 or known.at < at):
                self._known.pop(tokens)
                self._forgotten.discard(tokens)
        else:
            self._learn(tokens, read_tombstone(value).revision, at)

    def _learn(self, tokens: str, revision: int, at: int) -> None:
        known = self._known.get(tokens)
        if known is None or known.at < at:
            self._known.pop(tokens, None)
            self._known[tokens] = _Known(revision, at, asyncio.get_running_loop().time())

    # --- forgetting

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            try:
                await self.sweep()
            except (NoAnswer, BusError, Refused) as error:
                log.debug("tombstones could not be compared with the log", error=str(error))

    async def sweep(self) -> None:
        """Removes the tombstones that the log knew neither this time nor the last time. Mergers may differ a little in how far
        they have folded the log; after two looks all of them have forgotten the group."""
        until = asyncio.get_running_loop().time() - KEPT
        old = [tokens for tokens, known in self._known.items() if known.since <= until]
        before, self._forgotten = self._forgotten, set()
        self._forgotten.update(tokens for tokens in old if tokens in self._groups)
        asked = [tokens for tokens in old if tokens not in self._groups]
        for start in range(0, len(asked), BATCH):
            batch = {str(GroupName.from_tokens(tokens)): tokens for tokens in asked[start : start + BATCH]}
            ended = await self._bus.call(subjects.MERGER_ENDED, EndedGroups(groups=list(batch)), EndedGroups)
            self._forgotten.update(batch[group] for group in batch.keys() - set(ended.groups))
        for tokens in self._forgotten & before:
            await self._remove(tokens)

    async def _remove(self, tokens: str) -> None:
        known = self._known.get(tokens)
        if known is None:
            return
        if known.revision > 1:
            await self._revisions.purge(f"{tokens}.*", known.at - 1)
        try:
            await self._revisions.delete(f"{tokens}.deleted", known.at)
        except Conflict:  # another store was faster, or a group of this name was made and deleted again
            return
        self._known.pop(tokens, None)
        self._forgotten.discard(tokens)
