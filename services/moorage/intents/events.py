"""What is said of groups once it is durable, and that it is said: a store may die, or the broker with it, between the write
of a record, or its deletion, and the kept event. How each is told stands in the record, of a deletion in what it leaves;
the newest are compared with the kept events on starting and after each reconnect."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import structlog

from moorage.bus import Bucket, Bus, BusError, Entry, NoAnswer, new_id, subjects
from moorage.mesh import stores
from moorage.model.groups import Stored, Withdraw
from moorage.model.names import GroupName, group_tokens

from .cache import GroupCache

log = structlog.get_logger("intents")

#: Changes whose events are looked for after a death or a reconnect, and how long others may take to say them.
NEWEST, GRACE = 256, 1.0
#: Changes of the revisions' bucket among which those of deleted groups are looked for.
BACK = 4096


class Tombstone(msgspec.Struct, omit_defaults=True):
    """Stands before the group is gone: from which revision on it may come again, and how its end is told."""

    revision: int
    told: str = ""
    cause: str = ""


read_tombstone = msgspec.json.Decoder(Tombstone).decode


class Telling:
    def __init__(self, bus: Bus, groups: Bucket, revisions: Bucket, copies: GroupCache) -> None:
        self._bus, self._groups, self._revisions, self._copies = bus, groups, revisions, copies

    async def tell(
        self, group: str, revision: int, state: str, event: str, *, hint: str = "", cause: str = "", ident: str = ""
    ) -> None:
        """Hints, after what they are about is durable: mergers and others find it by themselves where one is lost. Event
        and hint share their id: what the hint sets off has the event for its cause, and a story has no gap."""
        once = bool(ident)
        ident = ident or new_id()
        if hint == "decide":
            await self._bus.publish(subjects.GROUPS_STORED, Stored(id=ident, cause=cause))
        elif hint == "withdraw":
            await self.withdraw(group, revision, ident)
        data = {"group": group, "revision": revision, "state": state}
        await self._bus.emit(subjects.intent_event(event, group), data, cause=cause, id=ident, once=once)

    async def withdraw(self, group: str, revision: int, cause: str) -> None:
        hint = Withdraw(id=new_id(), cause=cause, group=group, revision=revision)
        await self._bus.publish(subjects.GROUPS_WITHDRAW, hint)

    async def retell(self) -> None:
        """The events of the newest changes, where a store or the broker died before they were kept."""
        while True:
            try:
                # What went before this moment has had its time by the end of the pause.
                ended = await self._revisions.newest("*.*.*.*.deleted", BACK)
                await asyncio.sleep(GRACE)
                await self._retell_changes()
                await self._retell_ends(ended[-NEWEST:])
                return
            except (NoAnswer, BusError) as error:
                log.warning("events could not be compared with documents", error=str(error))
                await asyncio.sleep(GRACE)

    async def _retell_changes(self) -> None:
        events = self._bus.log(stores.EVENTS)
        newest = sorted(self._copies.known.values(), key=lambda known: known.at)[-NEWEST:]
        for known in newest:
            head = known.head
            if len(head.told) != 2:
                continue
            event, ident = head.told
            written = partial(self._groups.time, group_tokens(head.group))
            if await events.is_missing(subjects.intent_event(event, head.group), ident, written):
                log.warning("an event was missing", group=head.group, event_name=event)
                await self.tell(head.group, head.revision, head.state, event, ident=ident)

    async def _retell_ends(self, tombstones: list[Entry]) -> None:
        events = self._bus.log(stores.EVENTS)
        for entry in tombstones:
            tokens, tombstone = entry.key.rpartition(".")[0], read_tombstone(entry.value)
            group = str(GroupName.from_tokens(tokens))
            written = partial(self._revisions.time, entry.key)
            subject = subjects.intent_event("deleted", group)
            if not tombstone.told or not await events.is_missing(subject, tombstone.told, written):
                continue
            if await self._groups.get(tokens) is not None:
                continue  # it was not deleted after all, or is there again
            log.warning("an event was missing", group=group, event_name="deleted")
            cause, ident = tombstone.cause, tombstone.told
            await self.tell(group, tombstone.revision, "Terminated", "deleted", cause=cause, ident=ident)
