"""Serves the commands of `moorage node`, probes and metrics by HTTP on a socket of the agent's own user."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec

from . import grpc_unix

#: The largest request: manifests to simulate.
MAX_BODY = 1 << 20
#: Requests that are answered at once, seconds that a client may take for its request, and that an answer may take.
_AT_ONCE, _CLIENT_TIMEOUT, _ANSWER_TIMEOUT = 4, 10.0, 60.0
_encode = msgspec.json.Encoder(order="deterministic").encode

Answer = Mapping[str, Any]


class OperationRefused(Exception):
    """An operation that cannot be done; the text says why and what to do."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Operations(Protocol):
    """The interface for commands of a running agent."""

    def ready(self) -> list[str]:
        """Returns what is missing before pods can be admitted."""

    def metrics_text(self) -> str: ...

    async def allocations(self, pod: str) -> list[Answer]: ...

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


class _Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes


class _Response(NamedTuple):
    body: bytes
    status: int = 200
    kind: str = "application/json"


class HttpApi:
    """An HTTP server of few, short requests. Each is read and answered by a thread; what it asks for is done in the event loop."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._listener: socket.socket | None = None
        self._threads = ThreadPoolExecutor(_AT_ONCE, "http")
        self._routes: dict[tuple[str, str], Callable[[_Request], Awaitable[_Response]]] = {
            ("GET", "/livez"): _text(lambda: (200, "ok\n")),
            ("GET", "/readyz"): _text(self._readyz),
            ("GET", "/metrics"): _text(lambda: (200, operations.metrics_text())),
            ("GET", "/v1/allocations"): _items(lambda r: operations.allocations(r.query.get("pod", ""))),
            ("GET", "/v1/pools"): _items(lambda r: operations.pools()),
            ("POST", "/v1/pools"): self._set_pools,
            ("GET", "/v1/zones"): _items(lambda r: operations.zones()),
            ("GET", "/v1/plugins"): _items(lambda r: operations.plugins()),
            ("GET", "/v1/status"): _one(lambda r: operations.status()),
            ("GET", "/v1/why"): _one(lambda r: operations.why(r.query.get("pod", ""))),
            ("POST", "/v1/simulate"): _items(lambda r: operations.simulate(r.body)),
            ("GET", "/v1/check"): _items(lambda r: operations.check()),
            ("POST", "/v1/detach"): _one(lambda r: operations.detach()),
            ("POST", "/v1/reset"): _one(lambda r: operations.reset()),
        }

    async def start(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        listener = self._listener = _listen(path)
        loop.add_reader(listener, self._accept, listener, loop)

    async def stop(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _accept(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the client has gone away
        allowed = grpc_unix.peer_uid(connection) in grpc_unix.own_users()

        def ask(request: _Request) -> _Response:
            if not allowed:
                return _problem("not allowed", "only root and the agent's own user may ask", 403)
            return asyncio.run_coroutine_threadsafe(self._answer(request), loop).result(_ANSWER_TIMEOUT)

        self._threads.submit(_serve, connection, ask)

    async def _answer(self, request: _Request) -> _Response:
        route = self._routes.get((request.method, request.path))
        if route is None:
            there = any(path == request.path for _, path in self._routes)
            return _problem("Method not allowed", "", 405) if there else _problem("Not found", request.path, 404)
        try:
            return await route(request)
        except OperationRefused as refused:
            return _problem("Refused", str(refused), refused.status)

    def _readyz(self) -> tuple[int, str]:
        missing = self._operations.ready()
        return (503, "".join(f"waiting for {what}\n" for what in missing)) if missing else (200, "ok\n")

    async def _set_pools(self, request: _Request) -> _Response:
        try:
            wanted = msgspec.json.decode(request.body, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise OperationRefused(f"the body is no map of pools to CPUs: {error}") from error
        return _json({"items": await self._operations.set_pools(wanted)})


def _listen(path: Path) -> socket.socket:
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
    listener.setblocking(False)
    return listener


def _serve(connection: socket.socket, ask: Callable[[_Request], _Response]) -> None:
    """Reads one request, and answers it."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_TIMEOUT
        server_version, sys_version = "moorage-node", ""

        def do_GET(self) -> None:
            self._respond(b"")

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "0")
            if not length.isascii() or not length.isdigit() or "Transfer-Encoding" in self.headers:
                self.send_error(411)
            elif int(length) > MAX_BODY:
                self.send_error(413)
            else:
                self._respond(self.rfile.read(int(length)))

        def _respond(self, body: bytes) -> None:
            target = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(target.query).items()}
            try:
                response = ask(_Request(self.command, target.path, query, body))
            except Exception as error:  # noqa: BLE001 - an error of the agent is the client's to know
                response = _problem("Internal error", f"{type(error).__name__}: {error}", 500)
            self.send_response(response.status)
            self.send_header("Content-Type", response.kind)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing: who may ask may see everything."""

    with connection:
        try:
            connection.settimeout(_CLIENT_TIMEOUT)
            Handler(connection, ("", 0), None)  # type: ignore[arg-type]
        except OSError:
            return  # the client has gone away


def _text(answer: Callable[[], tuple[int, str]]) -> Callable[[_Request], Awaitable[_Response]]:
    async def handle(_request: _Request) -> _Response:
        status, text = answer()
        return _Response(text.encode(), status, "text/plain; charset=utf-8")

    return handle


def _items(answer: Callable[[_Request], Any]) -> Callable[[_Request], Awaitable[_Response]]:
    async def handle(request: _Request) -> _Response:
        return _json({"items": await _done(answer(request))})

    return handle


def _one(answer: Callable[[_Request], Any]) -> Callable[[_Request], Awaitable[_Response]]:
    async def handle(request: _Request) -> _Response:
        return _json(await _done(answer(request)))

    return handle


async def _done(answer: Any) -> Any:
    return await answer if isinstance(answer, Awaitable) else answer


def _json(body: Any, status: int = 200) -> _Response:
    return _Response(_encode(body), status)


def _problem(title: str, detail: str, status: int) -> _Response:
    return _json({"title": title, "detail": detail}, status)
