"""The parts that every Kubernetes object has."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Metadata(msgspec.Struct, kw_only=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Object(msgspec.Struct, kw_only=True, rename="camel"):
    """The least of any object; what is followed extends it. Servers write null for much that is empty."""

    metadata: Metadata


class Key(NamedTuple):
    namespace: str
    name: str
