"""The buckets `moorage-desired` and `moorage-status`, which only the active patcher writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from moorage.bus import Bus
from moorage.bus.fenced_bucket import FencedBucket
from moorage.mesh import stores
from moorage.model.desired_state import DesiredRecord
from moorage.model.names import GroupName, group_tokens
from moorage.model.status import GroupStatus

from .group_queue import RETRY, GroupQueue

#: The broker's default takes no larger message. A larger record is stored without its contributions and its decision, so
#: that the next patcher asks for the contributions again.
RECORD_BYTES = 7 << 20

_desired = msgspec.json.Decoder(DesiredRecord).decode
_status = msgspec.json.Decoder(GroupStatus).decode
_encode = msgspec.json.Encoder().encode


class _Stored(NamedTuple):
    value: bytes
    revision: int


_ABSENT = _Stored(b"", 0)


class StoredState:
    """Writes the desired state and statuses of the groups in memory, and reads them after a start or reconnect."""

    def __init__(self, bus: Bus, groups: GroupQueue, generation: int) -> None:
        self._bus, self._groups, self._generation = bus, groups, generation
        self.desired = FencedBucket(bus.bucket(stores.DESIRED), generation)
        self.statuses = FencedBucket(bus.bucket(stores.STATUS), generation)

    async def load(self, on_status: Callable[[str], None]) -> None:
        """Reads everything. `on_status` gets each group with a status, in the order in which they were written."""
        for group, stored in (await self._read(stores.DESIRED)).items():
            self.desired.learn(group_tokens(group), stored.revision)
            self._groups.desired[group] = _desired(stored.value)
        for group, stored in (await self._read(stores.STATUS)).items():
            self.statuses.learn(group_tokens(group), stored.revision)
            self._groups.learn_status(group, _status(stored.value))
            on_status(group)

    async def _read(self, bucket: str) -> dict[str, _Stored]:
        found: dict[str, _Stored] = {}

        def learn(key: str, value: bytes | None, revision: int) -> None:
            found.pop(str(GroupName.from_tokens(key)), None)
            if value is not None:
                found[str(GroupName.from_tokens(key))] = _Stored(value, revision)

        await (await self._bus.bucket(bucket).mirror(learn)).stop()
        return found

    async def put_desired(self, record: DesiredRecord) -> None:
        record.generation = self._generation
        data = _encode(record)
        if len(data) > RECORD_BYTES:
            data = _encode(msgspec.structs.replace(record, contributions=[], decision=""))
        await self.desired.put(group_tokens(record.group), data)
        self._groups.desired[record.group] = record

    async def put_status(self, status: GroupStatus) -> None:
        statuses, before = self._groups.statuses, self._groups.statuses.get(status.group)
        status.generation = self._generation
        statuses[status.group] = status
        try:
            await self.statuses.put(group_tokens(status.group), _encode(status))
        except BaseException:
            # The next try must find the status new again.
            if before is None:
                statuses.pop(status.group, None)
            else:
                statuses[status.group] = before
            raise

    async def end(self, group: str) -> None:
        """Deletes the desired state of a group of which nothing runs any more."""
        if group in self._groups.desired:
            await self.desired.delete(group_tokens(group))
            self._groups.end(group)

    async def forget(self, group: str) -> None:
        """Deletes everything about a group whose document is gone."""
        if group in self._groups.desired:
            await self.desired.delete(group_tokens(group))
        if group in self._groups.statuses:
            await self.statuses.delete(group_tokens(group))
        self._groups.forget(group)

    async def recover(self, only: AbstractSet[str] | None = None) -> None:
        """Reads again what the broker has. The buckets are not synced at each write, so a broker that crashed may have lost
        what it acknowledged last; each group goes on from what is stored."""
        desired, statuses = await self._read(stores.DESIRED), await self._read(stores.STATUS)
        memory = self._groups
        groups = {*memory.desired, *memory.statuses, *desired, *statuses}
        groups = groups if only is None else groups & only
        if busy := groups & memory.busy:  # later, once their writes have succeeded or failed
            asyncio.get_running_loop().call_later(RETRY, lambda: self._bus.spawn(self.recover(busy)))
        for group in groups - busy:
            key = group_tokens(group)
            stored = desired.get(group, _ABSENT)
            if self.desired.differs(key, stored.revision):
                memory.desired.pop(group, None)
                if stored.value:
                    memory.desired[group] = _desired(stored.value)
                memory.mark(group)
            stored = statuses.get(group, _ABSENT)
            if self.statuses.differs(key, stored.revision):
                memory.statuses.pop(group, None)
                if stored.value:
                    memory.statuses[group] = _status(stored.value)
                memory.mark(group)
