"""Publishes the events of groups and hints to mergers, and republishes events that were lost when a store or the broker died.

A group's record has the event of its last change and the event's id; a deleted group leaves a tombstone that has them.
"""

from __future__ import annotations

from functools import partial

from moorage.bus import Bucket, Bus, Entry, new_id, subjects
from moorage.bus.outbox import Outbox, RecordedEvent
from moorage.model.groups import Stored, Withdraw
from moorage.model.names import GroupName, group_tokens

from .cache import CachedGroup, GroupCache
from .tombstones import Tombstone, read_tombstone

#: Changed groups, and deleted groups, whose events are compared with the kept ones.
NEWEST = 256
#: Changes of the revisions' bucket among which tombstones are searched.
BACK = 4096


class GroupEvents:
    """The events of the groups that changed or were deleted last."""

    def __init__(self, bus: Bus, groups: Bucket, revisions: Bucket, cache: GroupCache) -> None:
        self._bus, self._groups, self._revisions, self._cache = bus, groups, revisions, cache
        self._outbox = Outbox(bus, self._recorded)

    def start(self) -> None:
        self._bus.on_reconnect(self._outbox.recheck)
        self._outbox.start()
        self._outbox.check()

    async def publish(
        self,
        group: str,
        revision: int,
        state: str,
        event: str,
        *,
        hint: str = "",
        cause: str = "",
        ident: str = "",
        created: str = "",
    ) -> None:
        """Publishes the event of a durable change, and a hint to mergers, who find the change by themselves if it is lost.

        Event and hint share their id: what the hint causes has the event as its cause, and a story has no gap.
        """
        data = {"group": group, "revision": revision, "state": state}
        once = bool(ident)
        ident = ident or new_id()
        if hint == "decide":
            await self._bus.publish(subjects.GROUPS_STORED, Stored(id=ident, cause=cause))
        elif hint == "withdraw":
            await self.withdraw(group, revision, created, ident)
        await self._bus.emit(subjects.intent_event(event, group), data, cause=cause, id=ident, once=once)
        await self._bus.send_now()  # mergers wait for it

    async def withdraw(self, group: str, revision: int, created: str, cause: str) -> None:
        hint = Withdraw(id=new_id(), cause=cause, group=group, revision=revision, created=created)
        await self._bus.publish(subjects.GROUPS_WITHDRAW, hint)

    async def _recorded(self) -> list[RecordedEvent]:
        deleted = (await self._revisions.newest("*.*.*.*.deleted", BACK))[-NEWEST:]
        changed = sorted(self._cache.known.values(), key=lambda known: known.at)[-NEWEST:]
        changes = [self._change(known) for known in changed if len(known.head.told) == 2]
        return changes + [event for entry in deleted if (event := self._deletion(entry)).id]

    def _change(self, known: CachedGroup) -> RecordedEvent:
        head = known.head
        event, ident = head.told
        return RecordedEvent(
            subjects.intent_event(event, head.group),
            ident,
            partial(self._groups.written_at, group_tokens(head.group)),
            partial(self._republish_change, known),
        )

    async def _republish_change(self, known: CachedGroup) -> None:
        head = known.head
        event, ident = head.told
        if self._cache.known.get(group_tokens(head.group)) is known:
            await self.publish(head.group, head.revision, head.state, event, ident=ident)

    def _deletion(self, entry: Entry) -> RecordedEvent:
        tokens, tombstone = entry.key.rpartition(".")[0], read_tombstone(entry.value)
        return RecordedEvent(
            subjects.intent_event("deleted", str(GroupName.from_tokens(tokens))),
            tombstone.told,
            partial(self._revisions.written_at, entry.key),
            partial(self._republish_deletion, tokens, tombstone),
        )

    async def _republish_deletion(self, tokens: str, tombstone: Tombstone) -> None:
        if await self._groups.get(tokens) is not None:
            return  # the deletion did not happen, or the group exists again
        group, cause, ident = str(GroupName.from_tokens(tokens)), tombstone.cause, tombstone.told
        await self.publish(group, tombstone.revision, "Terminated", "deleted", cause=cause, ident=ident)
