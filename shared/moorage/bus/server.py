"""Serves requests on a subject: bounds their size and number, answers errors as problems, and counts outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg

from moorage.model.problems import UNREADABLE, Problem, Refused, unreadable
from moorage.telemetry import HANDLED, Handled, tracing

if TYPE_CHECKING:
    from .connection import Connection

log = structlog.get_logger("bus")
_ENDING = Problem(title="Ending", status=503, code="Ending", detail="this worker ends; another one may do it")

encode = msgspec.json.Encoder().encode


class Incoming(NamedTuple):
    subject: str
    data: bytes
    reply: str


Handler = Callable[[Incoming], Awaitable[bytes | msgspec.Struct | None]]


def too_large(size: int, max_bytes: int) -> Problem:
    return Problem(title="Too large", status=413, code="TooLarge", detail=f"{size} bytes; at most {max_bytes}")


def refusal(problem: Problem) -> bytes:
    return encode({"problem": problem})


class RequestServer:
    """Handles the requests of one subject, at most `limit` at once; further ones are refused at once, not queued."""

    def __init__(
        self,
        conn: Connection,
        subject: str,
        handle: Handler,
        *,
        queue: str,
        limit: int,
        max_bytes: int,
        refusal: Callable[[Problem], bytes],
    ) -> None:
        self._conn, self._handle, self._refusal = conn, handle, refusal
        self._limit, self._max_bytes = limit, max_bytes
        self._span = f"handle {subject}"
        self._metrics = conn.metrics.served(subject, queue)
        self._busy = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def receive(self, msg: Msg) -> None:
        if len(msg.data) > self._max_bytes:
            self._metrics.rejected()
            self._conn.spawn(self._turn_away(msg, too_large(len(msg.data), self._max_bytes)))
        elif self._busy >= self._limit:
            self._conn.count("shed")
            self._metrics.busy()
            detail = f"{self._limit} requests are being served"
            self._conn.spawn(self._turn_away(msg, Problem(title="Busy", status=503, code="Busy", detail=detail)))
        else:
            self._busy += 1
            task = self._conn.spawn(self._serve(msg))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _turn_away(self, msg: Msg, problem: Problem) -> None:
        with contextlib.suppress(nats.errors.Error):
            if problem.status == 413:
                await self._conn.reject(msg.subject, msg.data, problem)
            if msg.reply:
                await self._conn.publish(msg.reply, self._refusal(problem))

    async def _serve(self, msg: Msg) -> None:
        HANDLED.set(Handled(msg.subject, msg.data))  # for log lines; the context belongs to this task alone
        if not msg.headers:
            await self._answer(msg)
            return
        with tracing.message_span(self._span, msg.headers, "SERVER" if msg.reply else "CONSUMER"):
            await self._answer(msg)

    async def _answer(self, msg: Msg) -> None:
        began = time.perf_counter()
        try:
            answer = await self._outcome(msg)
        except asyncio.CancelledError:  # the worker ends: the requester may ask another one
            if msg.reply and not self._conn.nc.is_closed:
                await self._conn.publish(msg.reply, self._refusal(_ENDING))
            raise
        finally:
            self._busy -= 1
            self._metrics.seconds(time.perf_counter() - began)
        if msg.reply and answer is not None:
            data = answer if isinstance(answer, bytes) else encode(answer)
            if len(data) > self._conn.nc.max_payload:
                self._conn.count("handler_errors")
                log.error("answer is too large", size=len(data))
                data = self._refusal(too_large(len(data), self._conn.nc.max_payload))
            await self._conn.publish(msg.reply, data)

    async def _outcome(self, msg: Msg) -> bytes | msgspec.Struct | None:
        """Returns the handler's answer, or its error as a problem; keeps unreadable messages."""
        metrics = self._metrics
        try:
            answer = await self._handle(Incoming(msg.subject, msg.data, msg.reply))
            metrics.answered()
            return answer
        except Refused as refused:
            problem = refused.problem
            if problem.code not in UNREADABLE:
                metrics.refused()
                return self._refusal(problem)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            problem = unreadable(error)
        except Exception as error:
            self._conn.count("handler_errors")
            metrics.failed()
            log.exception("handler failed")
            problem = Problem(title="Internal error", status=500, code="Internal", detail=type(error).__name__)
            return self._refusal(problem)
        metrics.rejected()
        await self._conn.reject(msg.subject, msg.data, problem)
        return self._refusal(problem)
