"""HTTP handlers of events: live streams, past events, and the story of a group or of one message."""

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
from .authorization import caller_of, may_see_event, require
from .event_records import EVENTS, LOG, LoggedEvent, is_event_subject
from .event_stream import Audience, EventStream, Listener
from .middleware import Gateway, gateway_of
from .rate_limits import TooManyRequests
from .responses import bad_parameter, bool_parameter, encode, limit_of, list_response
from .route import SSE

#: Seconds between keep-alives on a quiet stream, and between checks whether its client is still there.
_KEEP_ALIVE, _CHECK = 15.0, 3.0
_decode = msgspec.json.Decoder(Event).decode
#: Maximum number of past events in a response without a limit.
EVERYTHING = 100_000


class _About(msgspec.Struct):
    decision: str | None = None


def _about(data: msgspec.Raw) -> _About:
    try:
        return msgspec.json.decode(data, type=_About)
    except msgspec.DecodeError:
        return _About()


async def get_events(request: web.Request) -> web.StreamResponse:
    """Streams server-sent events; with `follow=false`, lists the last ones. Rejected messages are included if the subject
    asks for them."""
    subject = request.query.get("subject") or EVENTS
    if not is_event_subject(subject):
        raise bad_parameter("subject", f"{subject[:200]!r} is not a subject below moorage.events or moorage.rejected")
    if subject.startswith("moorage.rejected."):  # these may hold anything that a client sent
        require(caller_of(request), "admin")
    gateway = gateway_of(request)
    clouds = cloudevents.wanted(request)
    if bool_parameter(request, "follow", True):
        return await _stream(request, gateway, subject, clouds)
    who = caller_of(request)
    found = await last_events(
        gateway,
        subject,
        limit_of(request, everything=EVERYTHING),
        lambda event_subject: may_see_event(who, event_subject),
    )
    if not clouds:
        return list_response([event_item(raw) for raw in found])
    batch = [cloudevents.structured(_decode(raw)) for raw in found]
    return web.Response(body=encode(batch), content_type=cloudevents.BATCH)


async def _stream(request: web.Request, gateway: Gateway, subject: str, clouds: bool) -> web.StreamResponse:
    limit = gateway.limits.streams
    if limit and gateway.stream.listeners + gateway.rejected.listeners >= limit:
        raise TooManyRequests(f"the limit of {limit} open event streams is reached", 5)
    audience = (subject, msgspec.structs.replace(caller_of(request), name=""))
    response = web.StreamResponse(headers={"Content-Type": SSE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    chunked = request.version >= HttpVersion11
    if chunked:
        response.enable_chunked_encoding()
    await response.prepare(request)
    if request.transport is None:
        return response
    ident = request.get("token")
    is_valid = partial(gateway.tokens.is_valid, ident) if ident is not None else lambda: True
    listener = Listener(request.transport, partial(_frame, clouds=clouds, chunked=chunked), is_valid)
    with _stream_of(gateway, subject).subscribe(audience, listener):
        await response.write(b": listening\n\n")
        last = request.headers.get("Last-Event-ID") or request.query.get("lastEventId", "")
        last_seq = await _resume(response, gateway, audience, last, clouds) if last else 0
        listener.go_live(last_seq)
        await _wait_until_ended(response, listener)
    if listener.slow:  # its buffer is full; it can reconnect and resume
        request.transport.abort()
    return response


async def _wait_until_ended(response: web.StreamResponse, listener: Listener) -> None:
    quiet = 0.0
    while True:
        try:
            async with asyncio.timeout(_CHECK):
                await listener.ended.wait()
            return
        except TimeoutError:
            listener.check()
            quiet += _CHECK
        if quiet >= _KEEP_ALIVE and not listener.ended.is_set():
            quiet = 0.0
            await response.write(b": still here\n\n")


async def _resume(response: web.StreamResponse, gateway: Gateway, audience: Audience, last: str, clouds: bool) -> int:
    """Sends the events after the last one that the client has seen, and returns the sequence number of the last one sent."""
    stream = _stream_of(gateway, audience[0])
    seq = await stream.seq_of(last)
    missed, complete = await stream.events_after(seq, audience) if seq is not None else ([], False)
    if not complete:  # the client must read all state again
        await response.write(b"event: lost\ndata: {}\n\n")
    for event in missed:
        await response.write(_frame(event, clouds=clouds, chunked=False))
    return missed[-1].seq if missed else seq or 0


@lru_cache(256)
def _frame(event: LoggedEvent, *, clouds: bool, chunked: bool) -> bytes:
    """Encodes an event, including HTTP/1.1 chunking, once for all listeners."""
    data = encode(cloudevents.structured(_decode(event.data))) if clouds else event.data
    frame = b"id: " + event.id.encode() + b"\ndata: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(frame), frame) if chunked else frame


def event_item(raw: bytes) -> dict[str, Any]:
    event = _decode(raw)
    item = {"id": event.id, "cause": event.cause, "time": event.time, "subject": event.subject, "data": event.data}
    return item | {"traceparent": event.traceparent} if event.traceparent else item


async def last_events(gateway: Gateway, subject: str, limit: int, shown: Callable[[str], bool]) -> list[bytes]:
    """Returns the last events of a subject that are still in the log and may be shown."""
    await gateway.audit.flush()  # a client finds the audit events of its own earlier requests
    return [event.data for event in await _stream_of(gateway, subject).last_events(subject, limit, shown)]


def _stream_of(gateway: Gateway, subject: str) -> EventStream:
    return gateway.rejected if subject.startswith("moorage.rejected.") else gateway.stream


async def get_group_story(request: web.Request) -> web.StreamResponse:
    group = group_of(request)
    gateway = gateway_of(request)
    found = await last_events(
        gateway, f"moorage.events.*.*.{group_tokens(group)}", limit_of(request, everything=EVERYTHING), lambda _: True
    )
    if not found and gateway.view.record(group) is None:
        raise Refused(not_found(f"group {group}"))
    return list_response([event_item(raw) for raw in found])


async def get_story(request: web.Request) -> web.StreamResponse:
    """Lists a message and all messages that it caused, directly or indirectly."""
    causes, who = {request.match_info["id"]}, caller_of(request)
    found: list[dict[str, Any]] = []

    def collect(_: int, data: bytes) -> None:
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            return  # readers ignore undecodable events; their writer has counted them
        if event.id in causes or event.cause in causes:
            causes.add(event.id)
            if may_see_event(who, event.subject):
                found.append(event_item(data))
            if (decision := _about(event.data).decision) is not None:
                causes.add(decision)  # messages that carry out the decision name it as their cause

    await gateway_of(request).audit.flush()
    log = gateway_of(request).bus.log(LOG)
    before = 0
    while before != len(causes):  # repeated, because an effect may be in the log before its cause
        before = len(causes)
        found.clear()
        await (await log.follow(1, collect)).stop()
    return list_response(found)


def group_of(request: web.Request) -> str:
    """Returns the group in the path. An invalid name is answered as not found."""
    info = request.match_info
    text = "/".join(info[part] for part in ("project", "app", "version", "group"))
    try:
        return str(GroupName.parse(text))
    except ValueError:
        raise Refused(not_found(f"group {text}")) from None
