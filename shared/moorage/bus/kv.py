"""Key-value buckets with compare-and-set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from nats.aio.msg import Msg

from . import jetstream
from .connection import Connection
from .errors import Conflict
from .ids import new_id
from .ordered_consumer import OrderedConsumer

#: Seconds that a deleted key leaves a marker, so that mirrors learn of the deletion. The broker then removes it. A mirror that
#: was away for longer has lost its connection, and compares all keys once it is back.
MARKER_SECONDS = 120
_MARKER = {"KV-Operation": "DEL", "Nats-TTL": f"{MARKER_SECONDS}s"}


class Entry(NamedTuple):
    key: str
    value: bytes
    revision: int


def _is_delete_marker(headers: Mapping[str, str] | None) -> bool:
    """Returns whether a change of a bucket ends a key: it leaves a marker, which is not a value."""
    return headers is not None and headers.get("KV-Operation") in ("DEL", "PURGE")


def _sequence(msg: Msg) -> int:
    headers: dict[str, str] = msg.headers or {}
    return int(headers["Nats-Sequence"])


class Bucket:
    """Keys and values with revisions. An acknowledged write is on disk."""

    def __init__(self, conn: Connection, name: str, timeout: float = 5.0) -> None:
        self._conn, self._stream, self._timeout = conn, f"KV_{name}", timeout
        self._prefix = f"$KV.{name}."

    async def _last_change(self, key: str) -> Msg | None:
        return await jetstream.direct_get(self._conn, f"{self._stream}.{self._prefix}{key}", b"", self._timeout)

    async def get(self, key: str) -> Entry | None:
        msg = await self._last_change(key)
        if msg is None or _is_delete_marker(msg.headers):
            return None
        return Entry(key, msg.data, _sequence(msg))

    async def written_at(self, key: str) -> str | None:
        """Returns when the key was last changed, by the broker's clock: such texts can be compared."""
        msg = await self._last_change(key)
        return None if msg is None else jetstream.timestamp(msg)

    async def put(self, key: str, value: bytes) -> int:
        return await jetstream.append(self._conn, self._prefix + key, value, None, self._timeout)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Writes a value if the key is still at `revision` (0: was never written). Raises Conflict if it is not."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        return await jetstream.append(self._conn, self._prefix + key, value, headers, self._timeout)

    async def create(self, key: str, value: bytes) -> int:
        """Writes a value if the key has none. Raises Conflict if it has one."""
        try:
            return await self.update(key, value, 0)
        except Conflict:
            msg = await self._last_change(key)
            if msg is None:  # the marker of its deletion is gone since
                return await self.update(key, value, 0)
            if not _is_delete_marker(msg.headers):
                raise
            return await self.update(key, value, _sequence(msg))  # the key was deleted: its marker has a revision

    async def delete(self, key: str, revision: int | None = None) -> None:
        headers = dict(_MARKER)
        if revision is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(revision)
        await jetstream.append(self._conn, self._prefix + key, b"", headers, self._timeout)

    async def modify(
        self, key: str, change: Callable[[Entry | None], Awaitable[bytes | None]], attempts: int = 20
    ) -> tuple[Entry | None, Entry | None]:
        """Replaces a key's value by what `change` returns for its entry; after a conflict `change` is called again.

        None deletes the key, and the same value writes nothing. Returns the entries before and after. Raises Conflict if
        somebody else writes during every attempt.
        """
        for _ in range(attempts):
            before = await self.get(key)
            value = await change(before)
            if value == (before.value if before is not None else None):
                return before, before
            try:
                if value is None:
                    await self.delete(key, before.revision if before is not None else None)
                    return before, None
                write = self.create(key, value) if before is None else self.update(key, value, before.revision)
                return before, Entry(key, value, await write)
            except Conflict:
                continue
        raise Conflict(f"{key} keeps changing")

    async def delete_all(self, revisions: Mapping[str, int]) -> int:
        """Deletes all these keys, at most a thousand, or none: each must still be at the given revision."""
        batch = new_id()
        last = len(revisions)
        for number, (key, revision) in enumerate(revisions.items(), 1):
            headers = {
                **_MARKER,
                "Nats-Batch-Id": batch,
                "Nats-Batch-Sequence": str(number),
                "Nats-Expected-Last-Subject-Sequence": str(revision),
            }
            if number == last:
                headers["Nats-Batch-Commit"] = "1"
                return await jetstream.append(self._conn, self._prefix + key, b"", headers, self._timeout)
            await self._conn.nc.publish(self._prefix + key, b"", headers=headers)
        return 0

    async def purge(self, keys: str, upto: int) -> None:
        """Removes what the keys were up to a revision, without a trace: mirrors are not told."""
        body = {"filter": self._prefix + keys, "seq": upto + 1}
        await jetstream.api(self._conn, f"STREAM.PURGE.{self._stream}", body, timeout=self._timeout)

    async def keys(self, keys: str) -> list[str]:
        """Returns which of these keys there are. A deleted one is among them as long as its marker is kept."""
        body = {"subjects_filter": self._prefix + keys}
        info = await jetstream.api(self._conn, f"STREAM.INFO.{self._stream}", body, timeout=self._timeout)
        return [subject[len(self._prefix) :] for subject in info["state"].get("subjects") or ()]

    async def last(self) -> int:
        """Returns the number of the last change of any key."""
        return int((await jetstream.stream_state(self._conn, self._stream, self._timeout))["last_seq"])

    async def newest(self, keys: str, most: int) -> list[Entry]:
        """Returns the entries of these keys that are among the bucket's last `most` changes, the newest last."""
        entries: list[Entry] = []

        def handle(seq: int, subject: str, data: bytes, headers: dict[str, str] | None) -> None:
            if not _is_delete_marker(headers):
                entries.append(Entry(subject[len(self._prefix) :], data, seq))

        start = max(await self.last() - most + 1, 1)
        consumer = OrderedConsumer(self._conn, self._stream, handle, start=start, keys=self._prefix + keys)
        await consumer.start()
        await consumer.stop()
        return entries

    async def mirror(
        self,
        apply: Callable[[str, bytes | None, int], None],
        keys: str = ">",
        passed: Callable[[int], None] | None = None,
    ) -> OrderedConsumer:
        """Calls `apply` with every key, then with every change; returns once all existing keys were applied.

        After a reconnect all keys come again, and None for those deleted meanwhile. `passed` is called with the number of
        each change after it was applied, also of changes that leave no value.
        """
        known: set[str] = set()
        unconfirmed: set[str] = set()  # after a reconnect: known keys that have not come again yet
        cut = len(self._prefix)

        def restart() -> None:
            unconfirmed.update(known)

        def handle(seq: int, subject: str, data: bytes, headers: dict[str, str] | None) -> None:
            key = subject[cut:]
            unconfirmed.discard(key)
            if _is_delete_marker(headers):
                if key in known:
                    known.discard(key)
                    apply(key, None, seq)
            else:
                known.add(key)
                apply(key, data, seq)
            if passed is not None:
                passed(seq)

        def synced() -> None:
            for key in unconfirmed:
                known.discard(key)
                apply(key, None, 0)
            unconfirmed.clear()

        consumer = OrderedConsumer(self._conn, self._stream, handle, keys=self._prefix + keys, restart=restart)
        consumer.synced = synced
        await consumer.start()
        return consumer
