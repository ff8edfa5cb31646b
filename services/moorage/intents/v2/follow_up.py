"""Finishes what a step of a group's life began: terminates a group once its successor runs, and deletes a group that is to
leave once nothing of it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from moorage.bus import MAX_PAYLOAD, Bus, Entry, NoAnswer
from moorage.mesh import stores
from moorage.model.names import group_tokens
from moorage.model.problems import Refused
from moorage.model.status import GroupStatus

from ..cache import CachedGroup
from ..core.transitions import Head, Transition, without_succession
from ..store import Done, GroupStore, record_of

log = structlog.get_logger("intents")
_statuses = msgspec.json.Decoder(GroupStatus)
#: Seconds between looks at all groups, in case an event was lost.
SWEEP = 5.0


class FollowUp:
    """Any store may do this, and twice does no harm: it does not matter which of them began."""

    def __init__(self, bus: Bus, store: GroupStore, terminate: Callable[[str], Awaitable[object]]) -> None:
        self._bus, self._store, self._cache = bus, store, store.cache
        self._terminate = terminate
        self._statuses = bus.bucket(stores.STATUS)
        self._event_seen = asyncio.Event()

    async def start(self) -> None:
        for phase in ("running", "terminated"):
            await self._bus.subscribe(f"moorage.events.decisions.{phase}.>", self._on_event, max_bytes=MAX_PAYLOAD)
        self._bus.spawn(self._run())

    def _on_event(self, _subject: str, _data: bytes) -> None:
        self._event_seen.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(SWEEP):
                    await self._event_seen.wait()
            except TimeoutError:
                pass
            self._event_seen.clear()
            for head in self._cache.unfinished():
                try:
                    await self._finish(head)
                except NoAnswer:
                    continue
                except Refused as refusal:
                    log.warning("follow-up failed; it is tried again", group=head.group, problem=refusal.problem.detail)

    async def _finish(self, head: Head) -> None:
        if head.leaving:
            await self.delete_if_ended(head)
            return
        status = await self._status(head.group)
        if status is not None and status.phase == "Running" and status.revision >= head.revision:
            await self._end_predecessor(head.group, head.succeeds)

    async def delete_if_ended(self, head: Head) -> Done | None:
        """Deletes a leaving group if by its status nothing of it runs. None: it still runs, or is gone."""
        at = self._cache.revision_of(head)
        status = await self._status(head.group)
        if status is None or status.phase != "Terminated" or status.revision != head.revision:
            return None
        try:
            return await self._store.delete_group(head.group, head.leaving, at)
        except Refused as refusal:  # it is gone already, or was applied again
            if refusal.problem.status in (404, 409, 412):
                return None
            raise

    async def _status(self, group: str) -> GroupStatus | None:
        entry = await self._statuses.get(group_tokens(group))
        return _statuses.decode(entry.value) if entry is not None else None

    async def _end_predecessor(self, successor: str, group: str) -> None:
        try:
            await self._terminate(group)
        except Refused as refusal:
            if refusal.problem.status not in (404, 409):
                raise

        async def plan(_known: CachedGroup | None, entry: Entry | None) -> Transition:
            if entry is None:
                return Transition(None, "absent")
            record = record_of(entry)
            if record.succeeds != group:
                return Transition(None, "unchanged")
            return Transition(without_succession(record), "updated", "succeeded")

        await self._store.change(successor, plan, "")
