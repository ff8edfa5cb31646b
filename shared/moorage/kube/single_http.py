"""Sends each request over a connection of its own, with nothing but asyncio: for processes that send few and must stay small."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from .http_transport import TransportFailed

#: The largest line of a head, its most lines, the largest body, and how much of it is read at a time.
_MAX_LINE, _MAX_LINES, _MAX_BODY, _CHUNK = 64 << 10, 200, 256 << 20, 1 << 16
_ERRORS = (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class SingleHttp:
    def __init__(
        self, tls: ssl.SSLContext | None = None, server_name: str | None = None, proxy: str | None = None
    ) -> None:
        self._tls, self._server_name, self._proxy = tls, server_name, proxy

    async def close(self) -> None:
        """There is nothing to close: connections end with their answers."""

    async def send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        anew: bool,
    ) -> SingleAnswer:
        place = urlsplit(url)
        target = quote(place.path or "/", safe="/%:~") + (f"?{urlencode(query)}" if query else "")
        try:
            connection, through = await self._connect(place)
        except _ERRORS as error:
            raise _failed(error) from error
        if through:
            target = f"http://{place.netloc}{target}"
        given = {"Host": place.netloc, "Connection": "close", **headers}
        if body is not None:
            given["Content-Length"] = str(len(body))
        try:
            _write_head(connection, f"{method} {target} HTTP/1.1", given)
            connection.writer.write(body or b"")
            await connection.writer.drain()
            head = await _read_head(connection)
            while head.status < 200:
                head = await _read_head(connection)
        except BaseException as error:
            connection.writer.close()
            if isinstance(error, _ERRORS):
                raise _failed(error) from error
            raise
        return SingleAnswer(connection, method, head)

    async def _connect(self, place: SplitResult) -> tuple[_Connection, bool]:
        """Connects, over a proxy where one is set. Returns whether the proxy has to read the requests."""
        secure = place.scheme == "https"
        host, port = place.hostname or "", place.port or (443 if secure else 80)
        tls = (self._tls or ssl.create_default_context()) if secure else None
        name = self._server_name or host
        proxy = self._proxy or _proxy_of(place)
        if not proxy:
            opened = asyncio.open_connection(
                host, port, limit=_MAX_LINE, ssl=tls, server_hostname=name if secure else None
            )
            return _Connection(*await opened), False
        via = urlsplit(proxy)
        if via.scheme != "http":
            raise TransportFailed(f"the proxy {proxy} is none by http, the only kind that this process uses")
        connection = _Connection(*await asyncio.open_connection(via.hostname or "", via.port or 80, limit=_MAX_LINE))
        if tls is None:
            return connection, True
        try:
            _write_head(connection, f"CONNECT {host}:{port} HTTP/1.1", {"Host": f"{host}:{port}"})
            head = await _read_head(connection)
            if head.status != 200:
                raise TransportFailed(f"the proxy {proxy} answers HTTP {head.status}")
            await connection.writer.start_tls(tls, server_hostname=name)
        except BaseException:
            connection.writer.close()
            raise
        return connection, False


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Head(NamedTuple):
    status: int
    headers: Mapping[str, str]


class SingleAnswer:
    """An answer. Its connection ends with it."""

    def __init__(self, connection: _Connection, method: str, head: _Head) -> None:
        self._connection, self.status = connection, head.status
        self.content_type = head.headers.get("content-type", "").partition(";")[0].strip()
        self._chunked = "chunked" in head.headers.get("transfer-encoding", "").lower()
        length = head.headers.get("content-length", "")
        #: Bytes of the body, or of its current chunk, that are still to come; None: it ends with the connection.
        self._left: int | None = int(length) if length.isdecimal() and not self._chunked else None
        if self._chunked or method == "HEAD" or head.status in (204, 304):
            self._left = 0
        self._ended = not self._chunked and self._left == 0

    async def read(self) -> bytes:
        parts, size = [], 0
        while part := await self.read_any():
            size += len(part)
            if size > _MAX_BODY:
                self.close()
                raise TransportFailed(f"the answer has more than {_MAX_BODY} bytes")
            parts.append(part)
        return b"".join(parts)

    async def read_any(self) -> bytes:
        try:
            found = b"" if self._ended else await self._read_some()
        except _ERRORS as error:
            self.close()
            raise _failed(error) from error
        if not found:
            self.close()
        return found

    async def _read_some(self) -> bytes:
        reader = self._connection.reader
        if self._chunked and not self._left:
            self._left = await self._next_chunk()
            if not self._left:
                self._ended = True
                return b""
        found = await reader.read(_CHUNK if self._left is None else min(_CHUNK, self._left))
        if self._left is None:
            return found
        if not found:
            raise asyncio.IncompleteReadError(b"", self._left)
        self._left -= len(found)
        if not self._left and self._chunked:
            await reader.readexactly(2)
        self._ended = not self._left and not self._chunked
        return found

    async def _next_chunk(self) -> int:
        """Reads the size of the next chunk, and after the last one the rest of the answer."""
        reader = self._connection.reader
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        if size < 0:
            raise ValueError("a chunk of a negative size")
        while not size and (await reader.readuntil(b"\r\n")).strip():
            pass  # trailers
        return size

    def close(self) -> None:
        self._ended = True
        self._connection.writer.close()


def _write_head(connection: _Connection, first: str, headers: Mapping[str, str]) -> None:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header has more than one line")
    connection.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


async def _read_head(connection: _Connection) -> _Head:
    first, *lines = [await connection.reader.readuntil(b"\r\n")]
    version, _, rest = first.decode("latin-1").strip().partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{first[:80]!r} is no answer by HTTP")
    while (line := await connection.reader.readuntil(b"\r\n")) != b"\r\n":
        lines.append(line)
        if len(lines) > _MAX_LINES:
            raise ValueError(f"the answer has more than {_MAX_LINES} headers")
    pairs = (line.decode("latin-1").partition(":") for line in lines)
    return _Head(int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs})


def _proxy_of(place: SplitResult) -> str:
    """Returns the proxy that the environment names for an address; "" without one."""
    if not any(name.lower() in ("http_proxy", "https_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass

    return "" if proxy_bypass(place.netloc) else getproxies().get(place.scheme, "")


def _failed(error: BaseException) -> TransportFailed:
    if isinstance(error, asyncio.IncompleteReadError):
        return TransportFailed("the connection ended within the answer")
    return TransportFailed(str(error) or type(error).__name__)
