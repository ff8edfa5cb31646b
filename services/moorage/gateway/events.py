"""`/v1/events` live and recorded, and the story of a group or of one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from moorage.model.events import Event
from moorage.model.names import GroupName, group_tokens
from moorage.model.problems import Refused, not_found

from . import cloudevents
from .authorization import hears, must, who_of
from .event_stream import EVENTS, LOG, Audience, EventStream, Listener, RecordedEvent, is_event_subject
from .middleware import Gateway, gateway_of
from .rate_limits import TooMany
from .responses import bad_parameter, encode, flag_of, limit_of, listed
from .route import SSE

#: How often a reader that hears nothing is told that we are there, and how often we look whether it is.
_KEEP_ALIVE, _LOOK = 15.0, 3.0
_decode = msgspec.json.Decoder(Event).decode
#: Of the log of events as much as one answer has, where no limit is wanted.
EVERYTHING = 100_000


class _About(msgspec.Struct):
    decision: str | None = None


def _about(data: msgspec.Raw) -> _About:
    try:
        return msgspec.json.decode(data, type=_About)
    except msgspec.DecodeError:
        return _About()


async def events(request: web.Request) -> web.StreamResponse:
    """Server-sent events; with `follow=false` the last ones, as a list. Messages that could not be read are among them
    where they are asked for."""
    subject = request.query.get("subject") or EVENTS
    if not is_event_subject(subject):
        raise bad_parameter("subject", f"{subject[:200]!r} is not a subject below moorage.events or moorage.rejected")
    if subject.startswith("moorage.rejected."):  # whatever somebody sent
        must(who_of(request), "admin")
    gateway = gateway_of(request)
    clouds = cloudevents.wanted(request)
    if flag_of(request, "follow", True):
        return await _stream(request, gateway, subject, clouds)
    who = who_of(request)
    found = await recorded(gateway, subject, limit_of(request, everything=EVERYTHING), lambda heard: hears(who, heard))
    if not clouds:
        return listed([event_item(raw) for raw in found])
    made = [cloudevents.structured(_decode(raw)) for raw in found]
    return web.Response(body=encode(made), content_type=cloudevents.BATCH)


async def _stream(request: web.Request, gateway: Gateway, subject: str, clouds: bool) -> web.StreamResponse:
    limit = gateway.limits.streams
    if limit and gateway.stream.listeners + gateway.rejected.listeners >= limit:
        raise TooMany(f"{limit} streams of events are open already", 5)
    audience = (subject, msgspec.structs.replace(who_of(request), name=""))
    response = web.StreamResponse(headers={"Content-Type": SSE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    chunked = request.version >= HttpVersion11
    if chunked:
        response.enable_chunked_encoding()
    await response.prepare(request)
    if request.transport is None:
        return response
    ident = request.get("token")
    good = partial(gateway.tokens.stands, ident) if ident is not None else lambda: True
    listener = Listener(request.transport, partial(_frame, clouds=clouds, chunked=chunked), good)
    with _stream_of(gateway, subject).listening(audience, listener):
        await response.write(b": listening\n\n")
        last = request.headers.get("Last-Event-ID") or request.query.get("lastEventId", "")
        told = await _resume(response, gateway, audience, last, clouds) if last else 0
        listener.go_live(told)
        await _until_ended(response, listener)
    if listener.slow:  # what waits for it is as much as we keep; it can come back and go on
        request.transport.abort()
    return response


async def _until_ended(response: web.StreamResponse, listener: Listener) -> None:
    quiet = 0.0
    while True:
        try:
            async with asyncio.timeout(_LOOK):
                await listener.ended.wait()
            return
        except TimeoutError:
            listener.look()
            quiet += _LOOK
        if quiet >= _KEEP_ALIVE and not listener.ended.is_set():
            quiet = 0.0
            await response.write(b": still here\n\n")


async def _resume(response: web.StreamResponse, gateway: Gateway, audience: Audience, last: str, clouds: bool) -> int:
    """Tells what came after the event that the reader saw last; back with the place up to which it knows all."""
    stream = _stream_of(gateway, audience[0])
    place = await stream.place_of(last)
    missed, whole = await stream.since(place, audience) if place is not None else ([], False)
    if not whole:  # the reader has to look at everything again
        await response.write(b"event: lost\ndata: {}\n\n")
    for event in missed:
        await response.write(_frame(event, clouds=clouds, chunked=False))
    return missed[-1].seq if missed else place or 0


@lru_cache(256)
def _frame(event: RecordedEvent, *, clouds: bool, chunked: bool) -> bytes:
    """Made once for all who hear it, down to how HTTP/1.1 wraps it."""
    data = encode(cloudevents.structured(_decode(event.data))) if clouds else event.data
    frame = b"id: " + event.id.encode() + b"\ndata: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(frame), frame) if chunked else frame


def event_item(raw: bytes) -> dict[str, Any]:
    event = _decode(raw)
    item = {"id": event.id, "cause": event.cause, "time": event.time, "subject": event.subject, "data": event.data}
    return item | {"traceparent": event.traceparent} if event.traceparent else item


async def recorded(gateway: Gateway, subject: str, limit: int, shown: Callable[[str], bool]) -> list[bytes]:
    """The last events of a subject that are still in the log and may be shown."""
    await gateway.lines.flush()  # who asked for something and then looks finds it
    return [event.data for event in await _stream_of(gateway, subject).recorded(subject, limit, shown)]


def _stream_of(gateway: Gateway, subject: str) -> EventStream:
    return gateway.rejected if subject.startswith("moorage.rejected.") else gateway.stream


async def group_story(request: web.Request) -> web.StreamResponse:
    group = group_of(request)
    gateway = gateway_of(request)
    found = await recorded(
        gateway, f"moorage.events.*.*.{group_tokens(group)}", limit_of(request, everything=EVERYTHING), lambda _: True
    )
    if not found and gateway.view.record(group) is None:
        raise Refused(not_found(f"group {group}"))
    return listed([event_item(raw) for raw in found])


async def story(request: web.Request) -> web.StreamResponse:
    """One message and all it set off: whatever names it, or one of those, as its cause."""
    wanted, who = {request.match_info["id"]}, who_of(request)
    found: list[dict[str, Any]] = []

    def look(_: int, data: bytes) -> None:
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            return  # readers of events ignore what they cannot read; who wrote it has counted it
        if event.id in wanted or event.cause in wanted:
            wanted.add(event.id)
            if hears(who, event.subject):
                found.append(event_item(data))
            if (decision := _about(event.data).decision) is not None:
                wanted.add(decision)  # what carries it out names it as its cause

    await gateway_of(request).lines.flush()
    log = gateway_of(request).bus.log(LOG)
    before = 0
    while before != len(wanted):  # an effect that another worker told first may stand before its cause
        before = len(wanted)
        found.clear()
        await (await log.follow(1, look)).stop()
    return listed(found)


def group_of(request: web.Request) -> str:
    """The group that the path names; what cannot be a name is not found."""
    info = request.match_info
    text = "/".join(info[part] for part in ("project", "app", "version", "group"))
    try:
        return str(GroupName.parse(text))
    except ValueError:
        raise Refused(not_found(f"group {text}")) from None
