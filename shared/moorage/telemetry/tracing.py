"""Traces, if an OTLP endpoint is configured in OpenTelemetry's own variables. Otherwise each function only checks one
variable, and OpenTelemetry is neither needed nor imported.

A trace leads from an HTTP request to the pods. The gateway starts it, messages carry it in their headers, and stored values
between two steps (a decision, desired state) carry it in a field. Spans are made only within a trace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .otel import Tracing

Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]

HEADER = "traceparent"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NOTHING: AbstractContextManager[Any] = nullcontext()
#: Milliseconds that a process waits at its end for the collector to take its last spans.
_LAST = 1000


class _State:
    """Holds the tracing of this process. One attribute access is the whole cost while it is None."""

    tracing: Tracing | None = None


_state = _State()


def configured(env: Mapping[str, str] = os.environ) -> bool:
    wanted = any(env.get(name) for name in _ENDPOINTS)
    disabled = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none"
    return wanted and not disabled


def configure_traces(worker: str) -> None:
    """Starts tracing if it is configured. Call it after the fork, since the exporter is a thread of the process."""
    if not configured():
        return
    try:
        from .otel import Tracing
    except ImportError as error:
        raise SystemExit(f"traces are configured but not installed ({error}): pip install 'moorage[traces]'") from error
    _state.tracing = Tracing(worker)


def end_traces() -> None:
    """Sends the remaining spans, in bounded time: a collector that does not answer must not keep a worker from ending."""
    tracing, _state.tracing = _state.tracing, None
    if tracing is not None:
        tracing.end(_LAST)


def is_enabled() -> bool:
    return _state.tracing is not None


def server_span(name: str, headers: Mapping[str, str], **attributes: Any) -> AbstractContextManager[Any]:
    """A span for a request from outside, in the trace of its headers or a new one. Enters as None if tracing is off."""
    return _NOTHING if _state.tracing is None else _state.tracing.server_span(name, headers, attributes)


def message_span(
    name: str, headers: Mapping[str, str] | None, kind: Kind = "SERVER", **attributes: Any
) -> AbstractContextManager[Any]:
    """A span for handling a message, if it is part of a trace."""
    if _state.tracing is None or not headers or HEADER not in headers:
        return _NOTHING
    return _state.tracing.message_span(name, headers, kind, attributes)


def stored_span(name: str, traceparent: str, **attributes: Any) -> AbstractContextManager[Any]:
    """A span for work on a stored value that has the `traceparent` of a trace."""
    if _state.tracing is None or not traceparent:
        return _NOTHING
    return _state.tracing.message_span(name, {HEADER: traceparent}, "CONSUMER", attributes)


def span(name: str, kind: Kind = "INTERNAL", **attributes: Any) -> AbstractContextManager[Any]:
    """A span for one step of the current trace."""
    return _NOTHING if _state.tracing is None else _state.tracing.span(name, kind, attributes)


def request_span(subject: str) -> AbstractContextManager[Any]:
    """A span for a request. It is named after the subject without the names in it, of which there are too many."""
    if _state.tracing is None:
        return _NOTHING
    parts = subject.split(".", 3)
    return span(f"request {'.'.join(parts[:2] if parts[0] == '$KV' else parts[:3])}", "CLIENT")


def open_client_span(name: str, **attributes: Any) -> Any:
    """Starts a span for work of others in the background. The caller ends it. None outside of a trace."""
    return None if _state.tracing is None else _state.tracing.open_client_span(name, attributes)


def end_as_timeout(span: Any) -> None:
    """Ends a span as a timeout."""
    span.set_attribute("error.type", "timeout")
    span.end()


def open_stored_span(name: str, traceparent: str, **attributes: Any) -> Any:
    """Starts a span in the trace of a stored value. The caller ends it. None if there is no trace."""
    if _state.tracing is None or not traceparent:
        return None
    return _state.tracing.open_stored_span(name, {HEADER: traceparent}, attributes)


def traceparent_of(span: Any) -> str:
    return (headers_of(span) or {}).get(HEADER, "")


def headers_of(span: Any) -> dict[str, str] | None:
    return None if span is None or _state.tracing is None else _state.tracing.headers_of(span)


def headers(more: dict[str, str] | None = None) -> dict[str, str] | None:
    """Returns the headers of a message with the current trace added."""
    return more if _state.tracing is None else _state.tracing.headers(more)


def traceparent() -> str:
    """Returns the `traceparent` of the current span for a stored value; empty if there is none."""
    return "" if _state.tracing is None else str((_state.tracing.headers(None) or {}).get(HEADER, ""))


def current_ids() -> Iterable[tuple[str, str]]:
    """Returns the ids of the current trace and span for log lines."""
    return () if _state.tracing is None else _state.tracing.current_ids()
