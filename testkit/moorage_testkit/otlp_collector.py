"""Collects OpenTelemetry spans that are exported over OTLP/HTTP."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Span(NamedTuple):
    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, str]


class OtlpCollector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer._take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def env(self) -> dict[str, str]:
        """The environment of processes that shall export here without delay."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def _take(self, body: bytes) -> None:
        found = ExportTraceServiceRequest.FromString(body)
        for of_process in found.resource_spans:
            names = {one.key: one.value.string_value for one in of_process.resource.attributes}
            for scope in of_process.scope_spans:
                for span in scope.spans:
                    about = {one.key: one.value.string_value for one in span.attributes}
                    self.spans.append(
                        Span(
                            names.get("service.name", ""),
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            about,
                        )
                    )

    def of(self, trace: str) -> dict[str, Span]:
        return {span.id: span for span in list(self.spans) if span.trace == trace}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
