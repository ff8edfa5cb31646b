"""Holds the patcher's state of each group and the queue of groups to reconcile. Each group is reconciled by one task at a
time, always from the newest state, so intermediate states are skipped."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from moorage.bus import Bucket
from moorage.collections import LruDict
from moorage.ledger import Ledger
from moorage.model.desired_state import DesiredRecord
from moorage.model.groups import GroupRecord
from moorage.model.names import GroupName, group_tokens
from moorage.model.status import AppStatus, GroupStatus

from .core.group_status import GroupHead, Place
from .core.missing_confirmations import MissingConfirmations

_head = msgspec.json.Decoder(GroupHead).decode
_record = msgspec.json.Decoder(GroupRecord).decode
#: Records that are kept decoded.
_KEPT_RECORDS = 256
#: Groups that are reconciled at once.
WORKERS = 32
#: Seconds until a group that failed is reconciled again.
RETRY = 2.0


class GroupQueue:
    """`revisions`: the bucket of the records of older revisions."""

    def __init__(self, revisions: Bucket) -> None:
        self.raw: dict[str, bytes] = {}  # group → its newest record, not decoded
        self.heads: dict[str, GroupHead] = {}
        self.older: dict[str, tuple[int, bytes]] = {}  # record of the standing decision's revision, if not the newest
        self.desired: dict[str, DesiredRecord] = {}
        self.statuses: dict[str, GroupStatus] = {}
        self.confirmed: dict[str, dict[Place, AppStatus]] = {}
        self.missing_confirmations = MissingConfirmations()
        self.left: set[str] = set()  # clusters that are no longer part of the fleet
        self.stored: dict[str, list[asyncio.Future[None]]] = {}  # group → confirmations that wait for its stored status
        self.dirty: OrderedDict[str, None] = OrderedDict()
        self.busy: set[str] = set()
        self._revisions = revisions
        self._idle: list[asyncio.Future[None]] = []
        self._decoded = LruDict[tuple[str, int], GroupRecord](_KEPT_RECORDS)

    # --- the queue

    def mark(self, group: str) -> None:
        self.dirty[group] = None
        self._wake_one()

    def mark_later(self, group: str) -> None:
        asyncio.get_running_loop().call_later(RETRY, self.mark, group)

    def _wake_one(self) -> None:
        while self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                return

    async def wait_marked(self) -> None:
        """Waits until a group may have been marked."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future

    def take(self) -> str | None:
        """Takes the first marked group that is not being reconciled."""
        for group in self.dirty:
            if group not in self.busy:
                del self.dirty[group]
                self.busy.add(group)
                return group
        return None

    def done(self, group: str) -> None:
        self.busy.discard(group)
        if group in self.dirty:
            self._wake_one()

    def is_stored(self, group: str) -> bool:
        """Returns whether nothing of the group waits to be stored."""
        return group not in self.dirty and group not in self.busy and group not in self.stored

    # --- what is known

    def learn_status(self, group: str, status: GroupStatus) -> None:
        """Takes over a status that an earlier patcher stored."""
        self.statuses[group] = status
        confirmed = {(app.app, app.cluster): app for app in status.apps if app.version}
        self.confirmed[group] = confirmed
        self.missing_confirmations.read(group, confirmed)

    def is_done(self, group: str, app: str, cluster: str, version: int) -> bool:
        """Returns whether an agent that has this version has the newest, and nothing is to be asked of it."""
        desired, confirmed = self.desired.get(group), self.confirmed.get(group)
        if desired is None or confirmed is None or desired.version > version:
            return False
        status = confirmed.get((app, cluster))
        return status is not None and status.version >= desired.version and not self.missing_confirmations.asks(group)

    def must_confirm_again(self, group: str, app: str, cluster: str, version: int) -> bool:
        """Returns whether to ask an agent that has this version to confirm it again."""
        status = self.confirmed.get(group, {}).get((app, cluster))
        confirmed = status is not None and status.version >= version
        now = asyncio.get_running_loop().time()
        return self.missing_confirmations.ask_now(group, (app, cluster), confirmed, now)

    def learn_record(self, key: str, value: bytes | None, _revision: int) -> None:
        group = str(GroupName.from_tokens(key))
        if value is None:
            self.raw.pop(group, None)
            self.heads.pop(group, None)
        else:
            head, before = _head(value), self.heads.get(group)
            desired = self.desired.get(group)
            # The standing decision may still be of the revision that this one replaces.
            standing = desired.revision if desired is not None and desired.decision else None
            if before is not None and before.revision != head.revision and before.revision == standing:
                self.older[group] = (before.revision, self.raw[group])
            self.raw[group], self.heads[group] = value, head
            self._decoded.pop((group, head.revision), None)
        self.mark(group)

    def record(self, group: str, revision: int) -> GroupRecord | None:
        """Returns the record at a revision if it is in memory."""
        key = (group, revision)
        record = self._decoded.use(key)
        if record is not None:
            return record
        raw = None
        head = self.heads.get(group)
        if head is not None and head.revision == revision:
            raw = self.raw[group]
        elif group in self.older and self.older[group][0] == revision:
            raw = self.older[group][1]
        if raw is None:
            return None
        record = self._decoded[key] = _record(raw)
        return record

    async def fetch(self, group: str, revision: int) -> GroupRecord | None:
        """Returns the record at a revision, from memory or the bucket; None if it is not stored."""
        record = self.record(group, revision)
        if record is None:
            entry = await self._revisions.get(f"{group_tokens(group)}.{revision}")
            if entry is None:
                return None
            self.older[group] = (revision, entry.value)
            record = self.record(group, revision) or _record(entry.value)
        return record

    def all_groups(self, ledger: Ledger) -> set[str]:
        return {*ledger.standing, *ledger.by_group, *self.desired, *self.statuses, *self.heads}

    def end(self, group: str) -> None:
        """Forgets the desired state of a group of which nothing runs any more."""
        self.desired.pop(group, None)
        self.confirmed.pop(group, None)
        self.missing_confirmations.end(group)

    def forget(self, group: str) -> None:
        """Forgets a group whose document is gone."""
        self.end(group)
        self.older.pop(group, None)
        self.statuses.pop(group, None)
