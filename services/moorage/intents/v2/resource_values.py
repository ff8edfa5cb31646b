"""Builds the stored value of a resource from its body and the file that came with it."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from moorage.bus import now_text
from moorage.model import v2_bodies
from moorage.model.problems import Problem, Refused
from moorage.model.v2_resources import APP, CLUSTER, Resource, ResourceKind
from moorage.parsing.redaction import REDACTED, restore

from ..core.v2_spelling import plain
from . import charts, uploads

_encode = msgspec.json.Encoder().encode
MAX_VALUE = 3 << 20
#: The end of a body whose spec has no field: it is answered without a spec.
_NO_SPEC = b',"spec":{}}'


def with_secrets(kind: ResourceKind, data: Any, stored: list[dict[str, Any]]) -> Any:
    """Puts back the values of Secrets that were hidden from the sender, from the stored objects."""
    spec = data.get("spec") if isinstance(data, dict) else None
    if kind is not APP or not isinstance(spec, dict):
        return data
    manifests = spec.get("manifests")
    if isinstance(manifests, str):
        if REDACTED not in manifests:
            return data
        manifests = uploads.documents(manifests, "spec.manifests")
    return {**data, "spec": {**spec, "manifests": restore(manifests, stored)}} if manifests else data


def has_manifests(body: msgspec.Struct) -> bool:
    return isinstance(body, v2_bodies.App) and bool(body.spec.manifests)


def resource_of(kind: ResourceKind, body: msgspec.Struct, file: str) -> Resource:
    """`file` is base64, or empty where none came. Raises Refused where it cannot be read or does not belong here."""
    value = Resource(body=msgspec.Raw(b"null"), created=now_text())
    if kind is CLUSTER:
        value.kubeconfig = _remove_kubeconfig(body)
    data = _decoded(file) if file else b""
    if isinstance(body, v2_bodies.App):
        _read_app(value, body, data, file)
    elif data and kind.upload and isinstance(body, v2_bodies.OfApp):
        value.values = uploads.values(data)
    elif data and kind is CLUSTER:
        value.kubeconfig = uploads.kubeconfig(data)
    elif data:
        raise uploads.refused("NotTaken", f"{kind.about} takes no file")
    encoded = _encode(body)
    value.body = msgspec.Raw(encoded.removesuffix(_NO_SPEC) + b"}" if encoded.endswith(_NO_SPEC) else encoded)
    return value


def _decoded(file: str) -> bytes:
    try:
        data = base64.b64decode(file, validate=True)
    except binascii.Error:
        raise uploads.refused("Undecodable", "is not base64") from None
    if not data.strip():
        raise uploads.refused("Empty", "is empty")
    return data


def _read_app(value: Resource, body: v2_bodies.App, data: bytes, file: str) -> None:
    manifests = body.spec.manifests
    if manifests and data:
        raise uploads.refused("Contradiction", "give the manifests in a file or in spec.manifests, not both")
    if manifests:
        text = manifests if isinstance(manifests, str) else _encode(manifests)
        value.objects = uploads.manifests(text, "spec.manifests")
    elif data:
        upload = uploads.app(data)
        value.objects = upload.objects
        if upload.chart:
            if (problem := charts.missing()) is not None:
                raise Refused(problem)
            value.chart = file


def _remove_kubeconfig(body: msgspec.Struct) -> str:
    """Takes a kubeconfig out of the body, because bodies are answered and kubeconfigs never are."""
    assert isinstance(body, v2_bodies.Named)
    for key in [key for key in body.spec if plain(key) == "kubeconfig"]:
        config = body.spec.pop(key)
        text = config if isinstance(config, str) else _encode(config).decode()
        return uploads.kubeconfig(text.encode(), f"spec.{key}")
    return ""


def is_same(resource: Resource, other: Resource) -> bool:
    """Returns whether two values differ only in the time of their creation."""
    return msgspec.structs.replace(resource, created="") == msgspec.structs.replace(other, created="")


def encode(value: Resource) -> bytes:
    data = _encode(value)
    if len(data) > MAX_VALUE:
        detail = f"the resource has {len(data)} bytes; at most {MAX_VALUE} are stored"
        raise Refused(Problem(title="Too large", status=413, code="TooLarge", detail=detail))
    return data
