"""Base classes of messages and stored objects: camelCase on the wire, and absent fields have their default."""

from __future__ import annotations

import msgspec


class Model(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A value on the wire or in a store. Unknown fields are ignored, so a newer writer never breaks an older reader."""


class Value(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """A Model that is hashable and compares by value."""


class Message(Model, kw_only=True):
    """A message. `cause` is the id of the message that caused it, `traceparent` is that of W3C Trace Context."""

    id: str = ""
    cause: str = ""
    traceparent: str = ""
