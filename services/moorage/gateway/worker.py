"""Entry point of the gateway: connects, starts mirrors, and serves HTTP until it is asked to end."""

from __future__ import annotations

import asyncio
import os
import socket

from aiohttp import web

from moorage.bus import Bus, Settings, setting
from moorage.mesh import Mesh
from moorage.web import listener_of

from . import api_docs, health, placement
from .audit import audit_requests
from .event_records import REJECTED, REJECTED_LOG, decode_rejected
from .event_stream import EventStream
from .listener import Certificate, HttpListener
from .middleware import GATEWAY, Gateway, authenticate, count_requests, render_errors
from .rate_limits import BODY_LIMIT, Limits
from .read_model import ReadModel
from .request_tracing import trace_requests
from .route import PASSED_ON, add_routes
from .routes import V1
from .v2 import routes as v2

DEFAULT_HTTP = "127.0.0.1:7070"


def build(gateway: Gateway) -> web.Application:
    """Builds the application with all middlewares and routes."""
    app = web.Application(
        middlewares=[count_requests, audit_requests, trace_requests, render_errors, authenticate],
        client_max_size=BODY_LIMIT,
    )
    app[GATEWAY] = gateway
    gateway.bus.process_health.add_values(lambda: health.view_metrics(gateway))
    api_docs.prepare(app)
    add_routes(app, V1)
    v2.add_v2_routes(app, gateway)
    for path in PASSED_ON:
        app.router.add_route("*", path, placement.pass_on)
    return app


async def main(settings: Settings, *, mesh: Mesh, listener: socket.socket | None = None, token: str = "") -> None:
    """`listener` and `token` come from the supervisor; alone, MOORAGE_HTTP and MOORAGE_TOKEN say them."""
    token = token or setting("MOORAGE_TOKEN")
    if not token:
        raise SystemExit("set MOORAGE_TOKEN: without a token, everybody could write")
    limits, certificate = Limits.from_env(), Certificate.from_env()
    bus = await Bus.connect(settings, worker="gateway")
    try:
        view, stream = ReadModel(bus, settings), EventStream(bus)
        rejected = EventStream(bus, REJECTED, REJECTED_LOG, decode_rejected)
        gateway = Gateway(bus, view, stream, rejected, token, mesh, limits=limits)
        await gateway.tokens.start()
        await view.start()
        v2.start(gateway)
        await stream.start()
        await rejected.start()
        runner = web.AppRunner(build(gateway), access_log=None, shutdown_timeout=1.0, handle_signals=False)
        await runner.setup()
        sock = listener if listener is not None else listener_of(os.environ.get("MOORAGE_HTTP", DEFAULT_HTTP))
        assert runner.server is not None
        http = HttpListener(runner.server, bus, limits.connections, certificate)
        await http.open(sock)
        gateway.ready = True
        await bus.announce(lambda: {"ok": not view.missing(), "missing": view.missing()})
        try:
            await bus.closed.wait()
        finally:
            gateway.ready = False
            http.close()
            await stream.stop()
            await rejected.stop()
            await runner.cleanup()
            await gateway.audit.flush()
            await gateway.session.close()
            await view.stop()
    finally:
        await asyncio.shield(bus.close())
