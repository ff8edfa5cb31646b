"""Sends requests over connections that are kept for the next ones, with aiohttp."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import aiohttp

from .http_transport import TransportFailed


class PooledHttp:
    def __init__(
        self, tls: ssl.SSLContext | None = None, server_name: str | None = None, proxy: str | None = None
    ) -> None:
        self._tls, self._server_name, self._proxy = tls, server_name, proxy
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    def _session(self, anew: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(anew)
        if session is None:
            tls = self._tls if self._tls is not None else True
            connector = aiohttp.TCPConnector(limit=64, ssl=tls, force_close=anew)
            timeout = aiohttp.ClientTimeout(total=None)
            session = aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=1 << 20, timeout=timeout)
            # aiohttp retries a dropped connection once by itself, and has no public way to turn that off.
            session._retry_connection = not anew
            self._sessions[anew] = session
        return session

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions = {}

    async def send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        anew: bool,
    ) -> PooledAnswer:
        try:
            response = await self._session(anew).request(
                method,
                url,
                params=query,
                data=body,
                headers=headers,
                proxy=self._proxy,
                server_hostname=self._server_name or None,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error) from error
        return PooledAnswer(response)


class PooledAnswer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status, self.content_type = response.status, response.content_type

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error) from error

    async def read_any(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error) from error

    def close(self) -> None:
        self._response.close()


def _failed(error: Exception) -> TransportFailed:
    return TransportFailed(str(error) or type(error).__name__)
