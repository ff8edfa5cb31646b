"""One connection to NATS: gives up connecting in bounded time, comes back by itself, and says so when it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client, Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.nuid import NUID

from moorage.mesh import subjects
from moorage.model.events import Event
from moorage.model.problems import UNREADABLE, Problem, Refused, problem_in, unreadable
from moorage.parsing.redaction import loggable_excerpt
from moorage.telemetry import HANDLED, Handled, ProcessHealth, tracing

from .errors import NoAnswer
from .metrics import BusMetrics
from .settings import Settings

log = structlog.get_logger("bus")
T = TypeVar("T")
_ids = NUID()
MAX_PAYLOAD = 8 << 20
#: How long who ends goes on with what it has in hand.
FINISH = 1.0
_ENDING = Problem(title="Ending", status=503, code="Ending", detail="this worker ends; another one may do it")

encode = msgspec.json.Encoder().encode


def _too_large(found: int, most: int) -> Problem:
    return Problem(title="Too large", status=413, code="TooLarge", detail=f"{found} bytes; at most {most}")


def _refusal(problem: Problem) -> bytes:
    return encode({"problem": problem})


def _renew() -> None:
    global _ids
    _ids = NUID()


# Workers are forked from one warm parent: with its generator they would all say the same ids.
os.register_at_fork(after_in_child=_renew)


def new_id() -> str:
    ident: bytearray = _ids.next()
    return ident.decode()


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_no_responders(msg: Msg) -> bool:
    """Whether this is what the broker says where nobody listens."""
    return not msg.data and bool(msg.headers) and msg.headers.get("Status") == "503"  # type: ignore[union-attr]


def _too_late(future: asyncio.Future[Msg]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class Incoming(NamedTuple):
    subject: str
    data: bytes
    reply: str


def _jittered(servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
    """A broker's restart must not become a stampede."""
    server = min(servers, key=lambda s: s.reconnects)
    return server, random.uniform(0, min(2.0, 0.05 * 2 ** min(server.reconnects, 6)))


class _At:
    """Where a subscription's messages go as they are read, as the client lets the future of a single answer have it: no
    queue, and no task to be woken in between."""

    def __init__(self, take: Callable[[Msg], None]) -> None:
        self.set_result = take

    def cancelled(self) -> bool:
        return False


class Connection:
    """Publish, request, subscribe and serve; everything else of the bus stands on these."""

    def __init__(self, nc: Client, worker: str, closed: asyncio.Event, vitals: ProcessHealth) -> None:
        self.nc = nc
        self.worker = worker
        self.closed = closed
        self.counts: dict[str, int] = {}
        self.vitals = vitals
        vitals.connected = lambda: nc.is_connected
        self.figures = BusMetrics(vitals.registry, self.counts, nc)
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._inbox = ""
        self._number = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._served: list[Subscription] = []
        self._serving: set[asyncio.Task[Any]] = set()
        self._reconnected: list[Callable[[], Awaitable[None]]] = []

    async def open(self) -> None:
        self._inbox = self.nc.new_inbox()
        await self.nc.subscribe(f"{self._inbox}.*", future=_At(self._answered))  # type: ignore[arg-type]

    def _answered(self, msg: Msg) -> None:
        future = self._waiting.pop(msg.subject, None)
        if future is None:
            self._unexpected(msg)
        elif not future.done():
            future.set_result(msg)

    def _unexpected(self, msg: Msg) -> None:
        """An answer that nobody waits for any more."""

    async def settle(self) -> None:
        """Until the server knows our subscriptions. Twice, since the client puts a PING before what it has yet to send."""
        await self.nc.flush(timeout=5)
        await self.nc.flush(timeout=5)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task the connection owns. A worker that lost one of its tasks is broken: it ends, and is started again."""
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task ended", task=task.get_coro().__qualname__, exc_info=error)  # type: ignore[union-attr]
            self.closed.set()

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        self._reconnected.append(callback)

    def forget(self, callback: Callable[[], Awaitable[None]]) -> None:
        if callback in self._reconnected:
            self._reconnected.remove(callback)

    async def reconnected(self) -> None:
        self.count("reconnects")
        for callback in self._reconnected:
            self.spawn(callback())  # type: ignore[arg-type]

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
        """`again`: after so many seconds without an answer ask once more, with this: who had the question may be dead, and
        another one of its kind alive. The first answer counts."""
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
        """A request whose whole answer matters. Raises NoAnswer at once where nobody listens."""
        reply, future = self._expect()
        data = payload if isinstance(payload, bytes) else encode(payload)
        repeat: asyncio.TimerHandle | None = None
        end: asyncio.TimerHandle | None = None
        loop = future.get_loop()
        try:
            with tracing.request_span(subject):
                await self.nc.publish(subject, data, reply, headers=tracing.headers(headers))
                if again is not None:
                    patience, instead = again
                    repeat = loop.call_later(
                        patience, lambda: self.spawn(self._repeat(subject, instead, reply, headers))
                    )
                end = loop.call_later(timeout, _too_late, future)  # asyncio.timeout() costs several times as much
                msg = await future
        except (TimeoutError, nats.errors.Error) as error:
            raise NoAnswer(f"{subject}: no answer within {timeout:g} s ({type(error).__name__})") from error
        finally:
            self._waiting.pop(reply, None)
            for timer in (repeat, end):
                if timer is not None:
                    timer.cancel()
        if is_no_responders(msg):
            raise NoAnswer(f"{subject}: nobody listens")
        return msg

    async def _repeat(self, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
        with contextlib.suppress(nats.errors.Error):  # then there is no answer, as without it
            await self.nc.publish(subject, data, reply, headers=tracing.headers(headers))

    def _address(self) -> str:
        self._number += 1
        return f"{self._inbox}.{self._number}"

    def _expect(self) -> tuple[str, asyncio.Future[Msg]]:
        reply = self._address()
        future = self._waiting[reply] = asyncio.get_running_loop().create_future()
        return reply, future

    async def emit(self, subject: str, data: Any, *, cause: str = "", id: str = "", once: bool = False) -> str:
        """An event. It is a hint: what matters stands in a store before it is said. `once`: others may say it again under
        this id, and it is kept once."""
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

    async def subscribe(
        self, subject: str, handle: Callable[[str, bytes], None], *, queue: str = "", max_bytes: int = 1 << 20
    ) -> Subscription:
        """A quick synchronous handler, called in order. What it cannot read, or what is too large, is kept where an
        operator can see it; what else it raises is counted and logged. The next message comes."""

        async def received(msg: Msg) -> None:
            HANDLED.set(Handled(msg.subject, msg.data))  # for log lines; the context is this subscription's own
            if len(msg.data) > max_bytes:
                await self.reject(msg.subject, msg.data, _too_large(len(msg.data), max_bytes))
                return
            try:
                handle(msg.subject, msg.data)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                await self.reject(msg.subject, msg.data, unreadable(error))
            except Exception:
                self.count("handler_errors")
                log.exception("handler failed")

        sub = await self.nc.subscribe(subject, queue=queue, cb=received, pending_bytes_limit=1 << 30)
        await self.settle()
        return sub

    async def serve(
        self,
        subject: str,
        handle: Callable[[Incoming], Awaitable[bytes | msgspec.Struct | None]],
        *,
        queue: str = "",
        limit: int = 64,
        max_bytes: int = 1 << 20,
        refusal: Callable[[Problem], bytes] = _refusal,
    ) -> None:
        """Answer requests, at most `limit` at once; what is too much is told so at once instead of waiting in line.
        `refusal`: how a problem is answered here, whoever finds it."""
        busy = 0
        served = self.figures.served(subject, queue)
        name = f"handle {subject}"

        async def one(msg: Msg) -> None:
            HANDLED.set(Handled(msg.subject, msg.data))  # for log lines; the context is this task's own
            if not msg.headers:
                await answered(msg)
                return
            with tracing.message_span(name, msg.headers, "SERVER" if msg.reply else "CONSUMER"):
                await answered(msg)

        async def answered(msg: Msg) -> None:
            nonlocal busy
            answer: bytes | msgspec.Struct | None
            began = time.perf_counter()
            try:
                answer = await handle(Incoming(msg.subject, msg.data, msg.reply))
                served.answered()
            except Refused as refused:
                if refused.problem.code in UNREADABLE:
                    served.rejected()
                    await self.reject(msg.subject, msg.data, refused.problem)
                else:
                    served.refused()
                answer = refusal(refused.problem)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                problem = unreadable(error)
                served.rejected()
                await self.reject(msg.subject, msg.data, problem)
                answer = refusal(problem)
            except asyncio.CancelledError:  # we end: who asked may ask another one
                if msg.reply and not self.nc.is_closed:
                    await self.publish(msg.reply, refusal(_ENDING))
                raise
            except Exception as error:
                self.count("handler_errors")
                served.failed()
                log.exception("handler failed")
                problem = Problem(title="Internal error", status=500, code="Internal", detail=type(error).__name__)
                answer = refusal(problem)
            finally:
                busy -= 1
                served.seconds(time.perf_counter() - began)
            if msg.reply and answer is not None:
                await self.publish(msg.reply, answer)

        async def turned_away(msg: Msg, problem: Problem) -> None:
            with contextlib.suppress(nats.errors.Error):
                if problem.status == 413:
                    await self.reject(msg.subject, msg.data, problem)
                if msg.reply:
                    await self.publish(msg.reply, refusal(problem))

        def received(msg: Msg) -> None:
            nonlocal busy
            if len(msg.data) > max_bytes:
                served.rejected()
                self.spawn(turned_away(msg, _too_large(len(msg.data), max_bytes)))
            elif busy >= limit:
                self.count("shed")
                served.busy()
                detail = f"{limit} requests are being served"
                self.spawn(turned_away(msg, Problem(title="Busy", status=503, code="Busy", detail=detail)))
            else:
                busy += 1
                task = self.spawn(one(msg))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)

        self._served.append(await self.nc.subscribe(subject, queue=queue, future=_At(received)))  # type: ignore[arg-type]
        await self.settle()

    async def _finish(self) -> None:
        """No more questions, and those in hand are answered: so that a worker can be replaced unnoticed."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(FINISH):
                for subscription in self._served:
                    await subscription.drain()  # type: ignore[no-untyped-call]
                while self._serving:
                    await asyncio.wait(list(self._serving))

    async def reject(self, subject: str, data: bytes, problem: Problem) -> None:
        """Keep a bad message where an operator can read it, unless it may hold what nobody should. While the broker is
        away there is nobody who keeps it."""
        self.count("rejected")
        if subject.startswith("moorage.rejected."):
            return  # it is kept
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
        with contextlib.suppress(Exception):
            async with asyncio.timeout(3):
                await self.nc.drain()
        if not self.nc.is_closed:
            await self.nc.close()


async def connect(settings: Settings, worker: str, timeout: float) -> tuple[Client, asyncio.Event, list[Connection]]:
    closed = asyncio.Event()
    owner: list[Connection] = []

    last = ""

    async def on_error(error: Exception) -> None:
        nonlocal last
        last = str(error) or type(error).__name__
        # A forbidden publish looks like a success to its caller; this is the only place that learns of it.
        if owner:
            owner[0].count("errors")
        log.warning("nats", worker=worker, error=last)

    async def on_reconnect() -> None:
        if owner:
            await owner[0].reconnected()

    async def on_closed() -> None:
        closed.set()

    auth: dict[str, Any] = {"nkeys_seed_str": settings.nats_seed} if settings.nats_seed else {}
    nc = Client()
    try:
        async with asyncio.timeout(timeout):  # connect() alone never gives up on a dead server
            await nc.connect(
                settings.nats_url,
                name=f"moorage-{worker}",
                max_reconnect_attempts=-1,
                ping_interval=2,
                max_outstanding_pings=2,
                error_cb=on_error,
                reconnected_cb=on_reconnect,
                closed_cb=on_closed,
                reconnect_to_server_handler=_jittered,
                pending_size=MAX_PAYLOAD,
                inbox_prefix=f"_INBOX.{worker}".encode(),
                **auth,
            )
    except TimeoutError as error:
        await nc.close()
        raise NoAnswer(f"NATS at {settings.nats_url} did not answer within {timeout:g} s ({last})") from error
    except BaseException:
        await nc.close()  # cancelled half-way: what is open by then is nobody's
        raise
    return nc, closed, owner
