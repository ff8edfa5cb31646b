"""Creates the stores of the mesh on the broker. Idempotent; needs an administrator."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import nats.js.errors

from moorage.mesh import Bucket as BucketSpec
from moorage.mesh import ObjectStore, Store, Stream, stores
from moorage.parsing import parse_amount

from .connection import Connection
from .errors import BusError
from .kv import Bucket
from .lease import ERA
from .objects import create_objects

_SECOND = 10**9
_DAY = 24 * 3600 * _SECOND
_AGES = {"m": 60 * _SECOND, "h": 3600 * _SECOND, "d": _DAY}
_COMMON: dict[str, Any] = {
    "storage": "file",
    "retention": "limits",
    "num_replicas": 1,
    "duplicate_window": 120 * _SECOND,
}


def bucket_config(bucket: BucketSpec) -> dict[str, Any]:
    config: dict[str, Any] = {
        "name": bucket.stream,
        "subjects": [f"$KV.{bucket.name}.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "deny_delete": True,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
    }
    if bucket.rebuildable:
        config["persist_mode"] = "async"
    if bucket.atomic:
        config["allow_atomic"] = True
    return config


def stream_config(stream: Stream) -> dict[str, Any]:
    config: dict[str, Any] = {"name": stream.name, "subjects": [stream.subject], "allow_direct": True}
    limits = {
        "max_msgs": stream.max_messages,
        "max_bytes": stream.max_bytes,
        "max_age": stream.max_age_days * _DAY,
    }
    if stream.setting:
        limits["max_bytes"] = _limit(f"MOORAGE_{stream.setting}_BYTES", _bytes, limits["max_bytes"])
        limits["max_age"] = _limit(f"MOORAGE_{stream.setting}_AGE", _age, limits["max_age"])
    if stream.limited:
        config |= {name: limit for name, limit in limits.items() if limit}
        config |= {"discard": "old", "persist_mode": "async"}
    return config


def _limit(name: str, parse: Callable[[str], int], default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        found = parse(text)
    except ValueError as error:
        raise BusError(f"{name}: {error}") from error
    if found <= 0:
        raise BusError(f"{name}: {text!r} must be more than 0")
    return found


def _bytes(text: str) -> int:
    return parse_amount("bytes", text, False)


def _age(text: str) -> int:
    unit = _AGES.get(text[-1])
    if unit is None or not text[:-1].isdecimal():
        raise ValueError(f"{text[:80]!r} is not an age; write it like 7d, 12h or 30m")
    return int(text[:-1]) * unit


async def _ensure(conn: Connection, config: dict[str, Any]) -> None:
    name = config["name"]
    found = msgspec.json.decode(await conn.request(f"$JS.API.STREAM.INFO.{name}", b"", timeout=10))
    await _write(conn, "CREATE" if "error" in found else "UPDATE", config)


async def _write(conn: Connection, verb: str, config: dict[str, Any]) -> None:
    name, body = config["name"], msgspec.json.encode({**_COMMON, **config})
    reply = msgspec.json.decode(await conn.request(f"$JS.API.STREAM.{verb}.{name}", body, timeout=10))
    if "error" in reply:
        raise BusError(f"{name}: {reply['error'].get('description')}")


async def create_leases(conn: Connection, after: int) -> None:
    """Creates the bucket of leases so that all generations are larger than `after`, the largest one that may still be
    known somewhere. `after` itself is kept as the start of an era."""
    await _write(conn, "CREATE", {**bucket_config(BucketSpec(stores.LEASES)), "first_seq": after + 1})
    await Bucket(conn, stores.LEASES).put(ERA, str(after).encode())


async def provision(conn: Connection, wanted: Iterable[Store]) -> None:
    js = conn.nc.jetstream()
    for store in wanted:
        match store:
            case BucketSpec():
                await _ensure(conn, bucket_config(store))
            case Stream():
                await _ensure(conn, stream_config(store))
            case ObjectStore(name):
                try:
                    await js.object_store(name)
                except nats.js.errors.NotFoundError:
                    await create_objects(conn, name)
