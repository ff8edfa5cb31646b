"""Reads pods of the API server and what the runtime interface tells of pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.model.object_names import CLAIM
from moorage.qos.messages import PodSpec
from moorage.qos.pods import CONFIG_HASH, chosen_role, pod_spec

_ENDED = frozenset({"Succeeded", "Failed"})
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class KnownPod(NamedTuple):
    """A pod whose manifest is known."""

    spec: PodSpec
    ended: bool = False
    deleting: bool = False


def decode_pod(data: bytes | msgspec.Raw) -> KnownPod:
    """Reads a pod of the API server. A static pod has the uid under which the runtime knows it, not that of its mirror."""
    return known_pod(_decode(data))


def known_pod(manifest: Mapping[str, Any]) -> KnownPod:
    """Reads a pod. One that makes no sense has a problem, and is refused if it asks for something special."""
    metadata, status = manifest.get("metadata") or {}, manifest.get("status") or {}
    deleting = bool(metadata.get("deletionTimestamp"))
    ended = status.get("phase") in _ENDED
    try:
        return KnownPod(pod_spec(manifest, by_config_hash=True), ended, deleting)
    except (ValueError, TypeError, AttributeError) as error:
        uid = (metadata.get("annotations") or {}).get(CONFIG_HASH) or metadata.get("uid", "")
        spec = PodSpec(uid=uid, namespace=metadata.get("namespace") or "default", name=metadata.get("name", ""))
        return KnownPod(msgspec.structs.replace(spec, problem=f"its manifest makes no sense: {error}"), ended, deleting)


def told_by_runtime(
    uid: str, namespace: str, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> PodSpec:
    """Returns what the runtime interface tells of a pod whose manifest is not known."""
    role, kind, problem = chosen_role(labels, annotations)
    return PodSpec(
        uid=uid,
        namespace=namespace,
        name=name,
        role=role,
        type=kind,
        labels=dict(labels),
        annotations=dict(annotations),
        claim=labels.get(CLAIM, ""),
        problem=problem,
        requests_known=False,
    )
