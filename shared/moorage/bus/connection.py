"""A connection to NATS: connects in bounded time, reconnects by itself, publishes, requests, subscribes and serves."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client, Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from moorage.mesh import subjects
from moorage.model.events import Event
from moorage.model.problems import Problem, Refused, problem_in, unreadable
from moorage.parsing.redaction import loggable_excerpt
from moorage.telemetry import HANDLED, Handled, ProcessHealth, tracing

from .errors import NoAnswer
from .ids import new_id, now_text
from .metrics import BusMetrics
from .server import Handler, RequestServer, encode, refusal, too_large
from .settings import Settings

log = structlog.get_logger("bus")
T = TypeVar("T")
MAX_PAYLOAD = 8 << 20
#: Seconds after which a worker that starts gives up on a server that does not know its subscriptions. Many workers start at once.
SETTLE_TIMEOUT = 30
#: Seconds that a closing connection gives requests in hand to be answered.
FINISH = 1.0


def is_no_responders(msg: Msg) -> bool:
    """Returns whether this is the broker's answer to a request on a subject without subscribers."""
    return not msg.data and bool(msg.headers) and msg.headers.get("Status") == "503"  # type: ignore[union-attr]


def _time_out(future: asyncio.Future[Msg]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _jittered(servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
    """Spreads reconnects over time, so that a broker that restarts does not get all of them at once."""
    server = min(servers, key=lambda s: s.reconnects)
    return server, random.uniform(0, min(2.0, 0.05 * 2 ** min(server.reconnects, 6)))


class DirectDelivery:
    """Calls a function with each message of a subscription as it is read.

    It stands in for the future that the client resolves with a single answer, which avoids a queue and waking a task."""

    def __init__(self, receive: Callable[[Msg], None]) -> None:
        self._receive = receive

    def set_result(self, msg: Msg) -> None:
        try:
            self._receive(msg)
        except Exception:  # the client would read no further message
            log.exception("a message could not be received", subject=msg.subject)

    def cancelled(self) -> bool:
        return False


class Connection:
    """Publish, request, subscribe and serve; everything else of the bus builds on these."""

    def __init__(self, worker: str, health: ProcessHealth) -> None:
        self.nc = nc = Client()
        self.worker = worker
        self.closed = asyncio.Event()
        self.counts: dict[str, int] = {}
        self.process_health = health
        health.connected = lambda: nc.is_connected
        self.metrics = BusMetrics(health.registry, self.counts, nc)
        self._last_error = ""
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._inbox = ""
        self._number = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._served: list[tuple[Subscription, RequestServer]] = []
        self._reconnect_callbacks: list[Callable[[], Awaitable[None]]] = []

    async def open(self, settings: Settings, timeout: float) -> None:
        auth: dict[str, Any] = {"nkeys_seed_str": settings.nats_seed} if settings.nats_seed else {}
        try:
            async with asyncio.timeout(timeout):  # connect() alone never gives up on a dead server
                await self.nc.connect(
                    settings.nats_url,
                    name=f"moorage-{self.worker}",
                    max_reconnect_attempts=-1,
                    ping_interval=2,
                    max_outstanding_pings=2,
                    error_cb=self._on_error,
                    reconnected_cb=self._on_reconnected,
                    closed_cb=self._on_closed,
                    reconnect_to_server_handler=_jittered,
                    pending_size=MAX_PAYLOAD,
                    inbox_prefix=f"_INBOX.{self.worker}".encode(),
                    **auth,
                )
        except TimeoutError as error:
            detail = f"NATS at {settings.nats_url} did not answer within {timeout:g} s ({self._last_error})"
            raise NoAnswer(detail) from error
        self._inbox = self.nc.new_inbox()
        await self.nc.subscribe(f"{self._inbox}.*", future=DirectDelivery(self._on_answer))  # type: ignore[arg-type]

    async def _on_error(self, error: Exception) -> None:
        """Counts and logs an error. A forbidden publish looks like a success to its caller; only this sees it."""
        self._last_error = str(error) or type(error).__name__
        if self._inbox:
            self.count("errors")
        log.warning("nats", worker=self.worker, error=self._last_error)

    async def _on_reconnected(self) -> None:
        self.count("reconnects")
        for callback in self._reconnect_callbacks:
            self.spawn(callback())  # type: ignore[arg-type]

    async def _on_closed(self) -> None:
        self.closed.set()

    def _on_answer(self, msg: Msg) -> None:
        future = self._waiting.pop(msg.subject, None)
        if future is None:
            self._on_unexpected(msg)
        elif not future.done():
            future.set_result(msg)

    def _on_unexpected(self, msg: Msg) -> None:
        """Drops an answer that came too late."""

    async def settle(self) -> None:
        """Waits until the server knows our subscriptions. Flushes twice: the client sends a PING before what it queued."""
        await self.nc.flush(timeout=SETTLE_TIMEOUT)
        await self.nc.flush(timeout=SETTLE_TIMEOUT)

    def count(self, incident: str) -> None:
        self.counts[incident] = self.counts.get(incident, 0) + 1

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task that the connection owns. If one fails, the worker is broken: it ends, to be started again."""
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task ended", task=task.get_coro().__qualname__, exc_info=error)  # type: ignore[union-attr]
            self.closed.set()

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        self._reconnect_callbacks.append(callback)

    def forget(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Removes a reconnect callback."""
        if callback in self._reconnect_callbacks:
            self._reconnect_callbacks.remove(callback)

    async def publish(self, subject: str, payload: bytes | msgspec.Struct, reply: str = "") -> None:
        data = payload if isinstance(payload, bytes) else encode(payload)
        await self.nc.publish(subject, data, reply, headers=tracing.headers())

    async def request(
        self,
        subject: str,
        payload: bytes | msgspec.Struct,
        *,
        timeout: float = 2.0,
        again: tuple[float, bytes] | None = None,
    ) -> bytes:
        """Returns the data of the first answer. Raises NoAnswer.

        `again` is a payload to send after so many seconds without an answer: the worker that got the request may have
        died, and another one of its kind may answer.
        """
        msg = await self.exchange(subject, payload, timeout=timeout, again=again)
        return msg.data

    async def call(self, subject: str, payload: bytes | msgspec.Struct, type: type[T], *, timeout: float = 2.0) -> T:
        """Requests an answer of this type. Raises Refused with the problem that the worker answered instead."""
        data = await self.request(subject, payload, timeout=timeout)
        if (problem := problem_in(data)) is not None:
            raise Refused(problem)
        return msgspec.json.decode(data, type=type)

    async def exchange(
        self,
        subject: str,
        payload: bytes | msgspec.Struct,
        *,
        timeout: float = 2.0,
        headers: dict[str, str] | None = None,
        again: tuple[float, bytes] | None = None,
    ) -> Msg:
        """Requests an answer and returns it with its headers. Raises NoAnswer, at once if nobody subscribes."""
        reply, future = self._expect()
        data = payload if isinstance(payload, bytes) else encode(payload)
        timers: list[asyncio.TimerHandle] = []
        loop = future.get_loop()
        try:
            with tracing.request_span(subject):
                await self.nc.publish(subject, data, reply, headers=tracing.headers(headers))
                if again is not None:
                    patience, payload_again = again
                    repeat = lambda: self.spawn(self._repeat(subject, payload_again, reply, headers))
                    timers.append(loop.call_later(patience, repeat))
                # asyncio.timeout() costs several times as much.
                timers.append(loop.call_later(timeout, _time_out, future))
                msg = await future
        except (TimeoutError, nats.errors.Error) as error:
            raise NoAnswer(f"{subject}: no answer within {timeout:g} s ({type(error).__name__})") from error
        finally:
            self._waiting.pop(reply, None)
            for timer in timers:
                timer.cancel()
        if is_no_responders(msg):
            raise NoAnswer(f"{subject}: nobody listens")
        return msg

    async def _repeat(self, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
        with contextlib.suppress(nats.errors.Error):  # the first request may still be answered
            await self.nc.publish(subject, data, reply, headers=tracing.headers(headers))

    def _reply_subject(self) -> str:
        self._number += 1
        return f"{self._inbox}.{self._number}"

    def _expect(self) -> tuple[str, asyncio.Future[Msg]]:
        """Returns a new reply subject, and the future of the answer on it."""
        reply = self._reply_subject()
        future = self._waiting[reply] = asyncio.get_running_loop().create_future()
        return reply, future

    async def emit(self, subject: str, data: Any, *, cause: str = "", id: str = "", once: bool = False) -> str:
        """Publishes an event and returns its id. An event is a hint: the change is stored before it is published.

        `once`: others may publish it again under this id, and it is kept once.
        """
        event = Event(
            id=id or new_id(),
            cause=cause,
            traceparent=tracing.traceparent(),
            time=now_text(),
            subject=subject,
            data=msgspec.Raw(encode(data)),
        )
        await self.nc.publish(subject, encode(event), headers={"Nats-Msg-Id": event.id} if once else None)
        return event.id

    async def send_now(self) -> None:
        """Writes what was published, which is otherwise written when the caller waits next: for callers that go on to compute."""
        await asyncio.sleep(0)

    async def subscribe(
        self, subject: str, handle: Callable[[str, bytes], None], *, queue: str = "", max_bytes: int = 1 << 20
    ) -> Subscription:
        """Calls a quick synchronous handler with each message, in order.

        Messages that are too large or unreadable are kept for an operator; other errors of the handler are counted and
        logged. Either way the next message is handled.
        """

        def receive(msg: Msg) -> None:
            if len(msg.data) > max_bytes:
                self.spawn(self.reject(msg.subject, msg.data, too_large(len(msg.data), max_bytes)))
                return
            before = HANDLED.set(Handled(msg.subject, msg.data))  # for log lines
            try:
                handle(msg.subject, msg.data)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                self.spawn(self.reject(msg.subject, msg.data, unreadable(error)))
            except Exception:
                self.count("handler_errors")
                log.exception("handler failed")
            finally:
                HANDLED.reset(before)

        delivery: Any = DirectDelivery(receive)
        sub = await self.nc.subscribe(subject, queue=queue, future=delivery)
        await self.settle()
        return sub

    async def serve(
        self,
        subject: str,
        handle: Handler,
        *,
        queue: str = "",
        limit: int = 64,
        max_bytes: int = 1 << 20,
        refusal: Callable[[Problem], bytes] = refusal,
    ) -> None:
        """Answers requests, at most `limit` at once; further ones are refused at once. `refusal` encodes every problem."""
        server = RequestServer(self, subject, handle, queue=queue, limit=limit, max_bytes=max_bytes, refusal=refusal)
        delivery: Any = DirectDelivery(server.receive)
        self._served.append((await self.nc.subscribe(subject, queue=queue, future=delivery), server))
        await self.settle()

    async def _finish(self) -> None:
        """Takes no more requests and answers those in hand, so that a worker can be replaced unnoticed."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(FINISH):
                for subscription, _ in self._served:
                    await subscription.drain()  # type: ignore[no-untyped-call]
                while serving := [task for _, server in self._served for task in server.tasks]:
                    await asyncio.wait(serving)

    async def reject(self, subject: str, data: bytes, problem: Problem) -> None:
        """Keeps a bad message for an operator, without data that may be secret. While the broker is away it is lost."""
        self.count("rejected")
        if subject.startswith("moorage.rejected."):
            return  # it is kept already
        body = {
            "subject": subject,
            "by": self.worker,
            "time": now_text(),
            "problem": problem,
            "sample": loggable_excerpt(data),
        }
        with contextlib.suppress(nats.errors.Error):
            await self.nc.publish(subjects.rejected(subject), encode(body))

    async def close(self) -> None:
        if self.nc.is_connected:
            await self._finish()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.nc.is_connected:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(3):
                    await self.nc.drain()
        if not self.nc.is_closed:
            await self.nc.close()
