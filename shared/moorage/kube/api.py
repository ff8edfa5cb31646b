"""Sends requests to one API server.

Every request has a timeout, and errors carry the message of the server. While the server fails, the requests of all tasks
share one rate limit, because retries of many tasks add up.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from .http_transport import Answer, Transport, TransportFailed

#: Seconds between requests while the server fails. With the renewal of a lease beside them, there are at most two per second.
REQUEST_INTERVAL = 1.05
#: A watch that stays open for this many seconds shows that the server is healthy again.
HEALTHY_AFTER = 0.5
TIMEOUT = 10.0
_MAX_LINE = 64 << 20
_JSON = "application/json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

Headers = Callable[[], Awaitable[dict[str, str]]]


class Status(msgspec.Struct, kw_only=True, rename="camel"):
    """The `Status` object in the answer to a refused request."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


class ApiError(Exception):
    """The server refused the request."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def is_expired(self) -> bool:
        """The resourceVersion is too old: 410 Gone in any of its forms."""
        return self.code == 410 or self.reason in ("Expired", "Gone")

    @property
    def is_transient(self) -> bool:
        """The request is valid and may succeed later."""
        return self.code >= 500 or self.code in (408, 429)


class Unreachable(Exception):
    """No valid answer: the connection failed, the request timed out, or the answer is not from an API server."""


T = TypeVar("T")


def decode(data: bytes, kind: type[T]) -> T:
    """Decodes an answer. Raises Unreachable for one that no API server gives."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreachable(f"the answer cannot be decoded: {error}") from error


class WatchTimeout(Unreachable):
    """A watch sent neither an event nor a bookmark in time."""


def error_of(code: int, body: bytes) -> ApiError:
    """Returns the error in a refused request's answer, with the server's reason where it is a `Status`."""
    with contextlib.suppress(msgspec.DecodeError):
        status = msgspec.json.decode(body, type=Status)
        if status.kind == "Status":
            return ApiError(status.code or code, status.reason, status.message or status.reason)
    text = body[:200].decode("utf-8", "replace").strip()
    return ApiError(code, "", f"HTTP {code}: {text}" if text else f"HTTP {code}")


class RequestSchedule:
    """The time when the next request to a failing server may be sent, for all tasks, and how many urgent ones wait."""

    def __init__(self) -> None:
        self.next = 0.0
        self.urgent = 0


class RequestPacer:
    """Spaces out requests while the server fails, and lets all of them pass as soon as it is healthy."""

    def __init__(self, schedule: RequestSchedule) -> None:
        self._schedule = schedule
        self._healthy = asyncio.Event()
        self._healthy.set()

    @property
    def failing(self) -> bool:
        return not self._healthy.is_set()

    def mark_failing(self) -> None:
        if self._healthy.is_set():
            self._healthy.clear()
            first = asyncio.get_running_loop().time() + REQUEST_INTERVAL * random.uniform(0.3, 1)
            self._schedule.next = max(self._schedule.next, first)

    def mark_healthy(self) -> None:
        self._healthy.set()

    async def wait_turn(self, *, urgent: bool = False) -> None:
        """Waits until a request may be sent. `urgent` ones, which continue what was begun, go before all others."""
        schedule, loop = self._schedule, asyncio.get_running_loop()
        schedule.urgent += urgent
        try:
            while self.failing:
                now = loop.time()
                if now >= schedule.next and (urgent or not schedule.urgent):
                    # Counted from the actual time, so that a late request does not shorten the next interval.
                    schedule.next = now + REQUEST_INTERVAL
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(max(schedule.next, now + 0.02)):
                        await self._healthy.wait()
        finally:
            schedule.urgent -= urgent


class Api:
    """A connection to one API server. `headers` returns the credentials of each request, because tokens expire; `renew`
    reloads them after a 401. `transport` carries requests; without one they share kept connections by `tls`, `server_name` and
    `proxy`."""

    def __init__(
        self,
        url: str,
        *,
        headers: Headers | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        proxy: str | None = None,
        renew: Callable[[], Awaitable[None]] | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        schedule = RequestSchedule()
        #: One pacer for single requests and one for lists and watches: a collection that cannot be watched delays no request.
        self.request_pacer, self.watch_pacer = RequestPacer(schedule), RequestPacer(schedule)
        self._headers, self._renew = headers, renew
        if transport is None:
            from .pooled_http import PooledHttp  # its library takes 8 MB, which the agent of a node does without

            transport = PooledHttp(tls, server_name, proxy)
        self._transport = transport

    async def close(self) -> None:
        await self._transport.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None = None,
        content_type: str = "",
        accept: str = _JSON,
    ) -> Answer:
        """Sends a request. While the server fails, each uses a new connection, because kept ones may be dead."""
        headers = {"Accept": accept, "User-Agent": "moorage-agent"}
        if self._headers is not None:
            headers |= await self._headers()
        if content_type:
            headers["Content-Type"] = content_type
        failing = self.request_pacer.failing or self.watch_pacer.failing
        return await self._transport.send(method, self.url + path, query, body, headers, anew=failing)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        timeout: float = TIMEOUT,
        paced: bool = True,
    ) -> tuple[int, bytes]:
        """Returns the status and the body of a successful answer; raises ApiError or Unreachable otherwise. `paced`: the
        request waits for its turn, and its answer shows that the server is healthy."""
        if paced:
            await self.request_pacer.wait_turn()
        try:
            async with asyncio.timeout(timeout):
                answer = await self._send(method, path, query, body, content_type if body is not None else "", accept)
                try:
                    code, data = answer.status, await answer.read()
                finally:
                    answer.close()
        except TimeoutError as error:
            self.mark_failing()
            raise Unreachable(f"{method} {path}: no answer within {timeout:g} s") from error
        except (TransportFailed, OSError, ValueError) as error:
            self.mark_failing()
            raise Unreachable(f"{method} {path}: {str(error) or type(error).__name__}") from error
        if code >= 300:
            await self._note_error(code, data)
            raise error_of(code, data)
        if "json" not in answer.content_type and data:
            self.mark_failing()
            raise Unreachable(f"{method} {path}: {answer.content_type} instead of JSON; this is not an API server")
        if paced:
            self.request_pacer.mark_healthy()
        return code, data

    def mark_failing(self) -> None:
        self.request_pacer.mark_failing()
        self.watch_pacer.mark_failing()

    def mark_healthy(self) -> None:
        self.request_pacer.mark_healthy()
        self.watch_pacer.mark_healthy()

    async def _note_error(self, code: int, body: bytes) -> None:
        # A 500 with a Status concerns one object, like a failing webhook; any other 5xx concerns the server.
        if code in (429, 502, 503, 504) or (code >= 500 and b'"Status"' not in body):
            self.mark_failing()
        if code == 401 and self._renew is not None:
            await self._renew()

    async def get(
        self, path: str, *, query: Mapping[str, str] | None = None, brief: bool = False
    ) -> dict[str, Any] | None:
        """Reads an object, or only its metadata (`brief`). None: it does not exist."""
        try:
            _, data = await self.call("GET", path, query=query, accept=_METADATA_ONLY if brief else _JSON)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return decode(data, dict[str, Any])

    async def stream(
        self, path: str, query: Mapping[str, str], silence: float, *, urgent: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a watch, first an empty one when the server has accepted it. Raises WatchTimeout after
        `silence` seconds without a line."""
        await self.watch_pacer.wait_turn(urgent=urgent)
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._send("GET", path, query)
        except TimeoutError as error:
            self.mark_failing()
            raise Unreachable(f"{path}: no answer within {TIMEOUT:g} s") from error
        except (TransportFailed, OSError, ValueError) as error:
            self.mark_failing()
            raise Unreachable(f"{path}: {str(error) or type(error).__name__}") from error
        try:
            if answer.status >= 300:
                async with asyncio.timeout(TIMEOUT):
                    body = await answer.read_any()
                await self._note_error(answer.status, body)
                raise error_of(answer.status, body)
            yield b""
            rest = b""
            while True:
                async with asyncio.timeout(silence):
                    chunk = await answer.read_any()
                if not chunk:
                    return  # an incomplete last line was cut off
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                if len(rest) > _MAX_LINE:
                    raise Unreachable(f"{path}: an event of more than {_MAX_LINE} bytes")
                for line in filter(None, lines):
                    yield line
        except TimeoutError as error:
            raise WatchTimeout(f"{path}: silent for {silence:.0f} s") from error
        except TransportFailed as error:
            raise Unreachable(f"{path}: {error}") from error
        finally:
            answer.close()
