"""Serves /livez, /readyz and /metrics of a worker, for probes and Prometheus, if an address is configured."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .health import ProcessHealth

VARIABLE = "MOORAGE_METRICS"


def listen(address: str) -> socket.socket:
    """Opens HOST:PORT; port 0 takes a free one."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, int(port)))
    except BaseException:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


def from_env() -> socket.socket | None:
    address = os.environ.get(VARIABLE, "")
    try:
        return listen(address) if address else None
    except ValueError:
        raise SystemExit(f"{VARIABLE}={address} is not HOST:PORT") from None
    except (OSError, OverflowError) as error:
        raise SystemExit(f"{VARIABLE}={address}: {error}") from None


@asynccontextmanager
async def serve_health(process_health: ProcessHealth, sock: socket.socket | None) -> AsyncIterator[None]:
    """Serves the health of a worker from its start, so that one that cannot start shows what it waits for."""
    if sock is None:
        yield
        return
    from aiohttp import web
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        missing = process_health.missing()
        if missing:
            return web.Response(status=503, text=f"missing: {', '.join(missing)}\n")
        return web.Response(text="ok\n")

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(process_health.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, handle_signals=False)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield
    finally:
        await runner.cleanup()
