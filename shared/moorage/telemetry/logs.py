"""Structured logs: one JSON object a line on stderr, or readable lines on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(worker: str, *, level: int = logging.INFO) -> None:
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if sys.stderr.isatty():
        processors[-1:] = [structlog.dev.ConsoleRenderer()]
    else:
        processors.append(structlog.processors.JSONRenderer())
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(worker=worker)
