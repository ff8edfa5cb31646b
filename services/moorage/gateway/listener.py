"""Accepts HTTP connections up to a limit, with TLS if a certificate is configured. Renewed certificate files are loaded without
a restart."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Self, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod

from moorage.bus import Bus
from moorage.model.problems import Problem, with_defaults

from .responses import encode, problem_response, unavailable

log = structlog.get_logger("gateway")
#: Seconds between checks of the certificate files.
_WATCH_SECONDS = 1.0
#: Seconds until a refused connection is closed if it sends nothing.
_REFUSAL_SECONDS = 2.0
_HANDSHAKE_SECONDS = 10.0


class Certificate:
    """A certificate that is loaded again when its files change, for new connections. Files that do not match are ignored."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain, self._key = chain, key
        self._stamp = self._file_stamps()
        self.context = _context()
        self.context.load_cert_chain(chain, key)

    @classmethod
    def from_env(cls) -> Self | None:
        chain = os.environ.get("MOORAGE_TLS_CERT", "")
        if not chain:
            return None
        key = os.environ.get("MOORAGE_TLS_KEY", "") or chain
        try:
            return cls(Path(chain), Path(key))
        except OSError as error:  # includes ssl.SSLError
            raise SystemExit(f"MOORAGE_TLS_CERT {chain}, MOORAGE_TLS_KEY {key}: {error}") from None

    def _file_stamps(self) -> tuple[tuple[int, int, int], ...]:
        stats = (path.stat() for path in (self._chain, self._key))
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    def reload_if_changed(self) -> bool:
        """Loads changed files and returns whether there were any. Raises OSError for unusable files, which are tried again
        when they change."""
        stamp = self._file_stamps()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        # Load into an unused context first: a chain without a matching key would leave this one half changed.
        _context().load_cert_chain(self._chain, self._key)
        self.context.load_cert_chain(self._chain, self._key)
        return True

    async def watch(self, bus: Bus) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                if self.reload_if_changed():
                    bus.count("tls_reloads")
                    log.info("certificate reloaded", chain=str(self._chain))
            except OSError as error:
                bus.count("tls_reload_errors")
                log.error("cannot reload the certificate, keeping the previous one", error=str(error))


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


class _RefuseConnection(asyncio.Protocol):
    """Answers a connection above the limit with 503. It waits for the request first, because clients miss an answer that comes
    with an earlier close."""

    def __init__(self) -> None:
        body = encode(with_defaults(unavailable("the gateway's connection limit is reached")))
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        )
        self._answer = head.encode() + body
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._end = asyncio.get_running_loop().call_later(_REFUSAL_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._answer)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()


class _ProblemRequestHandler(web.RequestHandler):
    """Answers requests that cannot be routed, such as invalid HTTP, with problem documents too."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs the error
        phrase = HTTPStatus(status).phrase
        code = "MethodNotAllowed" if isinstance(exc, BadHttpMethod) else phrase.replace(" ", "")
        detail = " ".join(message.split())[:200] if message and status < 500 else ""
        response = problem_response(Problem(title=phrase, status=status, code=code, detail=detail))
        response.force_close()
        return response


class HttpListener:
    def __init__(self, server: web.Server, bus: Bus, connections: int, certificate: Certificate | None) -> None:
        self._server, self._bus, self._limit, self._certificate = server, bus, connections, certificate
        self._listening: asyncio.Server | None = None
        self._certificate_watch: asyncio.Task[None] | None = None

    def _make_protocol(self) -> asyncio.Protocol:
        if self._limit and len(self._server.connections) >= self._limit:
            self._bus.count("connections_refused")
            return _RefuseConnection()
        handler = self._server()
        handler.__class__ = _ProblemRequestHandler  # aiohttp has no option for this
        return handler

    async def open(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        if self._certificate is None:
            self._listening = await loop.create_server(self._make_protocol, sock=sock, backlog=512)
            return
        self._listening = await loop.create_server(
            self._make_protocol,
            sock=sock,
            backlog=512,
            ssl=self._certificate.context,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
        )
        self._certificate_watch = self._bus.spawn(self._certificate.watch(self._bus))

    def close(self) -> None:
        if self._certificate_watch is not None:
            self._certificate_watch.cancel()
        if self._listening is not None:
            self._listening.close()
