"""Starts and continues traces of requests, and sets the context of their log lines."""

from __future__ import annotations

from aiohttp import web

from moorage.telemetry import HANDLED, Handled, tracing

from .audit import request_id
from .route import Handler


@web.middleware
async def trace_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Starts a trace for requests that may change something; others only continue one."""
    HANDLED.set(
        Handled(f"{request.method} {request.path}", id=request_id(request))
    )  # the context is this connection's own
    if not tracing.is_enabled() or (request.method in ("GET", "HEAD") and tracing.HEADER not in request.headers):
        return await handler(request)
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else ""
    about = {"http.request.method": request.method, "http.route": route, "url.path": request.path}
    with tracing.server_span(f"{request.method} {route}".strip(), request.headers, **about) as span:
        response = await handler(request)
        span.set_attribute("http.response.status_code", response.status)
        return response
