"""Copies a stream out of the broker and back, with its sequences: revisions mean the same after a restore."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from nats.aio.msg import Msg

from .connection import Connection
from .errors import BusError, NoAnswer

CHUNK = 128 << 10
#: Seconds of silence in the middle of a stream after which the broker counts as gone.
PATIENCE = 20.0


async def _api(conn: Connection, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    data = await conn.request(f"$JS.API.{verb}", msgspec.json.encode(body) if body else b"", timeout=PATIENCE)
    return msgspec.json.decode(data, type=dict[str, Any])


def _checked(stream: str, reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        raise BusError(f"{stream}: {reply['error'].get('description')}")
    return reply


async def state_of(conn: Connection, stream: str) -> dict[str, Any] | None:
    """Returns a stream's state: counts and sequences. None if there is no such stream."""
    reply = await _api(conn, f"STREAM.INFO.{stream}", {})
    if reply.get("error", {}).get("code") == 404:
        return None
    state: dict[str, Any] = _checked(stream, reply)["state"]
    return state


async def remove(conn: Connection, stream: str) -> None:
    _checked(stream, await _api(conn, f"STREAM.DELETE.{stream}", {}))


async def snapshot(conn: Connection, stream: str, write: Callable[[bytes], Any]) -> dict[str, Any]:
    """Writes a stream without its consumers in chunks, and returns the {"config", "state"} that a restore needs."""
    inbox = conn.nc.new_inbox()
    chunks: asyncio.Queue[Msg] = asyncio.Queue()
    sub = await conn.nc.subscribe(inbox, cb=chunks.put)
    try:
        await conn.settle()
        body = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK, "jsck": True}
        description = _checked(stream, await _api(conn, f"STREAM.SNAPSHOT.{stream}", body))
        while True:
            try:
                msg = await asyncio.wait_for(chunks.get(), PATIENCE)
            except TimeoutError:
                raise NoAnswer(f"{stream}: the broker stopped sending it") from None
            status = (msg.headers or {}).get("Status", "204")
            if not status.startswith("204"):
                raise BusError(f"{stream}: {status} {(msg.headers or {}).get('Description', '')}")
            if not msg.data:
                return {"config": description["config"], "state": description["state"]}
            write(msg.data)
            if msg.reply:
                await conn.nc.publish(msg.reply)
    finally:
        await sub.unsubscribe()


async def restore(conn: Connection, stream: str, description: dict[str, Any], chunks: Iterable[bytes]) -> None:
    """Creates a stream from what `snapshot` returned and wrote. It must not exist."""
    body = {"config": description["config"], "state": description["state"]}
    subject = _checked(stream, await _api(conn, f"STREAM.RESTORE.{stream}", body))["deliver_subject"]
    for chunk in chunks:
        answer = await conn.request(subject, chunk, timeout=PATIENCE)
        if answer:
            _checked(stream, msgspec.json.decode(answer, type=dict[str, Any]))
    _checked(stream, msgspec.json.decode(await conn.request(subject, b"", timeout=PATIENCE), type=dict[str, Any]))
