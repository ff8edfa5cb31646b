"""Scatter-gather with a deadline per responder; concurrent requests to one responder are batched.

Where many groups are decided at once, a message for each request would be most of all messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import nats.errors
from nats.aio.msg import Msg

from moorage.mesh import subjects
from moorage.model.replies import Reply
from moorage.telemetry import tracing

from .connection import Connection, is_no_responders
from .metrics import BusMetrics

#: Bytes of asks in one batch message.
MAX_BATCH_BYTES = 1 << 20


class _Answers(msgspec.Struct):
    answers: dict[str, msgspec.Raw]


_decode = msgspec.json.Decoder(_Answers).decode
_Future = asyncio.Future[Msg]


class _Request(NamedTuple):
    ident: str
    payload: bytes
    reply: str
    future: _Future


class _Gathering:
    """The replies to one request of several responders, by the responders' names."""

    def __init__(self, asks: Mapping[str, tuple[str, float]], metrics: BusMetrics) -> None:
        self._asks, self._metrics = asks, metrics
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._pending: dict[str, tuple[_Future, float]] = {}  # futures and deadlines
        self._replies: dict[str, Reply] = {}
        self._spans: dict[str, Any] = {}  # empty outside of a trace
        self._done = asyncio.Event()

    def expect(self, name: str, future: _Future, span: Any) -> None:
        self._pending[name] = future, self._start + self._asks[name][1]
        if span is not None:
            self._spans[name] = span
        future.add_done_callback(partial(self._on_done, name))

    def _on_done(self, name: str, future: _Future) -> None:
        if future.cancelled() or self._pending.pop(name, None) is None:
            return
        took = (self._loop.time() - self._start) * 1e3
        if self._spans:
            self._spans.pop(name).end()
        metrics = self._metrics.asked(name, self._asks[name][0])
        msg = future.result()
        if is_no_responders(msg):
            # Counts as a timeout: the broker reports early that nobody will answer.
            self._replies[name] = Reply("timeout", b"", took, "nobody answers for it")
            metrics.timeout()
        else:
            metrics.answered()
            metrics.seconds(took / 1e3)
            self._replies[name] = Reply("answered", msg.data, took)
        if not self._pending:
            self._done.set()

    def _expire(self) -> None:
        now = self._loop.time()
        for name in [name for name, (_, deadline) in self._pending.items() if deadline <= now]:
            future, deadline = self._pending.pop(name)
            future.cancel()
            if self._spans:
                tracing.end_as_timeout(self._spans.pop(name))
            self._metrics.asked(name, self._asks[name][0]).timeout()
            took = (deadline - self._start) * 1e3
            self._replies[name] = Reply("timeout", b"", took, "no answer before its deadline")

    async def replies(self) -> dict[str, Reply]:
        """Waits until every responder has answered or missed its deadline."""
        while self._pending:
            timer = self._loop.call_at(min(deadline for _, deadline in self._pending.values()), self._done.set)
            try:
                await self._done.wait()
            finally:
                timer.cancel()
            self._done.clear()
            self._expire()
        return {name: self._replies[name] for name in self._asks}


class FanOut(Connection):
    """A connection that asks several responders at once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._outgoing: dict[str, list[_Request]] = {}  # requests of this turn of the event loop, by subject
        self._batches: dict[str, dict[str, _Request]] = {}  # unanswered requests of each batch, by its reply subject

    async def ask_many(
        self,
        asks: Mapping[str, tuple[str, float]],
        payload: bytes,
        *,
        ident: str = "",
        together: Container[str] = (),
    ) -> dict[str, Reply]:
        """Sends a request to each responder and returns once every one has answered or missed its deadline.

        `asks` has the subject and the deadline in seconds of each name. `together` names the responders that take batches
        and know this request by its `ident`.
        """
        gathering = _Gathering(asks, self.metrics)
        for name, (subject, _) in asks.items():
            reply, future = self._expect()
            future.add_done_callback(partial(self._forget_reply, reply))
            span = tracing.open_client_span(f"ask {name}")
            gathering.expect(name, future, span)
            if span is None and name in together:
                self._send_batched(subject, _Request(ident, payload, reply, future))
            else:
                await self.nc.publish(subject, payload, reply, headers=tracing.headers_of(span))
        return await gathering.replies()

    def _forget_reply(self, reply: str, _future: _Future) -> None:
        self._waiting.pop(reply, None)

    def _send_batched(self, subject: str, request: _Request) -> None:
        if not self._outgoing:
            self.spawn(self._send_outgoing())
        self._outgoing.setdefault(subject, []).append(request)

    async def _send_outgoing(self) -> None:
        """Sends the requests that came up before this task ran. A request that cannot be sent is not answered."""
        outgoing, self._outgoing = self._outgoing, {}
        with contextlib.suppress(nats.errors.Error):
            for subject, requests in outgoing.items():
                for batch in _batches(requests):
                    await self._send_batch(subject, batch)

    async def _send_batch(self, subject: str, requests: list[_Request]) -> None:
        if len(requests) == 1:
            await self.nc.publish(subject, requests[0].payload, requests[0].reply)
            return
        reply = self._reply_subject()
        batch = self._batches[reply] = {request.ident: request for request in requests}
        for request in requests:
            request.future.add_done_callback(partial(self._on_request_done, reply, batch, request.ident))
        payload = b'{"asks":[' + b",".join(request.payload for request in requests) + b"]}"
        await self.nc.publish(subjects.batch(subject), payload, reply)

    def _on_request_done(self, reply: str, batch: dict[str, _Request], ident: str, _future: _Future) -> None:
        batch.pop(ident, None)
        if not batch:
            self._batches.pop(reply, None)

    def _on_unexpected(self, msg: Msg) -> None:
        """Distributes the answers to a batch, of which several messages may come."""
        batch = self._batches.get(msg.subject)
        if batch is None:
            return
        try:
            answers = _decode(msg.data).answers
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Nobody subscribes, or the answer is no batch: every request gets it as if it had been sent alone.
            for request in list(batch.values()):
                _resolve(request, msg)
            return
        for ident, data in answers.items():
            if (request_ := batch.get(ident)) is not None:
                _resolve(request_, Msg(_client=self.nc, subject=msg.subject, data=bytes(data)))


def _batches(requests: list[_Request]) -> Iterator[list[_Request]]:
    """Splits requests into batches: larger ones would delay decisions that could go on."""
    batch: list[_Request] = []
    size = 0
    for request in requests:
        if batch and (len(batch) == subjects.MAX_BATCH or size + len(request.payload) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += len(request.payload)
    yield batch


def _resolve(request: _Request, msg: Msg) -> None:
    if not request.future.done():
        request.future.set_result(msg)
