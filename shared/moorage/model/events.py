"""Events: what anyone may listen to. Unknown fields are ignored by readers."""

from __future__ import annotations

import msgspec

from .base import Message


class Event(Message, kw_only=True):
    time: str = ""
    subject: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")
