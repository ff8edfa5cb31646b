"""Creates and repairs the objects of one group: its MachineNodePool, and a StatefulSet and a Service for each type. Pure."""

from __future__ import annotations

from .cluster_objects import ClusterObjects, Object
from .effects import Effect
from .group_state import GroupState
from .object_writes import Key
from .objects import difference, node_pool, service, stateful_set
from .takeover import without_finalizer


def object_effects(cluster: ClusterObjects, group: GroupState, now: float, times: list[float]) -> list[Effect]:
    """Creates and repairs the objects of a group, and removes those of types that it does not have any more."""
    wanted: list[tuple[str, Object]] = [("MachineNodePool", node_pool(group.machine, group.uid))]
    for machine_type in group.machine.types:
        name = machine_type.name
        wanted.append(("Service", service(group.machine, group.uid, name, cluster.namespace)))
        wanted.append(
            ("StatefulSet", stateful_set(group.machine, group.sizes, group.uid, name, cluster.image, cluster.namespace))
        )
    effects: list[Effect] = []
    keys = set()
    for kind, obj in wanted:
        key = (kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        keys.add(key)
        actual = cluster.objects.get(key)
        if cluster.writes.is_busy(key):
            continue
        if actual is None:
            if cluster.writes.may_repair(key, obj, now, times):
                # Without the number the server would make one.
                made = {**obj, "spec": {**obj["spec"], "replicas": 0}} if kind == "StatefulSet" else obj
                effects.append(Effect("create", *key, made, kind))
            continue
        patch = difference(_changeable(kind, obj), actual)
        if (finalizers := without_finalizer(actual)) is not None:
            patch = patch or {}
            patch["metadata"] = {**(patch.get("metadata") or {}), "finalizers": finalizers or None}
        if patch is not None and cluster.writes.may_repair(key, obj, now, times):
            patch["metadata"] = {
                **(patch.get("metadata") or {}),
                "resourceVersion": actual["metadata"]["resourceVersion"],
            }
            effects.append(Effect("merge", *key, patch, kind))
    for key, obj in cluster.objects.items():
        is_ours = any(owner.get("uid") == group.uid for owner in obj["metadata"].get("ownerReferences") or ())
        if is_ours and key not in keys and cluster.writes.is_free(key, now):
            effects += removal_of(key, obj)
    return effects


def removal_of(key: Key, obj: Object) -> list[Effect]:
    """Returns the request that brings the end of an object nearer."""
    meta = obj["metadata"]
    if (finalizers := without_finalizer(obj)) is not None:
        body: Object = {"metadata": {"finalizers": finalizers or None, "resourceVersion": meta["resourceVersion"]}}
        return [Effect("merge", *key, body, key[0])]
    if "deletionTimestamp" in meta:
        return []
    body = {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}}
    return [Effect("delete", *key, body, key[0])]


def _changeable(kind: str, obj: Object) -> Object:
    """Returns what of an object can be changed after it was made."""
    if kind == "Service":
        return {**obj, "spec": {k: v for k, v in obj["spec"].items() if k != "clusterIP"}}
    if kind == "StatefulSet":
        fixed = ("selector", "serviceName", "podManagementPolicy")
        return {**obj, "spec": {k: v for k, v in obj["spec"].items() if k not in fixed}}
    return obj
