"""Every worker is a NATS service: `nats service ls` and our own `check` find it, and it says how it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg

from moorage.telemetry import version_of_moorage

from .connection import Connection, encode, new_id, now_text

_PREFIX = "io.nats.micro.v1"


async def announce(conn: Connection, health: Callable[[], dict[str, Any]]) -> None:
    name, ident, started = f"moorage-{conn.worker}", new_id(), now_text()
    base = {"name": name, "id": ident, "version": version_of_moorage()}

    async def asked(msg: Msg) -> None:
        _, verb, *target = msg.subject.split(".")
        if target and (target[0] != name or (len(target) > 1 and target[1] != ident)):
            return
        state = health()
        metadata = {
            "pid": str(os.getpid()),
            "ok": "true" if state.get("ok", True) else "false",
            "missing": ", ".join(state.get("missing", [])),
        }
        endpoint = {"name": conn.worker, "subject": f"$SRV.PING.{name}", "queue_group": conn.worker}
        if verb == "PING":
            body: dict[str, Any] = {"type": f"{_PREFIX}.ping_response", **base, "metadata": metadata}
        elif verb == "INFO":
            body = {"type": f"{_PREFIX}.info_response", **base, "metadata": metadata, "endpoints": [endpoint]}
            body["description"] = f"Moorage {conn.worker}"
        elif verb == "STATS":
            counts = {"num_requests": conn.nc.stats["in_msgs"], "num_errors": conn.counts.get("handler_errors", 0)}
            times = {"processing_time": 0, "average_processing_time": 0}
            stats = {**endpoint, **counts, **times, "data": {**state, "counts": conn.counts}}
            body = {"type": f"{_PREFIX}.stats_response", **base, "started": started, "endpoints": [stats]}
            body["metadata"] = metadata
        else:
            return
        if msg.reply:
            await conn.nc.publish(msg.reply, encode(body))

    await conn.nc.subscribe("$SRV.>", cb=asked)
    await conn.settle()
