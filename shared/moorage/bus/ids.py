"""Ids of messages, and their time."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

from nats.nuid import NUID

_ids = NUID()


def _renew() -> None:
    global _ids
    _ids = NUID()


# Workers are forked from one warm parent: with its generator all of them would make the same ids.
os.register_at_fork(after_in_child=_renew)


def new_id() -> str:
    ident: bytearray = _ids.next()
    return ident.decode()


def now_text() -> str:
    return time_text(time.time())


def time_text(seconds: float) -> str:
    """Formats seconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
