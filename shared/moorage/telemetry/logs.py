"""Structured logs: one JSON object a line on stderr, or readable lines on a terminal. A line that is logged while a message
is handled has the subject, id and cause of the message."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import msgspec
import structlog

from .tracing import current_ids

VARIABLE = "MOORAGE_LOG"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Fields with these names are hidden, and so is text that looks like a secret.
_SECRET = re.compile(r"token|seed|secret|password|authorization|credential", re.IGNORECASE)
_IN_TEXT = (
    (re.compile(r"(://[^/\s:@]*):[^/\s@]+@"), r"\1:***@"),
    (re.compile(r"\bS[UANOCX][A-Z2-7]{56}\b"), "***"),
    (re.compile(r"\b(bearer)\s+\S+", re.IGNORECASE), r"\1 ***"),
)
#: Is found in every text in which one of these patterns is. Most texts have nothing to hide, and one look is quicker than three.
_SUSPICIOUS = re.compile(r"://|[UANOCX][A-Z2-7]{56}|[Bb][Ee][Aa][Rr]")
#: As JSONRenderer of structlog does it, which makes a new encoder for each line.
_to_json = json.JSONEncoder(default=repr).encode


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
        if _is_secret(name):
            event[name] = "***"
        elif isinstance(value, str):
            event[name] = hide_secrets(value)
    return event


@lru_cache(1024)
def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def hide_secrets(text: str) -> str:
    if _SUSPICIOUS.search(text) is None:
        return text
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def _render(_logger: Any, _method: str, event: structlog.typing.EventDict) -> str:
    return _to_json(event)


def level_from_env() -> int:
    """Returns the level that MOORAGE_LOG names; info by default."""
    name = os.environ.get(VARIABLE, "") or "info"
    if name.lower() not in LEVELS:
        raise SystemExit(f"{VARIABLE}={name} is not one of {', '.join(LEVELS)}")
    return LEVELS[name.lower()]


def configure_logs(worker: str) -> None:
    level = level_from_env()
    readable = sys.stderr.isatty()

    def add_worker(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("worker", worker)
        return event

    shared: list[structlog.typing.Processor] = [
        add_worker,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_message,
        structlog.processors.format_exc_info,
        _hide_secrets,
    ]
    last: structlog.typing.Processor = structlog.dev.ConsoleRenderer() if readable else _render
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
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
    wanted = logging.INFO if level < logging.INFO else max(level, logging.WARNING)
    if root.level != wanted:  # setting it would touch all loggers, and copy their memory after a fork
        root.setLevel(wanted)
