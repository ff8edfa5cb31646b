"""Retries what fails only for a moment, with growing pauses, until it succeeds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import stamina
import structlog
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

log = structlog.get_logger("bus")

Errors = type[Exception] | tuple[type[Exception], ...]


def _log_retry(details: RetryDetails) -> None:
    """Warns of the first failure only: a broker that is away for a minute must not fill the log."""
    write = log.warning if details.retry_num == 1 else log.debug
    write("will be tried again", error=str(details.caused_by), wait=round(details.wait_for, 2))


set_on_retry_hooks([_log_retry])


def until_done(
    on: Errors | Callable[[Exception], bool], *, first: float = 0.2, longest: float = 2.0
) -> AsyncIterator[stamina.Attempt]:
    """Returns attempts for `async for attempt in …: with attempt:`; only the errors `on` make it try again. The pauses grow
    from `first` to `longest` seconds."""
    return aiter(
        stamina.retry_context(
            on=on, attempts=None, timeout=None, wait_initial=first, wait_max=longest, wait_jitter=first / 2
        )
    )
