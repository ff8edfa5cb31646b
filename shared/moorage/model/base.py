"""What every message and stored object shares: camelCase on the wire, absent means default, and where it came from."""

from __future__ import annotations

import msgspec


class Model(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A value on the wire or in a store. Unknown fields pass: a newer writer never breaks an older reader."""


class Value(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """A Model that can be a key: equal values are one."""


class Message(Model, kw_only=True):
    """Something that was said: `id` names it, `cause` is the id of what set it off, `traceparent` follows W3C."""

    id: str = ""
    cause: str = ""
    traceparent: str = ""
