"""Where callers come in: at most so many at once, and with a certificate over TLS, which follows the files: who renews a
certificate restarts nothing."""

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
from moorage.model.problems import Problem, whole

from .responses import encode, refuse, unavailable

log = structlog.get_logger("gateway")
#: How often the files are looked at; how long who is turned away has to say something first.
_LOOK, _PATIENCE = 1.0, 2.0
_HANDSHAKE = 10.0


class Certificate:
    """Connections made from now on get what the files hold now. Files that do not fit together change nothing."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain, self._key = chain, key
        self._stamp = self._seen()
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
        except OSError as error:  # ssl.SSLError is one, too
            raise SystemExit(f"MOORAGE_TLS_CERT {chain}, MOORAGE_TLS_KEY {key}: {error}") from None

    def _seen(self) -> tuple[tuple[int, int, int], ...]:
        found = (path.stat() for path in (self._chain, self._key))
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)

    def look(self) -> bool:
        """Whether there was something new. Raises OSError for files that cannot be used; tried again when they change."""
        stamp = self._seen()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        # First into one that nobody uses: a chain that the key does not belong to would stay half loaded.
        _context().load_cert_chain(self._chain, self._key)
        self.context.load_cert_chain(self._chain, self._key)
        return True

    async def follow(self, bus: Bus) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            try:
                if self.look():
                    bus.count("tls_reloads")
                    log.info("the certificate was renewed", chain=str(self._chain))
            except OSError as error:
                bus.count("tls_reload_errors")
                log.error("the certificate cannot be read again; the one before stays", error=str(error))


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


class _TurnedAway(asyncio.Protocol):
    """One too many is told so, once it has said something: who closes before that is not heard."""

    def __init__(self) -> None:
        body = encode(whole(unavailable("there are as many connections as this gateway takes")))
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        )
        self._answer = head.encode() + body
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._end = asyncio.get_running_loop().call_later(_PATIENCE, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._answer)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()


class _Problems(web.RequestHandler):
    """What is no HTTP, or a method that nobody knows, never comes to a route; it is refused in the same form."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # says it to the log, or that it is too late
        phrase = HTTPStatus(status).phrase
        code = "MethodNotAllowed" if isinstance(exc, BadHttpMethod) else phrase.replace(" ", "")
        detail = " ".join(message.split())[:200] if message and status < 500 else ""
        response = refuse(Problem(title=phrase, status=status, code=code, detail=detail))
        response.force_close()
        return response


class HttpListener:
    def __init__(self, server: web.Server, bus: Bus, connections: int, certificate: Certificate | None) -> None:
        self._server, self._bus, self._limit, self._certificate = server, bus, connections, certificate
        self._open: asyncio.Server | None = None
        self._following: asyncio.Task[None] | None = None

    def _enter(self) -> asyncio.Protocol:
        if self._limit and len(self._server.connections) >= self._limit:
            self._bus.count("connections_refused")
            return _TurnedAway()
        handler = self._server()
        handler.__class__ = _Problems  # the server knows no way to be told so
        return handler

    async def open(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        if self._certificate is None:
            self._open = await loop.create_server(self._enter, sock=sock, backlog=512)
            return
        self._open = await loop.create_server(
            self._enter, sock=sock, backlog=512, ssl=self._certificate.context, ssl_handshake_timeout=_HANDSHAKE
        )
        self._following = self._bus.spawn(self._certificate.follow(self._bus))

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        if self._open is not None:
            self._open.close()
