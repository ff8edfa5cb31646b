"""Base of HTTP servers in place of an API server, which fail on command, drop connections and count requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self

import msgspec
from aiohttp import web

Object = dict[str, Any]


def status(code: int, reason: str = "", message: str = "") -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message or reason,
    }


def failure(code: int, reason: str) -> web.Response:
    return web.json_response(status(code, reason), status=code)


def error_event(code: int, reason: str) -> bytes:
    """Returns the event by which an API server ends a watch."""
    return msgspec.json.encode({"type": "ERROR", "object": status(code, reason)}) + b"\n"


def hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


class FailingServer(ABC):
    """`fault` names, for a request, the failure to answer it with; empty for none. `requests` has the time of each request."""

    def __init__(self) -> None:
        self.fault: Callable[[web.Request], str] = lambda request: ""
        self.requests: list[tuple[float, str]] = []
        self.port = 0
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def listen(self) -> None:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Stops listening, so that connections are refused."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut(self) -> None:
        """Drops all open watches."""
        for task in list(self._streams):
            task.cancel()

    def count(self, since: float) -> int:
        return sum(1 for t, _ in self.requests if t >= since)

    def most(self, since: float) -> int:
        """Returns the largest number of requests within one second."""
        times = sorted(t for t, _ in self.requests if t >= since)
        return max((sum(1 for u in times if t <= u < t + 1) for t in times), default=0)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((time.monotonic(), f"{request.method} {request.path_qs}"))
        fault = self.fault(request)
        if fault == "html":
            return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "abort":
            hang_up(request)
            return web.Response()
        return await self._answer(request, fault)

    @abstractmethod
    async def _answer(self, request: web.Request, fault: str) -> web.StreamResponse:
        """`fault`: one that only this server knows, or none."""

    @contextlib.contextmanager
    def _streaming(self) -> Iterator[None]:
        """Lets `cut` drop the response that is written meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            yield
        finally:
            self._streams.discard(task)
