"""Logs: streams with compare-and-append."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from nats.aio.msg import Msg

from . import jetstream
from .connection import Connection
from .ordered_consumer import OrderedConsumer


class Log:
    """A stream that readers fold in order. An append names the last sequence that the writer has folded."""

    def __init__(self, conn: Connection, name: str, subject: str, timeout: float = 5.0) -> None:
        self._conn, self._name, self._subject, self._timeout = conn, name, subject, timeout

    async def append(self, data: bytes | msgspec.Struct, *, expected: int | None = None) -> int:
        """Appends a message if `expected` is the last sequence, or None, and returns the new one.

        Raises Conflict if it is not, and NoAnswer if it is unknown whether the message was appended: read before trying
        again.
        """
        headers = None if expected is None else {"Nats-Expected-Last-Sequence": str(expected)}
        return await jetstream.append(self._conn, self._subject, data, headers, self._timeout)

    async def follow(
        self,
        start: int,
        fold: Callable[[int, bytes], None],
        *,
        gap: Callable[[int], None] | None = None,
        keys: str = "",
    ) -> OrderedConsumer:
        """Calls `fold` with each message from `start` on, in order; returns once the existing ones are folded.

        `gap` is called first with a sequence that does not follow the one before it. `keys` is a subject filter.
        """
        expected = start

        def handle(seq: int, _subject: str, data: bytes, _headers: dict[str, str] | None) -> None:
            nonlocal expected
            if gap is not None and seq != expected:
                gap(seq)
            expected = seq + 1
            fold(seq, data)

        consumer = OrderedConsumer(self._conn, self._name, handle, start=max(start, 1), keys=keys)
        await consumer.start()
        return consumer

    async def state(self) -> dict[str, Any]:
        """Returns the stream's state as the broker describes it."""
        return await jetstream.stream_state(self._conn, self._name, self._timeout)

    async def last(self) -> int:
        """Returns the sequence of the last message."""
        return int((await self.state())["last_seq"])

    async def first(self) -> int:
        """Returns the sequence of the first message that is still kept."""
        return int((await self.state())["first_seq"])

    async def _direct_get(self, request: dict[str, Any]) -> Msg | None:
        return await jetstream.direct_get(self._conn, self._name, msgspec.json.encode(request), self._timeout)

    async def get(self, seq: int) -> bytes | None:
        msg = await self._direct_get({"seq": seq})
        return None if msg is None else msg.data

    async def latest(self, subject: str) -> bytes | None:
        """Returns the last message on a subject (no wildcards)."""
        msg = await self._direct_get({"last_by_subj": subject})
        return None if msg is None else msg.data

    async def appended_at(self, seq: int) -> str | None:
        """Returns when a message was appended, by the broker's clock: such texts can be compared."""
        msg = await self._direct_get({"seq": seq})
        return None if msg is None else jetstream.timestamp(msg)

    async def kept_since(self) -> str | None:
        """Returns the time of the first message still kept: "" if none was dropped, None if all were."""
        state = await self.state()
        if not state["messages"] and state["last_seq"]:
            return None
        return "" if state["first_seq"] <= 1 else str(state["first_ts"]).rstrip("Z")

    async def purge(self, upto: int) -> None:
        """Drops all messages up to and including `upto`."""
        await jetstream.api(self._conn, f"STREAM.PURGE.{self._name}", {"seq": upto + 1}, timeout=self._timeout)
