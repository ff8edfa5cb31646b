"""A proxy between an agent and a real API server, over plain HTTP, that fails on command and counts requests."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Self

import aiohttp
import msgspec
from aiohttp import web

from .control_plane import ControlPlane
from .failing_api import FailingServer, error_event, failure, hang_up


class ApiProxy(FailingServer):
    def __init__(self, plane: ControlPlane) -> None:
        super().__init__()
        self.plane = plane
        self._session: aiohttp.ClientSession | None = None

    def kubeconfig(self) -> Path:
        config = self.plane.config()
        config["clusters"][0]["cluster"] = {"server": self.url}
        file = self.plane.directory / f"proxy-{self.port}.kubeconfig"
        file.write_bytes(msgspec.json.encode(config))
        return file

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0))
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__(*_)
        assert self._session is not None
        await self._session.close()

    async def _answer(self, request: web.Request, fault: str) -> web.StreamResponse:
        watching = bool(request.query.get("watch"))
        if fault == "503":
            return failure(503, "ServiceUnavailable")
        if fault == "410" and (watching or request.query.get("continue")):
            return failure(410, "Expired")
        if fault in ("event", "close") and watching:
            body = error_event(410, "Expired") if fault == "event" else b""
            return web.Response(body=body, content_type="application/json")
        with self._streaming() if watching else contextlib.nullcontext():
            return await self._forward(request, watching)

    async def _forward(self, request: web.Request, watching: bool) -> web.StreamResponse:
        assert self._session is not None
        sent = {k: v for k, v in request.headers.items() if k not in ("Host", "Content-Length", "Accept-Encoding")}
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
            hang_up(request)
            return web.Response(status=502)
