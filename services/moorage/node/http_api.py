"""Serves the commands of `moorage node`, probes and metrics by HTTP on a socket of the agent's own user."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
from aiohttp import web

from . import grpc_unix

log = structlog.get_logger("node")

#: The largest request: manifests to simulate.
MAX_BODY = 1 << 20
_encode = msgspec.json.Encoder(order="deterministic").encode

Answer = Mapping[str, Any]


class OperationRefused(Exception):
    """An operation that cannot be done; the text says why and what to do."""

    def __init__(self, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.status = status


class Operations(Protocol):
    """What the commands ask of a running agent."""

    def ready(self) -> list[str]:
        """Returns what is missing before pods can be admitted."""

    def metrics_text(self) -> str: ...

    def allocations(self, pod: str) -> list[Answer]: ...

    def pools(self) -> list[Answer]: ...

    async def set_pools(self, wanted: Mapping[str, str]) -> list[Answer]: ...

    async def zones(self) -> list[Answer]: ...

    def plugins(self) -> list[Answer]: ...

    def status(self) -> Answer: ...

    def why(self, pod: str) -> Answer: ...

    async def simulate(self, manifests: bytes) -> list[Answer]: ...

    async def check(self) -> list[Answer]: ...

    async def detach(self) -> Answer: ...

    async def reset(self) -> Answer: ...


class HttpApi:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._runner: web.AppRunner | None = None

    async def start(self, path: Path) -> None:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_checked])
        operations = self._operations
        app.router.add_get("/livez", _text(lambda: (200, "ok\n")))
        app.router.add_get("/readyz", _text(self._readyz))
        app.router.add_get("/metrics", _text(lambda: (200, operations.metrics_text())))
        app.router.add_get("/v1/allocations", _items(lambda r: operations.allocations(r.query.get("pod", ""))))
        app.router.add_get("/v1/pools", _items(lambda r: operations.pools()))
        app.router.add_post("/v1/pools", self._set_pools)
        app.router.add_get("/v1/zones", _items(lambda r: operations.zones()))
        app.router.add_get("/v1/plugins", _items(lambda r: operations.plugins()))
        app.router.add_get("/v1/status", _one(lambda r: operations.status()))
        app.router.add_get("/v1/why", _one(lambda r: operations.why(r.query.get("pod", ""))))
        app.router.add_post("/v1/simulate", self._simulate)
        app.router.add_get("/v1/check", _items(lambda r: operations.check()))
        app.router.add_post("/v1/detach", _one(lambda r: operations.detach()))
        app.router.add_post("/v1/reset", _one(lambda r: operations.reset()))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, _listener(path)).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _readyz(self) -> tuple[int, str]:
        missing = self._operations.ready()
        return (503, "".join(f"waiting for {what}\n" for what in missing)) if missing else (200, "ok\n")

    async def _set_pools(self, request: web.Request) -> web.StreamResponse:
        try:
            wanted = msgspec.json.decode(await request.read(), type=dict[str, str])
        except msgspec.DecodeError as error:
            raise OperationRefused(f"the body is no map of pools to CPUs: {error}", 400) from error
        return _json({"items": await self._operations.set_pools(wanted)})

    async def _simulate(self, request: web.Request) -> web.StreamResponse:
        return _json({"items": await self._operations.simulate(await request.read())})


def _listener(path: Path) -> socket.socket:
    """Listens on a socket that only the user of this process may connect to."""
    grpc_unix.make_private(path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


@web.middleware
async def _checked(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Lets only root and the agent's own user in, and turns refusals into answers."""
    connection = request.transport.get_extra_info("socket") if request.transport is not None else None
    if connection is None or grpc_unix.peer_uid(connection) not in grpc_unix.own_users():
        return _json({"title": "not allowed", "detail": "only root and the agent's own user may ask"}, 403)
    try:
        return await handler(request)
    except OperationRefused as refused:
        return _json({"title": "Refused", "detail": str(refused)}, refused.status)


def _text(answer: Callable[[], tuple[int, str]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_request: web.Request) -> web.StreamResponse:
        status, text = answer()
        return web.Response(status=status, text=text)

    return handle


def _items(answer: Callable[[web.Request], Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return _json({"items": await _done(answer(request))})

    return handle


def _one(answer: Callable[[web.Request], Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return _json(await _done(answer(request)))

    return handle


async def _done(answer: Any) -> Any:
    return await answer if isinstance(answer, Awaitable) else answer


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=_encode(body), status=status, content_type="application/json")
