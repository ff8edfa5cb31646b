"""Between an agent and a real API server, over plain HTTP: passes everything on, fails on command, and counts."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import aiohttp
import msgspec
from aiohttp import web

from .kube import ControlPlane
from .kube_script import status


class ApiProxy:
    """`fault` is asked before anything is passed on: what it returns is what happens instead."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.fault: Callable[[web.Request], str] = lambda request: ""
        self.requests: list[tuple[float, str]] = []
        self.port = 0
        self._streams: set[asyncio.Task[object]] = set()
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    def kubeconfig(self) -> Path:
        config = self.plane.config()
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        file = self.plane.directory / f"proxy-{self.port}.kubeconfig"
        file.write_bytes(msgspec.json.encode(config))
        return file

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0))
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        assert self._session is not None
        await self._session.close()

    async def listen(self) -> None:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Nobody listens any more."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut(self) -> None:
        """Every open watch, without a farewell."""
        for task in list(self._streams):
            task.cancel()

    def most(self, since: float) -> int:
        """The most requests that came within any one second."""
        times = sorted(t for t, _ in self.requests if t >= since)
        return max((sum(1 for u in times if t <= u < t + 1) for t in times), default=0)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((time.monotonic(), f"{request.method} {request.path_qs}"))
        fault, watching = self.fault(request), bool(request.query.get("watch"))
        if fault == "html":
            return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "abort":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault == "503":
            return web.json_response(status(503, "ServiceUnavailable"), status=503)
        if fault == "410" and (watching or request.query.get("continue")):
            return web.json_response(status(410, "Expired"), status=410)
        if fault in ("event", "close") and watching:
            gone = msgspec.json.encode({"type": "ERROR", "object": status(410, "Expired")}) + b"\n"
            return web.Response(body=gone if fault == "event" else b"", content_type="application/json")
        return await self._pass_on(request, watching)

    async def _pass_on(self, request: web.Request, watching: bool) -> web.StreamResponse:
        assert self._session is not None
        sent = {k: v for k, v in request.headers.items() if k not in ("Host", "Content-Length", "Accept-Encoding")}
        task = asyncio.current_task()
        assert task is not None
        if watching:
            self._streams.add(task)
        try:
            async with self._session.request(
                request.method,
                self.plane.url + request.raw_path,
                data=await request.read() or None,
                headers=sent,
                timeout=aiohttp.ClientTimeout(total=None if watching else 30),
            ) as found:
                if not watching:
                    return web.Response(status=found.status, body=await found.read(), content_type=found.content_type)
                answer = web.StreamResponse(status=found.status, headers={"Content-Type": "application/json"})
                await answer.prepare(request)
                async for chunk in found.content.iter_any():
                    await answer.write(chunk)
                return answer
        except (asyncio.CancelledError, aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        finally:
            self._streams.discard(task)
