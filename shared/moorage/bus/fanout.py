"""Questions to many at once, each under its own deadline. What is asked of the same one at the same moment goes out in one
message and comes back in one: where many decide at once, a message for each question would be most of all messages."""

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


class FanOut(Connection):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._outgoing: dict[str, list[_Request]] = {}
        self._bundles: dict[str, dict[str, _Request]] = {}  # by where their answers go, what is not answered yet

    async def ask_many(
        self,
        asks: Mapping[str, tuple[str, float]],
        payload: bytes,
        *,
        ident: str = "",
        together: Container[str] = (),
    ) -> dict[str, Reply]:
        """Back as soon as every one has answered or is out of time. `together`: those who take several questions in one
        message, and know this one by its `ident`."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        replies: dict[str, Reply] = {}
        pending: dict[str, tuple[_Future, float]] = {}
        turn: asyncio.Future[None] = loop.create_future()
        names: dict[_Future, tuple[str, str]] = {}
        spans: dict[str, Any] = {}  # empty outside of a trace

        def arrive(future: _Future) -> None:
            name, reply = names[future]
            self._waiting.pop(reply, None)
            if future.cancelled() or pending.pop(name, None) is None:
                return
            took = (loop.time() - start) * 1e3
            if spans:
                spans.pop(name).end()
            asked = self.figures.asked(name, asks[name][0])
            msg = future.result()
            if is_no_responders(msg):
                # A dead one times out, only sooner: the broker knows that nobody is going to answer.
                replies[name] = Reply("timeout", b"", took, "nobody answers for it")
                asked.timeout()
            else:
                asked.answered()
                asked.seconds(took / 1e3)
                replies[name] = Reply("answered", msg.data, took)
            if not pending:
                _wake(turn)

        for name, (subject, deadline) in asks.items():
            reply, future = self._expect()
            names[future] = (name, reply)
            pending[name] = (future, start + deadline)
            future.add_done_callback(arrive)
            if (span := tracing.open_client_span(f"ask {name}")) is not None:
                spans[name] = span
            if span is None and name in together:
                self._later(subject, _Request(ident, payload, reply, future))
            else:
                await self.nc.publish(subject, payload, reply, headers=tracing.headers_of(span))
        while pending:
            first = loop.call_at(min(end for _, end in pending.values()), _wake, turn)
            try:
                await turn
            finally:
                first.cancel()
            turn = loop.create_future()
            now = loop.time()
            for name in [n for n, (_, end) in pending.items() if end <= now]:
                future, end = pending.pop(name)
                future.cancel()
                if spans:
                    tracing.end_as_timeout(spans.pop(name))
                self.figures.asked(name, asks[name][0]).timeout()
                replies[name] = Reply("timeout", b"", (end - start) * 1e3, "no answer before its deadline")
        return {name: replies[name] for name in asks}

    # --- several in one message

    def _later(self, subject: str, question: _Request) -> None:
        if not self._outgoing:
            self.spawn(self._send())
        self._outgoing.setdefault(subject, []).append(question)

    async def _send(self) -> None:
        """All that came up until the loop came round. What cannot be sent is not answered."""
        outgoing, self._outgoing = self._outgoing, {}
        with contextlib.suppress(nats.errors.Error):
            for subject, questions in outgoing.items():
                for bundle in _split(questions):
                    await self._ask(subject, bundle)

    async def _ask(self, subject: str, questions: list[_Request]) -> None:
        if len(questions) == 1:
            await self.nc.publish(subject, questions[0].payload, questions[0].reply)
            return
        reply = self._address()
        bundle = self._bundles[reply] = {question.ident: question for question in questions}
        for question in questions:
            question.future.add_done_callback(partial(self._done_with, reply, bundle, question.ident))
        payload = b'{"asks":[' + b",".join(question.payload for question in questions) + b"]}"
        await self.nc.publish(subjects.batch(subject), payload, reply)

    def _done_with(self, reply: str, bundle: dict[str, _Request], ident: str, _future: _Future) -> None:
        bundle.pop(ident, None)
        if not bundle:
            self._bundles.pop(reply, None)

    def _unexpected(self, msg: Msg) -> None:
        bundle = self._bundles.get(msg.subject)
        if bundle is None:
            return
        try:
            answers = _decode(msg.data).answers
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Nobody is there, or what came is no bundle: each asker is told as if he had asked alone.
            for question in list(bundle.values()):
                _give(question, msg)
            return
        for ident, data in answers.items():
            if (asked := bundle.get(ident)) is not None:
                _give(asked, Msg(_client=self.nc, subject=msg.subject, data=bytes(data)))


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def _split(questions: list[_Request]) -> Iterator[list[_Request]]:
    bundle: list[_Request] = []
    size = 0
    for question in questions:
        if bundle and (len(bundle) == subjects.MAX_BATCH or size + len(question.payload) > MAX_BATCH_BYTES):
            yield bundle
            bundle, size = [], 0
        bundle.append(question)
        size += len(question.payload)
    yield bundle


def _give(question: _Request, msg: Msg) -> None:
    if not question.future.done():
        question.future.set_result(msg)
