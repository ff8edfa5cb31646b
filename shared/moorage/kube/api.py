"""Requests to one API server: every one bounded in time, refusals with what the server said, and one pace for all tasks
while the server fails: what many of them ask of it adds up."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

#: Seconds between requests while the server fails: with a lease being renewed beside it never more than two in a second.
SPACING = 1.05
#: A watch that was open for this long shows that the server is well again.
WELL_AFTER = 0.5
TIMEOUT = 10.0
_MAX_LINE = 64 << 20
_JSON = "application/json"
_BRIEF = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

Headers = Callable[[], Awaitable[dict[str, str]]]


class Status(msgspec.Struct, kw_only=True, rename="camel"):
    """What the server says of a request it refuses."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


class ApiError(Exception):
    """The server refused."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def expired(self) -> bool:
        """What was asked for is too old: 410 in any of its forms."""
        return self.code == 410 or self.reason in ("Expired", "Gone")

    @property
    def passing(self) -> bool:
        """Nothing about the request is wrong: later it may do."""
        return self.code >= 500 or self.code in (408, 429)


class Unreachable(Exception):
    """No answer of an API server: refused, cut, too late, or somebody else's words."""


T = TypeVar("T")


def decoded(data: bytes, kind: type[T]) -> T:
    """What is not what it should be comes from somebody else than an API server."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreachable(f"an answer that cannot be read: {error}") from error


class Silent(Unreachable):
    """A stream that says nothing for longer than it should."""


def refusal(code: int, body: bytes) -> ApiError:
    with contextlib.suppress(msgspec.DecodeError):
        status = msgspec.json.decode(body, type=Status)
        if status.kind == "Status":
            return ApiError(status.code or code, status.reason, status.message or status.reason)
    text = body[:200].decode("utf-8", "replace").strip()
    return ApiError(code, "", f"HTTP {code}: {text}" if text else f"HTTP {code}")


class TurnQueue:
    """When the next request to a failing server may go, whoever makes it."""

    def __init__(self) -> None:
        self.next = 0.0
        self.urgent = 0


class Pace:
    """While the server fails, one request after the other for all tasks together; as soon as it is well, all at once."""

    def __init__(self, turns: TurnQueue) -> None:
        self._turns = turns
        self._well = asyncio.Event()
        self._well.set()

    @property
    def failing(self) -> bool:
        return not self._well.is_set()

    def fail(self) -> None:
        if self._well.is_set():
            self._well.clear()
            first = asyncio.get_running_loop().time() + SPACING * random.uniform(0.3, 1)
            self._turns.next = max(self._turns.next, first)

    def well(self) -> None:
        self._well.set()

    async def turn(self, *, urgent: bool = False) -> None:
        """`urgent`: what was begun is ended before anything else begins."""
        turns, loop = self._turns, asyncio.get_running_loop()
        turns.urgent += urgent
        try:
            while self.failing:
                now = loop.time()
                if now >= turns.next and (urgent or not turns.urgent):
                    # From when it really goes: turns that come late do not make the next ones come closer.
                    turns.next = now + SPACING
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(max(turns.next, now + 0.02)):
                        await self._well.wait()
        finally:
            turns.urgent -= urgent


class Api:
    """`headers` gives what authenticates a request, anew for each: tokens are replaced while we run."""

    def __init__(
        self,
        url: str,
        *,
        headers: Headers | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        proxy: str | None = None,
        renew: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        turns = TurnQueue()
        #: Of single requests, and of lists and watches: one collection that cannot be followed slows down no request.
        self.pace, self.following = Pace(turns), Pace(turns)
        self._headers, self._renew = headers, renew
        self._server_name, self._proxy = server_name, proxy
        self._tls = tls
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    def _open(self) -> aiohttp.ClientSession:
        """While the server fails each request has a connection of its own: those that were kept may be dead."""
        anew = self.pace.failing or self.following.failing
        session = self._sessions.get(anew)
        if session is None:
            tls = self._tls if self._tls is not None else True
            connector = aiohttp.TCPConnector(limit=64, ssl=tls, force_close=anew)
            session = aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=1 << 20)
            # Where a connection is dropped, the client would by itself ask once more; there is no public way to say no.
            session._retry_connection = not anew
            self._sessions[anew] = session
        return session

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions = {}

    async def _arguments(self, content_type: str = "", accept: str = _JSON) -> dict[str, Any]:
        headers = {"Accept": accept, "User-Agent": "moorage-agent"}
        if self._headers is not None:
            headers |= await self._headers()
        if content_type:
            headers["Content-Type"] = content_type
        arguments: dict[str, Any] = {"headers": headers, "proxy": self._proxy}
        if self._server_name:
            arguments["server_hostname"] = self._server_name
        return arguments

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
        """The status and the body of an answer below 300; ApiError or Unreachable otherwise. `paced`: waits for its
        turn, and its answer shows that the server is well again."""
        if paced:
            await self.pace.turn()
        try:
            async with asyncio.timeout(timeout):
                arguments = await self._arguments(content_type if body is not None else "", accept)
                async with self._open().request(
                    method, self.url + path, params=query, data=body, **arguments
                ) as response:
                    data = await response.read()
                    code = response.status
        except TimeoutError as error:
            self.is_failing()
            raise Unreachable(f"{method} {path}: no answer within {timeout:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.is_failing()
            raise Unreachable(f"{method} {path}: {str(error) or type(error).__name__}") from error
        if code >= 300:
            await self._refused(code, data)
            raise refusal(code, data)
        if "json" not in response.content_type and data:
            self.is_failing()
            raise Unreachable(f"{method} {path}: {response.content_type} instead of JSON; this is no API server")
        if paced:
            self.pace.well()
        return code, data

    def is_failing(self) -> None:
        self.pace.fail()
        self.following.fail()

    def is_well(self) -> None:
        self.pace.well()
        self.following.well()

    async def _refused(self, code: int, body: bytes) -> None:
        # A webhook that fails is a 500 of one object, in the server's own words.
        if code in (429, 502, 503, 504) or (code >= 500 and b'"Status"' not in body):
            self.is_failing()
        if code == 401 and self._renew is not None:
            await self._renew()

    async def get(
        self, path: str, *, query: Mapping[str, str] | None = None, brief: bool = False
    ) -> dict[str, Any] | None:
        """An object, or only its metadata; None where there is none."""
        try:
            _, data = await self.call("GET", path, query=query, accept=_BRIEF if brief else _JSON)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return decoded(data, dict[str, Any])

    async def stream(
        self, path: str, query: Mapping[str, str], silence: float, *, urgent: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a watch. An empty one first, once the server has accepted it. Silence is an end like any other."""
        await self.following.turn(urgent=urgent)
        try:
            async with asyncio.timeout(TIMEOUT):
                arguments = await self._arguments()
                arguments["timeout"] = aiohttp.ClientTimeout(total=None)
                response = await self._open().get(self.url + path, params=query, **arguments)
        except TimeoutError as error:
            self.is_failing()
            raise Unreachable(f"{path}: no answer within {TIMEOUT:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.is_failing()
            raise Unreachable(f"{path}: {str(error) or type(error).__name__}") from error
        try:
            if response.status >= 300:
                async with asyncio.timeout(TIMEOUT):
                    body = await response.content.read(4096)
                await self._refused(response.status, body)
                raise refusal(response.status, body)
            yield b""
            rest = b""
            while True:
                async with asyncio.timeout(silence):
                    chunk = await response.content.readany()
                if not chunk:
                    return  # what is left without a line's end was cut off
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                if len(rest) > _MAX_LINE:
                    raise Unreachable(f"{path}: an event of more than {_MAX_LINE} bytes")
                for line in lines:
                    if line:
                        yield line
        except TimeoutError as error:
            raise Silent(f"{path}: silent for {silence:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{path}: {str(error) or type(error).__name__}") from error
        finally:
            response.close()
