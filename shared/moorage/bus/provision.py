"""Creates what the mesh keeps on the broker. Idempotent; needs an administrator."""

from __future__ import annotations

from typing import Any

import msgspec
import nats.js.errors

from .connection import Connection
from .errors import BusError
from .lease import ERA
from .stores import Bucket, create_objects
from .subjects import BUCKETS, LOGS, OBJECTS

_DAY = 24 * 3600 * 10**9
#: Buckets that can be made again from the log and documents need no fsync on each write.
_REBUILDABLE = {"moorage-desired", "moorage-status"}
#: Several keys of these change together or not at all.
_ATOMIC = {"moorage-resources"}


_COMMON: dict[str, Any] = {"storage": "file", "retention": "limits", "num_replicas": 1, "duplicate_window": 120 * 10**9}


def _bucket(name: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "deny_delete": True,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
    }
    if name in _REBUILDABLE:
        config["persist_mode"] = "async"
    if name in _ATOMIC:
        config["allow_atomic"] = True
    return config


def _log(name: str) -> dict[str, Any]:
    config: dict[str, Any] = {"name": name, "subjects": [LOGS[name]], "allow_direct": True}
    if name == "MOORAGE_EVENTS":
        config |= {"max_bytes": 256 << 20, "max_age": _DAY, "discard": "old", "persist_mode": "async"}
    elif name == "MOORAGE_REJECTED":
        config |= {"max_msgs": 10_000, "max_bytes": 32 << 20, "max_age": 7 * _DAY, "discard": "old"}
        config["persist_mode"] = "async"
    return config


async def _ensure(conn: Connection, config: dict[str, Any]) -> None:
    name = config["name"]
    config = {**_COMMON, **config}
    body = msgspec.json.encode(config)
    found = msgspec.json.decode(await conn.request(f"$JS.API.STREAM.INFO.{name}", b"", timeout=10))
    verb = "CREATE" if "error" in found else "UPDATE"
    reply = msgspec.json.decode(await conn.request(f"$JS.API.STREAM.{verb}.{name}", body, timeout=10))
    if "error" in reply:
        raise BusError(f"{name}: {reply['error'].get('description')}")


async def create_leases(conn: Connection, after: int) -> None:
    """Leases whose numbers are all larger than one that somebody may have heard of; the number itself begins an era."""
    config = {**_COMMON, **_bucket("moorage-leases"), "first_seq": after + 1}
    reply = msgspec.json.decode(
        await conn.request("$JS.API.STREAM.CREATE.KV_moorage-leases", msgspec.json.encode(config), timeout=10)
    )
    if "error" in reply:
        raise BusError(f"KV_moorage-leases: {reply['error'].get('description')}")
    await Bucket(conn, "moorage-leases").put(ERA, str(after).encode())


async def provision(conn: Connection) -> None:
    for name in BUCKETS:
        await _ensure(conn, _bucket(name))
    for name in LOGS:
        await _ensure(conn, _log(name))
    js = conn.nc.jetstream()
    for name in OBJECTS:
        try:
            await js.object_store(name)
        except nats.js.errors.NotFoundError:
            await create_objects(conn, name)
