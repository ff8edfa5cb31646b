"""Traces with OpenTelemetry; imported only if they are configured. Endpoint, headers, sampling and resource attributes come
from OpenTelemetry's own environment variables."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_propagator = TraceContextTextMapPropagator()
_NOTHING: AbstractContextManager[Any] = nullcontext()


class Tracing:
    def __init__(self, worker: str) -> None:
        about = {
            "service.name": f"moorage-{worker}",
            "service.namespace": "moorage",
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        }
        # The variables take precedence, but Resource.create prefers its arguments.
        named = Resource.create().attributes
        unnamed = str(named.get("service.name", "")).startswith("unknown_service")
        about = {
            name: value for name, value in about.items() if name not in named or (unnamed and name == "service.name")
        }
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("moorage")

    def end(self, patience: int) -> None:
        # The exporter may retry for longer than a supervisor waits for this process.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(patience / 1e3)

    def _start(
        self, name: str, kind: str, attributes: Mapping[str, Any], context: Context | None
    ) -> AbstractContextManager[Any]:
        return self._tracer.start_as_current_span(
            name, context=context, kind=SpanKind[kind], attributes=dict(attributes), record_exception=False
        )

    def server_span(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        given = {key.lower(): value for key, value in headers.items()}
        return self._start(name, "SERVER", attributes, _propagator.extract(given, Context()))

    def message_span(
        self, name: str, headers: Mapping[str, str], kind: str, attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        context = _propagator.extract(headers, Context())
        if not trace.get_current_span(context).get_span_context().is_valid:
            return _NOTHING
        return self._start(name, kind, attributes, context)

    def span(self, name: str, kind: str, attributes: Mapping[str, Any]) -> AbstractContextManager[Any]:
        return self._start(name, kind, attributes, None) if _in_trace() else _NOTHING

    def open_client_span(self, name: str, attributes: Mapping[str, Any]) -> Any:
        if not _in_trace():
            return None
        return self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=dict(attributes))

    def open_stored_span(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any]) -> Any:
        context = _propagator.extract(headers, Context())
        if not trace.get_current_span(context).get_span_context().is_valid:
            return None
        return self._tracer.start_span(name, context=context, kind=SpanKind.CONSUMER, attributes=dict(attributes))

    def headers_of(self, span: Any) -> dict[str, str]:
        made: dict[str, str] = {}
        _propagator.inject(made, trace.set_span_in_context(span, Context()))
        return made

    def headers(self, more: dict[str, str] | None) -> dict[str, str] | None:
        if not _in_trace():
            return more
        made = dict(more or {})
        _propagator.inject(made)
        return made

    def current_ids(self) -> list[tuple[str, str]]:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return []
        return [("trace_id", f"{context.trace_id:032x}"), ("span_id", f"{context.span_id:016x}")]


def _in_trace() -> bool:
    return trace.get_current_span().get_span_context().is_valid
