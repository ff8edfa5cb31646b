"""The patcher's memory of groups, and the order in which it works on them: each group by one task at a time, always from
the newest state, so that whatever happened in between is skipped."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from moorage.bus import Bucket
from moorage.ledger import Ledger
from moorage.model.desired import AppStatus, DesiredRecord, GroupStatus
from moorage.model.groups import GroupRecord
from moorage.model.names import GroupName, group_tokens

from .core.group_status import Head
from .missing_confirmations import MissingConfirmations

_head = msgspec.json.Decoder(Head).decode
_record = msgspec.json.Decoder(GroupRecord).decode
_DECODED = 256
#: So many work at the desk.
WORKERS = 32
#: What failed is worked on again after so many seconds.
RETRY = 2.0


class GroupQueue:
    """`revisions`: where the records of older revisions are kept."""

    def __init__(self, revisions: Bucket) -> None:
        self.raw: dict[str, bytes] = {}  # group → its record, undecoded
        self.heads: dict[str, Head] = {}
        self.older: dict[
            str, tuple[int, bytes]
        ] = {}  # the record at the standing decision's revision, if not the newest
        self.desired: dict[str, DesiredRecord] = {}
        self.statuses: dict[str, GroupStatus] = {}
        self.confirmed: dict[str, dict[tuple[str, str], AppStatus]] = {}
        self.hearing = MissingConfirmations()
        self.stored: dict[str, list[asyncio.Future[None]]] = {}  # group → confirmations that wait for its status
        self.dirty: OrderedDict[str, None] = OrderedDict()
        self.busy: set[str] = set()
        self._revisions = revisions
        self._idle: list[asyncio.Future[None]] = []
        self._decoded: OrderedDict[tuple[str, int], GroupRecord] = OrderedDict()

    def mark(self, group: str) -> None:
        self.dirty[group] = None
        self._wake()

    def later(self, group: str) -> None:
        asyncio.get_running_loop().call_later(RETRY, self.mark, group)

    def _wake(self) -> None:
        """One of those that wait, not all of them."""
        while self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                return

    async def work(self) -> None:
        """Until something was marked, or may be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future

    def take(self) -> str | None:
        """The next group nobody works on."""
        for group in self.dirty:
            if group not in self.busy:
                del self.dirty[group]
                self.busy.add(group)
                return group
        return None

    def done(self, group: str) -> None:
        self.busy.discard(group)
        if group in self.dirty:
            self._wake()

    def rests(self, group: str) -> bool:
        """Whether nothing of it waits to be stored."""
        return group not in self.dirty and group not in self.busy and group not in self.stored

    def learn_status(self, group: str, status: GroupStatus) -> None:
        """From another patcher's time."""
        self.statuses[group] = status
        confirmed = {(app.app, app.cluster): app for app in status.apps if app.version}
        self.confirmed[group] = confirmed
        self.hearing.read(group, confirmed)

    def missing(self, group: str, app: str, cluster: str, version: int) -> bool:
        """Whether to ask an agent that has this version to confirm it again."""
        status = self.confirmed.get(group, {}).get((app, cluster))
        known = status is not None and status.version >= version
        return self.hearing.missing(group, (app, cluster), known, asyncio.get_running_loop().time())

    def learn_record(self, key: str, value: bytes | None, _revision: int) -> None:
        group = str(GroupName.from_tokens(key))
        if value is None:
            self.raw.pop(group, None)
            self.heads.pop(group, None)
        else:
            head = _head(value)
            before = self.heads.get(group)
            desired = self.desired.get(group)
            # What stands may still be of the revision that this one replaces.
            stands = desired.revision if desired is not None and desired.decision else None
            if before is not None and before.revision != head.revision and before.revision == stands:
                self.older[group] = (before.revision, self.raw[group])
            self.raw[group], self.heads[group] = value, head
            self._decoded.pop((group, head.revision), None)
        self.mark(group)

    def record(self, group: str, revision: int) -> GroupRecord | None:
        """The record at a revision, if it is here."""
        key = (group, revision)
        found = self._decoded.get(key)
        if found is not None:
            self._decoded.move_to_end(key)
            return found
        raw = None
        head = self.heads.get(group)
        if head is not None and head.revision == revision:
            raw = self.raw[group]
        elif group in self.older and self.older[group][0] == revision:
            raw = self.older[group][1]
        if raw is None:
            return None
        found = self._decoded[key] = _record(raw)
        if len(self._decoded) > _DECODED:
            self._decoded.popitem(last=False)
        return found

    async def fetch(self, group: str, revision: int) -> GroupRecord | None:
        """The record at a revision, wherever it is."""
        found = self.record(group, revision)
        if found is None:
            entry = await self._revisions.get(f"{group_tokens(group)}.{revision}")
            if entry is None:
                return None
            self.older[group] = (revision, entry.value)
            found = self.record(group, revision) or _record(entry.value)
        return found

    def all_groups(self, ledger: Ledger) -> set[str]:
        return {*ledger.standing, *ledger.by_group, *self.desired, *self.statuses, *self.heads}

    def end(self, group: str) -> None:
        """Nothing of it runs any more."""
        self.desired.pop(group, None)
        self.confirmed.pop(group, None)
        self.hearing.ended(group)

    def forget(self, group: str) -> None:
        self.end(group)
        self.older.pop(group, None)
        self.statuses.pop(group, None)
