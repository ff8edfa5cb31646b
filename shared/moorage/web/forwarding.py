"""Passes HTTP requests on, and finds the placement worker that is active."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import msgspec
from aiohttp import hdrs, web

from moorage.bus import Bus, BusError, NoAnswer
from moorage.mesh import stores

#: The key beside the providers with the address of the active worker.
LEADER = "leader"

#: Seconds between two looks whether another worker became active, while a request waits for its answer.
LOOK_AGAIN = 1.0

#: Headers that belong to a connection and are not passed on.
_OF_CONNECTION = {
    hdrs.CONNECTION,
    hdrs.KEEP_ALIVE,
    hdrs.TE,
    hdrs.TRAILER,
    hdrs.TRANSFER_ENCODING,
    hdrs.UPGRADE,
    hdrs.HOST,
    hdrs.CONTENT_LENGTH,
    hdrs.CONTENT_ENCODING,
}


class Leader(msgspec.Struct):
    """The address of the active placement worker, and whether it believes every caller."""

    url: str = ""
    unchecked: bool = False


_leader = msgspec.json.Decoder(Leader).decode


async def placement_leader(bus: Bus) -> Leader | None:
    """Returns the placement worker that became active last, or None if none ever did."""
    entry = await bus.bucket(stores.PROVIDERS).get(LEADER)
    return None if entry is None else _leader(entry.value)


async def forward_to_leader(
    bus: Bus,
    leader: Leader,
    session: aiohttp.ClientSession,
    request: web.Request,
    path: str,
    prefix: str = "",
    user: str = "",
) -> web.StreamResponse:
    """Passes the request on like `forward`. Raises TimeoutError if another worker becomes active meanwhile: this one may be
    suspended, and what it still answers no longer counts."""
    passing = asyncio.create_task(forward(session, request, f"{leader.url}{path}", prefix, user))
    try:
        while not (await asyncio.wait([passing], timeout=LOOK_AGAIN))[0]:
            with contextlib.suppress(NoAnswer, BusError):
                now = await placement_leader(bus)
                if now is not None and now.url != leader.url:
                    raise TimeoutError("another worker became active")
        return passing.result()
    finally:
        passing.cancel()


def callers(request: web.Request) -> str:
    """Returns the addresses that a request came from. Only the last is certain: those before it may be invented."""
    return ", ".join([*request.headers.getall("X-Forwarded-For", []), request.remote or ""])


async def forward(
    session: aiohttp.ClientSession, request: web.Request, url: str, prefix: str = "", user: str = ""
) -> web.StreamResponse:
    """Sends the request to `url` and streams the answer. `prefix` is the part of the path that clients see before the
    interface, `user` who calls where the worker believes it. Raises aiohttp.ClientError or TimeoutError if there is none."""
    headers = {name: value for name, value in request.headers.items() if name not in _OF_CONNECTION}
    headers.setdefault("X-Forwarded-Proto", request.scheme)
    headers.setdefault("X-Forwarded-Host", request.host)
    headers["X-Forwarded-For"] = callers(request)
    if prefix:
        headers["X-Forwarded-Prefix"] = prefix
    if user:
        headers["X-Auth-Token"] = user
    body = request.content if request.can_read_body else None
    async with session.request(
        request.method, url, headers=headers, data=body, allow_redirects=False, skip_auto_headers=["Content-Type"]
    ) as answer:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name not in _OF_CONNECTION:
                response.headers.add(name, value)
        await response.prepare(request)
        async for chunk in answer.content.iter_chunked(1 << 16):
            await response.write(chunk)
        await response.write_eof()
        return response


def make_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=60.0)
    )
