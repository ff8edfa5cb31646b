"""Traces, where an OTLP endpoint is configured in OpenTelemetry's own variables. Elsewhere all of this is a look at one
variable, and OpenTelemetry is neither needed nor imported.

One trace leads from a request to the pods. Spans are made only within one: the gateway begins it, messages carry it in
their headers, and what is stored between two steps (a decision, desired state) carries it in a field."""

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
#: How long a process that ends waits for a collector to take its last spans.
_LAST = 1000


class _Off:
    """Whether traces are on, as an attribute: one look is all that who has none pays."""

    tracing: Tracing | None = None


_state = _Off()


def configured(env: Mapping[str, str] = os.environ) -> bool:
    wanted = any(env.get(name) for name in _ENDPOINTS)
    disabled = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none"
    return wanted and not disabled


def configure_traces(worker: str) -> None:
    """After the fork: exporting is a thread of this process."""
    if not configured():
        return
    try:
        from .otel import Tracing
    except ImportError as error:
        raise SystemExit(f"traces are configured but not installed ({error}): pip install 'moorage[traces]'") from error
    _state.tracing = Tracing(worker)


def end_traces() -> None:
    """Sends what is left. Bounded, for a collector that is away must not keep a worker from ending."""
    tracing, _state.tracing = _state.tracing, None
    if tracing is not None:
        tracing.end(_LAST)


def is_enabled() -> bool:
    return _state.tracing is not None


def server_span(name: str, headers: Mapping[str, str], **attributes: Any) -> AbstractContextManager[Any]:
    """A request from outside: goes on with its trace, or is the first of one. Gives the span, None where there is none."""
    return _NOTHING if _state.tracing is None else _state.tracing.server_span(name, headers, attributes)


def message_span(
    name: str, headers: Mapping[str, str] | None, kind: Kind = "SERVER", **attributes: Any
) -> AbstractContextManager[Any]:
    """A message that may be part of a trace."""
    if _state.tracing is None or not headers or HEADER not in headers:
        return _NOTHING
    return _state.tracing.message_span(name, headers, kind, attributes)


def stored_span(name: str, traceparent: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Work on something stored that came out of a trace."""
    if _state.tracing is None or not traceparent:
        return _NOTHING
    return _state.tracing.message_span(name, {HEADER: traceparent}, "CONSUMER", attributes)


def span(name: str, kind: Kind = "INTERNAL", **attributes: Any) -> AbstractContextManager[Any]:
    """A step of what is under way."""
    return _NOTHING if _state.tracing is None else _state.tracing.span(name, kind, attributes)


def request_span(subject: str) -> AbstractContextManager[Any]:
    """Somebody else's answer, waited for. Called what it is about, without the names in it, of which there are many."""
    if _state.tracing is None:
        return _NOTHING
    parts = subject.split(".", 3)
    return span(f"request {'.'.join(parts[:2] if parts[0] == '$KV' else parts[:3])}", "CLIENT")


def open_client_span(name: str, **attributes: Any) -> Any:
    """A span of something that others do while we go on: whoever gets it ends it. None outside of a trace."""
    return None if _state.tracing is None else _state.tracing.open_client_span(name, attributes)


def end_as_timeout(span: Any) -> None:
    """Ends a span of something that did not happen in time."""
    span.set_attribute("error.type", "timeout")
    span.end()


def open_stored_span(name: str, traceparent: str, **attributes: Any) -> Any:
    """A span of something stored that lasts until whoever gets it ends it. None outside of a trace."""
    if _state.tracing is None or not traceparent:
        return None
    return _state.tracing.open_stored_span(name, {HEADER: traceparent}, attributes)


def traceparent_of(span: Any) -> str:
    return (headers_of(span) or {}).get(HEADER, "")


def headers_of(span: Any) -> dict[str, str] | None:
    return None if span is None or _state.tracing is None else _state.tracing.headers_of(span)


def headers(more: dict[str, str] | None = None) -> dict[str, str] | None:
    """With them a message carries on the trace under way."""
    return more if _state.tracing is None else _state.tracing.headers(more)


def traceparent() -> str:
    """Of the span under way, for what is stored; empty where there is none."""
    return "" if _state.tracing is None else str((_state.tracing.headers(None) or {}).get(HEADER, ""))


def current_ids() -> Iterable[tuple[str, str]]:
    """For log lines."""
    return () if _state.tracing is None else _state.tracing.current_ids()
