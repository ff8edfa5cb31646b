"""The durable parts of the bus: key-value buckets, logs with compare-and-append, and objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import nats.js.errors
from nats.js.api import ObjectStoreConfig
from nats.js.client import JetStreamContext
from nats.js.object_store import ObjectStore

from .connection import Connection, new_id
from .errors import BusError, Conflict, NoAnswer
from .ordered_consumer import OrderedConsumer

_CONFLICTS = {10071, 10164}


class _AckError(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _AckError | None = None


class _Named(msgspec.Struct):
    id: str = ""


_named = msgspec.json.Decoder(_Named).decode
_ack = msgspec.json.Decoder(_Ack).decode


async def _append(conn: Connection, subject: str, data: bytes, headers: dict[str, str] | None, timeout: float) -> int:
    msg = await conn.exchange(subject, data, timeout=timeout, headers=headers)
    ack = _ack(msg.data)
    if ack.error is not None:
        if ack.error.err_code in _CONFLICTS:
            raise Conflict(f"{subject}: {ack.error.description}")
        raise BusError(f"{subject}: {ack.error.description}")
    return ack.seq


class Entry(NamedTuple):
    key: str
    value: bytes
    revision: int


class Mirror:
    """A live copy of a bucket in whoever asked for it."""

    def __init__(self, tail: OrderedConsumer) -> None:
        self._tail = tail

    async def stop(self) -> None:
        await self._tail.stop()


def _ends(headers: Mapping[str, str] | None) -> bool:
    """Whether a change of a bucket is a key's end: it leaves a marker, which is not a value."""
    return headers is not None and headers.get("KV-Operation") in ("DEL", "PURGE")


class Bucket:
    """Keys and values with revisions. A write that was acknowledged is on disk."""

    def __init__(self, conn: Connection, name: str, timeout: float = 5.0) -> None:
        self._conn, self._name, self._timeout = conn, name, timeout
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        subject = f"$JS.API.DIRECT.GET.KV_{self._name}.{self._prefix}{key}"
        msg = await self._conn.exchange(subject, b"", timeout=self._timeout)
        headers: dict[str, str] = msg.headers or {}
        if "Status" in headers:
            if headers["Status"] == "404":
                return None
            raise BusError(f"{self._name}/{key}: {headers['Status']} {headers.get('Description', '')}")
        if _ends(headers):
            return None
        return Entry(key, msg.data, int(headers["Nats-Sequence"]))

    async def time(self, key: str) -> str | None:
        """When its value was written, by the broker's clock, so that such texts can be compared."""
        subject = f"$JS.API.DIRECT.GET.KV_{self._name}.{self._prefix}{key}"
        headers = (await self._conn.exchange(subject, b"", timeout=self._timeout)).headers or {}
        return headers["Nats-Time-Stamp"].rstrip("Z") if "Nats-Time-Stamp" in headers else None

    async def put(self, key: str, value: bytes) -> int:
        return await _append(self._conn, self._prefix + key, value, None, self._timeout)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        return await _append(self._conn, self._prefix + key, value, headers, self._timeout)

    async def create(self, key: str, value: bytes) -> int:
        try:
            return await self.update(key, value, 0)
        except Conflict:
            # Perhaps only with what a deleted key left behind.
            subject = f"$JS.API.DIRECT.GET.KV_{self._name}.{self._prefix}{key}"
            msg = await self._conn.exchange(subject, b"", timeout=self._timeout)
            headers: dict[str, str] = msg.headers or {}
            if not _ends(headers):
                raise
            return await self.update(key, value, int(headers["Nats-Sequence"]))

    async def delete(self, key: str, revision: int | None = None) -> None:
        headers = {"KV-Operation": "DEL"}
        if revision is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(revision)
        await _append(self._conn, self._prefix + key, b"", headers, self._timeout)

    async def delete_all(self, revisions: Mapping[str, int]) -> int:
        """All of these keys or none: each must still be at the revision given. At most a thousand."""
        batch = new_id()
        last = len(revisions)
        for number, (key, revision) in enumerate(revisions.items(), 1):
            headers = {
                "KV-Operation": "DEL",
                "Nats-Batch-Id": batch,
                "Nats-Batch-Sequence": str(number),
                "Nats-Expected-Last-Subject-Sequence": str(revision),
            }
            if number == last:
                headers["Nats-Batch-Commit"] = "1"
                return await _append(self._conn, self._prefix + key, b"", headers, self._timeout)
            await self._conn.nc.publish(self._prefix + key, b"", headers=headers)
        return 0

    async def last(self) -> int:
        """The number of the last change of any key."""
        data = await self._conn.request(f"$JS.API.STREAM.INFO.KV_{self._name}", b"", timeout=self._timeout)
        reply = msgspec.json.decode(data, type=dict[str, Any])
        if "error" in reply:
            raise BusError(f"{self._name}: {reply['error'].get('description')}")
        return int(reply["state"]["last_seq"])

    async def newest(self, keys: str, most: int) -> list[Entry]:
        """Of the last so many changes of the bucket what stands under such keys, the newest last."""
        found: list[Entry] = []

        def handle(seq: int, subject: str, data: bytes, headers: dict[str, str] | None) -> None:
            if not _ends(headers):
                found.append(Entry(subject[len(self._prefix) :], data, seq))

        start = max(await self.last() - most + 1, 1)
        tail = OrderedConsumer(self._conn, f"KV_{self._name}", handle, start=start, keys=self._prefix + keys)
        await tail.start()
        await tail.stop()
        return found

    async def mirror(
        self,
        apply: Callable[[str, bytes | None, int], None],
        keys: str = ">",
        passed: Callable[[int], None] | None = None,
    ) -> Mirror:
        """Every key, then every change; after a break the whole state again, and None for keys that went meanwhile.
        `passed` is told every number, also of changes that leave nothing."""
        known: set[str] = set()
        before: set[str] = set()
        cut = len(self._prefix)

        def restart() -> None:
            before.update(known)

        def handle(seq: int, subject: str, data: bytes, headers: dict[str, str] | None) -> None:
            key = subject[cut:]
            before.discard(key)
            if _ends(headers):
                if key in known:
                    known.discard(key)
                    apply(key, None, seq)
            else:
                known.add(key)
                apply(key, data, seq)
            if passed is not None:
                passed(seq)

        def synced() -> None:
            for key in before:
                known.discard(key)
                apply(key, None, 0)
            before.clear()

        tail = OrderedConsumer(self._conn, f"KV_{self._name}", handle, keys=self._prefix + keys, restart=restart)
        tail.synced = synced
        await tail.start()
        return Mirror(tail)


class LogFollower:
    def __init__(self, tail: OrderedConsumer) -> None:
        self._tail = tail

    async def stop(self) -> None:
        await self._tail.stop()


class Log:
    """One stream that everyone folds. Appending names the last sequence the writer has folded."""

    def __init__(self, conn: Connection, name: str, subject: str, timeout: float = 5.0) -> None:
        self._conn, self._name, self._subject, self._timeout = conn, name, subject, timeout

    async def append(self, data: bytes, *, expected: int) -> int:
        """Raises Conflict, or NoAnswer: then whether it stands is unknown until somebody has looked."""
        headers = {"Nats-Expected-Last-Sequence": str(expected)}
        return await _append(self._conn, self._subject, data, headers, self._timeout)

    async def follow(
        self,
        start: int,
        fold: Callable[[int, bytes], None],
        *,
        gap: Callable[[int], None] | None = None,
        keys: str = "",
    ) -> LogFollower:
        """Messages from `start` on, in order. Back when what was there is folded. `gap`: what comes next is not next."""
        expected = start

        def handle(seq: int, _subject: str, data: bytes, _headers: dict[str, str] | None) -> None:
            nonlocal expected
            if gap is not None and seq != expected:
                gap(seq)
            expected = seq + 1
            fold(seq, data)

        tail = OrderedConsumer(self._conn, self._name, handle, start=max(start, 1), keys=keys)
        await tail.start()
        return LogFollower(tail)

    async def _info(self) -> dict[str, Any]:
        data = await self._conn.request(f"$JS.API.STREAM.INFO.{self._name}", b"", timeout=self._timeout)
        reply = msgspec.json.decode(data, type=dict[str, Any])
        if "error" in reply:
            raise BusError(f"{self._name}: {reply['error'].get('description')}")
        state: dict[str, Any] = reply["state"]
        return state

    async def last(self) -> int:
        return int((await self._info())["last_seq"])

    async def first(self) -> int:
        return int((await self._info())["first_seq"])

    async def _direct(self, body: dict[str, Any]) -> tuple[bytes, str] | None:
        """A message and when it was appended."""
        subject = f"$JS.API.DIRECT.GET.{self._name}"
        msg = await self._conn.exchange(subject, msgspec.json.encode(body), timeout=self._timeout)
        headers: dict[str, str] = msg.headers or {}
        if headers.get("Status") == "404":
            return None
        if "Status" in headers:
            raise BusError(f"{self._name}: {headers['Status']} {headers.get('Description', '')}")
        return msg.data, headers.get("Nats-Time-Stamp", "")

    async def get(self, seq: int) -> bytes | None:
        found = await self._direct({"seq": seq})
        return None if found is None else found[0]

    async def latest(self, subject: str) -> bytes | None:
        """The last message on a subject (no wildcards)."""
        found = await self._direct({"last_by_subj": subject})
        return None if found is None else found[0]

    async def is_missing(self, subject: str, ident: str, when: Callable[[], Awaitable[str | None]]) -> bool:
        """Whether this event, said `when`, should be the last on its subject and is not: not where it may only be too old
        to be kept any more."""
        found = await self.latest(subject)
        if found is not None and _named(found).id == ident:
            return False
        at, since = await when(), await self.since()
        return since is not None and at is not None and at >= since

    async def time(self, seq: int) -> str | None:
        """When a message was appended, by the broker's clock, so that such texts can be compared."""
        found = await self._direct({"seq": seq})
        return None if found is None else found[1].rstrip("Z")

    async def since(self) -> str | None:
        """From which time on messages are kept; None: nothing of what there was is."""
        state = await self._info()
        if not state["messages"] and state["last_seq"]:
            return None
        return "" if state["first_seq"] <= 1 else str(state["first_ts"]).rstrip("Z")

    async def purge(self, upto: int) -> None:
        """Forget what comes before and with `upto`."""
        body = msgspec.json.encode({"seq": upto + 1})
        await self._conn.request(f"$JS.API.STREAM.PURGE.{self._name}", body, timeout=self._timeout)


class Objects:
    """Values too large for one message."""

    def __init__(self, conn: Connection, name: str) -> None:
        self._js: JetStreamContext = conn.nc.jetstream()
        self._name = name
        self._store: ObjectStore | None = None

    async def _open(self) -> ObjectStore:
        if self._store is None:
            self._store = await self._js.object_store(self._name)
        return self._store

    async def put(self, name: str, data: bytes) -> None:
        await (await self._open()).put(name, data)

    async def get(self, name: str) -> bytes | None:
        try:
            result = await (await self._open()).get(name)
        except nats.js.errors.ObjectNotFoundError:
            return None
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise NoAnswer(f"object {name}: no answer") from error
        return result.data

    async def names(self) -> list[str]:
        try:
            return sorted(info.name for info in await (await self._open()).list() if not info.deleted)
        except nats.js.errors.NotFoundError:
            return []

    async def delete(self, name: str) -> None:
        await (await self._open()).delete(name)


async def create_objects(conn: Connection, name: str) -> None:
    await conn.nc.jetstream().create_object_store(name, config=ObjectStoreConfig(bucket=name))
