"""Server-side apply under our own name: the server merges, remembers which fields are ours, and takes away those we no
longer say. Objects that somebody else made get fields of ours at most, and only where nobody else has set them."""

from __future__ import annotations

from typing import Any

import msgspec

from .api import Api, ApiError, decoded
from .discovery import ApiResource

MANAGER = "moorage"
_APPLY = "application/apply-patch+yaml"

#: What others need to be there first.
_ORDER = (
    ("Namespace",),
    ("CustomResourceDefinition",),
    ("ResourceQuota", "LimitRange", "PriorityClass", "RuntimeClass", "StorageClass", "DeviceClass", "NetworkPolicy"),
    ("ServiceAccount", "ClusterRole", "Role"),
    ("ClusterRoleBinding", "RoleBinding"),
    ("Secret", "ConfigMap", "PersistentVolume", "PersistentVolumeClaim", "ResourceClaim", "ResourceClaimTemplate"),
    ("Service", "PodDisruptionBudget"),
)
_RANKS = {kind: rank for rank, kinds in enumerate(_ORDER) for kind in kinds}
_WORKLOADS = frozenset(
    {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob", "Pod"}
)
_AFTER_WORKLOADS = frozenset(
    {
        "HorizontalPodAutoscaler",
        "Ingress",
        "APIService",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    }
)


def apply_order(kind: str) -> int:
    """Lower ones first; unknown kinds (custom resources) are configuration of what runs."""
    if kind in _WORKLOADS:
        return len(_ORDER) + 1
    if kind in _AFTER_WORKLOADS:
        return len(_ORDER) + 2
    return _RANKS.get(kind, len(_ORDER))


def gates(kind: str) -> bool:
    """What stands in it or is of its kind goes before it does, and has to be gone first."""
    return kind in ("Namespace", "CustomResourceDefinition")


async def apply(
    api: Api, kind: ApiResource, obj: dict[str, Any], *, force: bool, manager: str = MANAGER
) -> tuple[dict[str, Any], bool]:
    """The object as the server has it now, and whether this made it. Without `force`, fields that others have set to
    something else are a conflict (ApiError 409 that names them)."""
    meta = obj["metadata"]
    status, data = await api.call(
        "PATCH",
        kind.path(meta.get("namespace", ""), meta["name"]),
        query={"fieldManager": manager, "force": "true" if force else "false"},
        body=msgspec.json.encode(obj),  # JSON is YAML
        content_type=_APPLY,
    )
    return decoded(data, dict[str, Any]), status == 201


class Exists(ApiError):
    """What was to be made is there."""


async def create(api: Api, kind: ApiResource, obj: dict[str, Any], *, manager: str = MANAGER) -> dict[str, Any]:
    """Made by applying, if nothing is there; Exists otherwise, and nothing is changed. No object has the version that is
    asked for, and of one that is not there the server asks none."""
    bound = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}
    try:
        made, created = await apply(api, kind, bound, force=True, manager=manager)
    except ApiError as error:
        if error.code == 409:
            raise Exists(error.code, error.reason, error.message) from error
        raise
    if not created:  # a server that does not look at versions: as if nothing had been done
        meta = made["metadata"]
        await release(api, kind, meta.get("namespace", ""), meta["name"], str(meta["uid"]), manager=manager)
        raise Exists(409, "AlreadyExists", f"{kind.kind} {meta['name']} is there")
    return made


async def release(api: Api, kind: ApiResource, namespace: str, name: str, uid: str, *, manager: str = MANAGER) -> None:
    """Give back every field that is ours, on an object that is not. The uid keeps this from making one."""
    metadata = {"name": name, "uid": uid} | ({"namespace": namespace} if kind.namespaced else {})
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    try:
        await apply(api, kind, body, force=True, manager=manager)
    except ApiError as error:
        if error.code not in (404, 409):
            raise


async def delete(api: Api, kind: ApiResource, namespace: str, name: str, uid: str) -> bool:
    """True once it is gone. What belongs to it goes first, so that gone means all of it; another object of the same name
    is left alone."""
    options: dict[str, Any] = {"propagationPolicy": "Foreground"}
    if uid:
        options["preconditions"] = {"uid": uid}
    try:
        await api.call("DELETE", kind.path(namespace, name), body=msgspec.json.encode(options))
    except ApiError as error:
        if error.code == 404:
            return True
        if error.code == 409:  # another one of that name, or on its way out already
            found = await api.get(kind.path(namespace, name))
            return found is None or bool(uid and found["metadata"].get("uid") != uid)
        raise
    return False
