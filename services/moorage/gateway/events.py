"""`/v1/events` live and recorded, and the story of a group or of one message."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec
from aiohttp import web

from moorage.model.events import Event
from moorage.model.names import GroupName, group_tokens
from moorage.model.problems import Refused, not_found

from .answers import bad_parameter, limit_of, listed
from .serving import Gateway, gateway_of
from .stream import EVENTS, is_event_subject

_KEEP_ALIVE = 15.0
_decode = msgspec.json.Decoder(Event).decode


class _About(msgspec.Struct):
    decision: str | None = None


def _about(data: msgspec.Raw) -> _About:
    try:
        return msgspec.json.decode(data, type=_About)
    except msgspec.DecodeError:
        return _About()


async def events(request: web.Request) -> web.StreamResponse:
    """Server-sent events; with `follow=false` the last ones, as a list."""
    subject = request.query.get("subject") or EVENTS
    if not is_event_subject(subject):
        raise bad_parameter("subject", f"{subject!r} is not a subject below moorage.events")
    gateway = gateway_of(request)
    if request.query.get("follow", "true").lower() in ("false", "0", "no"):
        return listed([event_item(raw) for raw in await recorded(gateway, subject, limit_of(request))])
    return await _stream(request, gateway, subject)


async def _stream(request: web.Request, gateway: Gateway, subject: str) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    with gateway.stream.listening(subject) as listener:
        await response.prepare(request)
        await response.write(b": listening\n\n")
        while True:
            try:
                async with asyncio.timeout(_KEEP_ALIVE):
                    data = await listener.queue.get()
            except TimeoutError:
                await response.write(b": still here\n\n")
                continue
            if data is None:
                await response.write(b": too slow, some were lost\n\n" if listener.lost else b": stopping\n\n")
                return response
            ident = _id_of(data)
            await response.write(b"id: " + ident + b"\ndata: " + data.replace(b"\n", b"\ndata: ") + b"\n\n")


def _id_of(data: bytes) -> bytes:
    try:
        return _decode(data).id.encode().replace(b"\n", b"")
    except msgspec.DecodeError:
        return b""


def event_item(raw: bytes) -> dict[str, Any]:
    event = _decode(raw)
    return {"id": event.id, "cause": event.cause, "time": event.time, "subject": event.subject, "data": event.data}


async def recorded(gateway: Gateway, subject: str, limit: int) -> list[bytes]:
    """The last events of a subject that are still in the log."""
    log = gateway.bus.log("MOORAGE_EVENTS")
    last = await log.last()
    start = max(1, last - limit + 1) if subject == EVENTS else 1
    found: deque[bytes] = deque(maxlen=limit)
    follower = await log.follow(start, lambda _, data: found.append(data), keys="" if subject == EVENTS else subject)
    await follower.stop()
    return list(found)


async def group_story(request: web.Request) -> web.StreamResponse:
    group = group_of(request)
    gateway = gateway_of(request)
    found = await recorded(gateway, f"moorage.events.*.*.{group_tokens(group)}", limit_of(request))
    if not found and gateway.view.record(group) is None:
        raise Refused(not_found(f"group {group}"))
    return listed([event_item(raw) for raw in found])


async def story(request: web.Request) -> web.StreamResponse:
    """One message and all it set off: whatever names it, or one of those, as its cause."""
    wanted = {request.match_info["id"]}
    found: list[dict[str, Any]] = []

    def look(_: int, data: bytes) -> None:
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            return  # readers of events ignore what they cannot read; who wrote it has counted it
        if event.id in wanted or event.cause in wanted:
            wanted.add(event.id)
            found.append(event_item(data))
            if (decision := _about(event.data).decision) is not None:
                wanted.add(decision)  # what carries it out names it as its cause

    gateway = gateway_of(request)
    follower = await gateway.bus.log("MOORAGE_EVENTS").follow(1, look)
    await follower.stop()
    return listed(found)


def group_of(request: web.Request) -> str:
    """The group that the path names; what cannot be a name is not found."""
    info = request.match_info
    text = "/".join(info[part] for part in ("project", "app", "version", "group"))
    try:
        return str(GroupName.parse(text))
    except ValueError:
        raise Refused(not_found(f"group {text}")) from None
