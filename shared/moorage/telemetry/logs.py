"""Structured logs: one JSON object a line on stderr, or readable lines on a terminal. A line that is logged while a message
is handled has the subject, id and cause of the message."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
import structlog

from .tracing import current_ids

#: Fields with these names are hidden, and so is text that looks like a secret.
_SECRET = re.compile(r"token|seed|secret|password|authorization|credential", re.IGNORECASE)
_IN_TEXT = (
    (re.compile(r"(://[^/\s:@]*):[^/\s@]+@"), r"\1:***@"),
    (re.compile(r"\bS[UANOCX][A-Z2-7]{56}\b"), "***"),
    (re.compile(r"\b(bearer)\s+\S+", re.IGNORECASE), r"\1 ***"),
)


class _Head(msgspec.Struct):
    """The ids of a message."""

    id: str = ""
    cause: str = ""


_head = msgspec.json.Decoder(_Head).decode


class Handled:
    """The message being handled. It is decoded for its ids only when something is logged, since most messages log nothing."""

    __slots__ = ("_head", "data", "subject")

    def __init__(self, subject: str, data: bytes = b"", id: str = "", cause: str = "") -> None:
        self.subject, self.data = subject, data
        self._head = _Head(id, cause) if id or cause or not data else None

    @property
    def head(self) -> _Head:
        if self._head is None:
            try:
                self._head = _head(self.data)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                self._head = _Head()
        return self._head


#: Set by the bus around each handler, and by workers around work that no message caused directly.
HANDLED: ContextVar[Handled | None] = ContextVar("handled", default=None)


@contextmanager
def handling(subject: str = "", *, id: str = "", cause: str = "") -> Iterator[None]:
    """Adds subject, id and cause to the log lines of the block."""
    before = HANDLED.set(Handled(subject, id=id, cause=cause))
    try:
        yield
    finally:
        HANDLED.reset(before)


def _add_message(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    handled = HANDLED.get()
    if handled is not None:
        for name, value in (("subject", handled.subject), ("id", handled.head.id), ("cause", handled.head.cause)):
            if value:
                event.setdefault(name, value)
    for name, value in current_ids():
        event.setdefault(name, value)
    return event


def _hide_secrets(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for name, value in event.items():
        if _SECRET.search(name):
            event[name] = "***"
        elif isinstance(value, str):
            event[name] = hide_secrets(value)
    return event


def hide_secrets(text: str) -> str:
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def configure_logs(worker: str, *, level: int = logging.INFO) -> None:
    readable = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_message,
        structlog.processors.format_exc_info,
        _hide_secrets,
    ]
    last: structlog.typing.Processor = structlog.processors.JSONRenderer(default=repr)
    if readable:
        last = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(worker=worker)
    # Logs of libraries take the same form.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
