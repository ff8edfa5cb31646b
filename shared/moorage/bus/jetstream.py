"""Requests to JetStream that key-value buckets, logs and consumers share."""

from __future__ import annotations

from typing import Any

import msgspec
from nats.aio.msg import Msg

from .connection import Connection
from .errors import BusError, Conflict

#: Broker errors of an append whose expected sequence is not the last one.
_CONFLICTS = {10071, 10164}


class _AckError(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _AckError | None = None


_ack = msgspec.json.Decoder(_Ack).decode


async def append(
    conn: Connection, subject: str, data: bytes | msgspec.Struct, headers: dict[str, str] | None, timeout: float
) -> int:
    """Appends a message to the stream of `subject` and returns its sequence.

    Raises Conflict if the headers expect another last sequence, NoAnswer if it is unknown whether the message was stored.
    """
    msg = await conn.exchange(subject, data, timeout=timeout, headers=headers)
    ack = _ack(msg.data)
    if ack.error is not None:
        if ack.error.err_code in _CONFLICTS:
            raise Conflict(f"{subject}: {ack.error.description}")
        raise BusError(f"{subject}: {ack.error.description}")
    return ack.seq


async def direct_get(conn: Connection, source: str, request: bytes, timeout: float) -> Msg | None:
    """Reads one stored message; None if there is none. `source` is a stream, or a stream and a subject of it."""
    msg = await conn.exchange(f"$JS.API.DIRECT.GET.{source}", request, timeout=timeout)
    headers: dict[str, str] = msg.headers or {}
    status = headers.get("Status")
    if status == "404":
        return None
    if status is not None:
        raise BusError(f"{source}: {status} {headers.get('Description', '')}")
    return msg


def timestamp(msg: Msg) -> str:
    """Returns when the broker stored a message that was read directly. Such texts can be compared."""
    headers: dict[str, str] = msg.headers or {}
    return headers.get("Nats-Time-Stamp", "").rstrip("Z")


async def api(conn: Connection, verb: str, body: Any = None, *, timeout: float = 5.0) -> dict[str, Any]:
    """Calls the JetStream API. Raises BusError with the broker's description if it refuses."""
    data = msgspec.json.encode(body) if body is not None else b""
    reply = msgspec.json.decode(await conn.request(f"$JS.API.{verb}", data, timeout=timeout), type=dict[str, Any])
    if "error" in reply:
        raise BusError(f"{verb}: {reply['error'].get('description')}")
    return reply


async def stream_state(conn: Connection, stream: str, timeout: float) -> dict[str, Any]:
    state: dict[str, Any] = (await api(conn, f"STREAM.INFO.{stream}", timeout=timeout))["state"]
    return state
