"""Events: what anyone may listen to. Unknown fields are ignored by readers."""

from __future__ import annotations

import msgspec

from .base import Message


class Event(Message, kw_only=True):
    cause: str = msgspec.field(default_factory=str)  # told where there is none, too
    time: str = ""
    subject: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")
