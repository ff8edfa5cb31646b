"""The fields that every Kubernetes object has."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import msgspec


class ObjectMetadata(msgspec.Struct, kw_only=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class Object(msgspec.Struct, kw_only=True, rename="camel"):
    """The base of the Structs that reflectors decode. Optional fields may be null, because servers write that for empty."""

    metadata: ObjectMetadata


class Key(NamedTuple):
    namespace: str
    name: str


def pod_path(key: Key) -> str:
    """Returns the path of a pod at the API server."""
    return f"/api/v1/namespaces/{quote(key.namespace)}/pods/{quote(key.name)}"
