"""Creates, changes and deletes objects by server-side apply with Moorage as field manager.

The server merges fields, records the manager of each, and removes fields that Moorage no longer applies. On objects that
others created, Moorage sets fields only where no other manager has set them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .api import Api, ApiError, decode
from .discovery import ApiResource

MANAGER = "moorage"
_APPLY = "application/apply-patch+yaml"

#: Kinds that other objects need, in the order in which they are applied.
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
    """Returns the position of a kind in the order of applying. Unknown kinds (custom resources) come before workloads, as
    their configuration."""
    if kind in _WORKLOADS:
        return len(_ORDER) + 1
    if kind in _AFTER_WORKLOADS:
        return len(_ORDER) + 2
    return _RANKS.get(kind, len(_ORDER))


def is_container_kind(kind: str) -> bool:
    """Returns whether objects of the kind contain others, which are deleted with them and have to be gone first."""
    return kind in ("Namespace", "CustomResourceDefinition")


async def apply(
    api: Api, kind: ApiResource, obj: dict[str, Any], *, force: bool, manager: str = MANAGER
) -> tuple[dict[str, Any], bool]:
    """Applies an object; returns it as the server has it now, and whether it was created. Without `force`, fields that
    another manager has set to other values are a conflict (an ApiError 409 that names them)."""
    meta = obj["metadata"]
    status, data = await api.call(
        "PATCH",
        kind.path(meta.get("namespace", ""), meta["name"]),
        query={"fieldManager": manager, "force": "true" if force else "false"},
        body=msgspec.json.encode(obj),  # JSON is YAML
        content_type=_APPLY,
    )
    return decode(data, dict[str, Any]), status == 201


class AlreadyExists(ApiError):
    """The object to create exists."""


async def create(api: Api, kind: ApiResource, obj: dict[str, Any], *, manager: str = MANAGER) -> dict[str, Any]:
    """Creates an object by applying it. Raises AlreadyExists, without a change, if it exists: the resourceVersion in the
    request matches no existing object, and the server ignores it for new ones."""
    conditional = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}
    try:
        result, created = await apply(api, kind, conditional, force=True, manager=manager)
    except ApiError as error:
        if error.code == 409:
            raise AlreadyExists(error.code, error.reason, error.message) from error
        raise
    if not created:  # the server ignored the resourceVersion: undo the change
        meta = result["metadata"]
        await release(api, kind, meta.get("namespace", ""), meta["name"], str(meta["uid"]), manager=manager)
        raise AlreadyExists(409, "AlreadyExists", f"{kind.kind} {meta['name']} exists")
    return result


async def release(api: Api, kind: ApiResource, namespace: str, name: str, uid: str, *, manager: str = MANAGER) -> None:
    """Gives up all fields that the manager has on an object. The uid keeps the apply from creating a new object."""
    metadata = {"name": name, "uid": uid} | ({"namespace": namespace} if kind.namespaced else {})
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    try:
        await apply(api, kind, body, force=True, manager=manager)
    except ApiError as error:
        if error.code not in (404, 409):
            raise


async def delete(api: Api, kind: ApiResource, namespace: str, name: str, uid: str) -> bool:
    """Deletes an object and its dependents, in the foreground; returns True once it is gone. An object of the same name with
    another uid is not deleted."""
    options: dict[str, Any] = {"propagationPolicy": "Foreground"}
    if uid:
        options["preconditions"] = {"uid": uid}
    try:
        await api.call("DELETE", kind.path(namespace, name), body=msgspec.json.encode(options))
    except ApiError as error:
        if error.code == 404:
            return True
        if error.code == 409:  # another object of that name, or one that is being deleted already
            current = await api.get(kind.path(namespace, name))
            return current is None or bool(uid and current["metadata"].get("uid") != uid)
        raise
    return False
