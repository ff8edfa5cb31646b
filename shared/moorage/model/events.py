"""The envelope of events. Readers ignore unknown fields."""

from __future__ import annotations

import msgspec

from .base import Message


class Event(Message, kw_only=True):
    cause: str = msgspec.field(default_factory=str)  # a factory, so that an empty cause is encoded, too
    time: str = ""
    subject: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")
