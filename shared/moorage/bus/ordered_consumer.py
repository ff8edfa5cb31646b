"""Follows a stream: delivers every message in order, across reconnects, broker restarts and lost consumers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from moorage.telemetry import HANDLED, Handled

from . import jetstream
from .connection import Connection, DirectDelivery
from .errors import BusError, NoAnswer
from .ids import new_id

log = structlog.get_logger("bus")
HEARTBEAT = 5.0

Handle = Callable[[int, str, bytes, dict[str, str] | None], None]


class OrderedConsumer:
    """A push consumer without acknowledgements, created again whenever its message numbers have a gap."""

    def __init__(
        self,
        conn: Connection,
        stream: str,
        handle: Handle,
        *,
        start: int = 0,
        keys: str = "",
        restart: Callable[[], None] | None = None,
    ) -> None:
        """Delivers from the sequence `start` on, if it is positive, and continues there after a reconnect.

        Otherwise it delivers the last message of each subject, and after a reconnect calls `restart` and delivers all of
        them again. `synced` is called whenever the existing messages were delivered.
        """
        self._conn, self._stream, self._handle = conn, stream, handle
        self._keys, self._restart = keys, restart
        self.next = start
        self._from_start = start > 0
        self._sub: Subscription | None = None
        self._expected = 1
        self._last_message_at = 0.0
        self._broken = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._consumer = ""
        self.synced: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._conn.on_reconnect(self._on_reconnect)
        await self._open()
        self._conn.spawn(self._repair())
        await self._caught_up.wait()

    async def stop(self) -> None:
        self._restart = None
        self._handle = lambda *_: None
        self._conn.forget(self._on_reconnect)
        await self._close()
        self._broken.set()  # wakes _repair, which ends because there is no subscription any more

    async def _on_reconnect(self) -> None:
        self._broken.set()

    async def _close(self) -> None:
        sub, self._sub = self._sub, None
        if sub is not None:
            with contextlib.suppress(Exception):
                await sub.unsubscribe()
            with contextlib.suppress(NoAnswer, BusError):
                await jetstream.api(self._conn, f"CONSUMER.DELETE.{self._stream}.{self._consumer}", timeout=1)

    async def _open(self) -> None:
        self._broken.clear()
        inbox = self._conn.nc.new_inbox()
        self._expected = 1
        self._consumer = f"tail-{new_id()}"
        if not self._from_start and self._restart is not None:
            self._restart()
        self._sub = await self._subscribe(inbox)
        config: dict[str, Any] = {
            "name": self._consumer,
            "deliver_subject": inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT * 1e9),
            "inactive_threshold": 30_000_000_000,
        }
        if self._from_start:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.next}
        else:
            config |= {"deliver_policy": "last_per_subject"}
        verb = f"CONSUMER.CREATE.{self._stream}.{self._consumer}"
        if self._keys:
            config["filter_subject"] = self._keys
            verb += f".{self._keys}"
        elif not self._from_start:
            config["filter_subject"] = ">"
            verb += ".>"
        reply = await jetstream.api(self._conn, verb, {"stream_name": self._stream, "config": config})
        self._last_message_at = asyncio.get_running_loop().time()
        if reply.get("num_pending", 0) == 0 and self._expected == 1:
            self._complete()

    def _complete(self) -> None:
        self.synced()
        self._caught_up.set()

    async def _subscribe(self, inbox: str) -> Subscription:
        delivery: Any = DirectDelivery(self._received)
        return await self._conn.nc.subscribe(inbox, future=delivery)

    def _received(self, msg: Msg) -> None:
        self._last_message_at = asyncio.get_running_loop().time()
        headers: dict[str, str] | None = msg.headers
        if headers and "Status" in headers and not msg.data:
            if msg.reply:  # flow control
                self._conn.spawn(self._go_on(msg.reply))
            if int(headers.get("Nats-Last-Consumer", self._expected - 1)) != self._expected - 1:
                self._broken.set()
            return
        parts = msg.reply.split(".")
        stream_seq, consumer_seq, pending = int(parts[-4]), int(parts[-3]), int(parts[-1])
        if consumer_seq != self._expected:
            self._broken.set()
            return
        self._expected += 1
        if self._from_start:
            if stream_seq < self.next:
                return
            self.next = stream_seq + 1
        before = HANDLED.set(Handled(msg.subject, msg.data))  # for log lines
        try:
            self._handle(stream_seq, msg.subject, msg.data, headers)
        except Exception:
            self._conn.count("handler_errors")
            log.exception("handler failed", stream=self._stream, seq=stream_seq)
        finally:
            HANDLED.reset(before)
        if pending == 0:
            self._complete()

    async def _go_on(self, reply: str) -> None:
        """Tells the broker that what it sent so far was handled."""
        with contextlib.suppress(nats.errors.Error):  # without it the broker begins anew
            await self._conn.nc.publish(reply, b"")

    async def _repair(self) -> None:
        """Creates the consumer again after a reconnect, a gap in its numbers, or silence longer than three heartbeats."""
        loop = asyncio.get_running_loop()
        delay = 0.05
        while not self._conn.closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT):
                    await self._broken.wait()
            if not self._broken.is_set() and loop.time() - self._last_message_at < 3 * HEARTBEAT:
                continue
            if self._sub is None:
                return
            self._conn.count("tail_restarts")
            try:
                await self._close()
                await self._open()
                delay = 0.05
            except (BusError, NoAnswer, nats.errors.Error, OSError) as error:
                log.warning("the consumer could not be created again", stream=self._stream, error=str(error))
                self._broken.set()
                if self._sub is None:
                    self._sub = await self._subscribe(self._conn.nc.new_inbox())
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)
