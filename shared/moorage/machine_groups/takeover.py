"""Takes over what another controller of Machines left behind, once it is gone: its StatefulSets, their Pods, and its Services. Pure.

Its StatefulSets go without their Pods, which hold their places until reservations or guests are to have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moorage.podspec import CLAIM

from .effects import Effect
from .handover_records import Guest, ReservationPod
from .names import GIVEN_ALONE, GUEST, MACHINE_GROUP, MACHINE_TYPE, OTHER_FINALIZER, OTHER_NAMESPACE, POD_ROLE, SLOT_OF

Object = dict[str, Any]
Key = tuple[str, str, str]


class LeftOver:
    """`objects`: its StatefulSets and Services by kind, namespace and name; None as long as nobody could look."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] | None = None
        self._pods: dict[str, tuple[str, ReservationPod]] = {}  # name → group, Pod

    def set_objects(self, objects: Iterable[tuple[str, Object]]) -> set[str]:
        """Replaces its objects, each with its kind, and returns the groups of which something changed."""
        before = self.objects
        self.objects = {(kind, OTHER_NAMESPACE, obj["metadata"]["name"]): obj for kind, obj in objects}
        if before is not None and before.keys() == self.objects.keys():
            return set()
        return {group_of(obj) for obj in (*(before or {}).values(), *self.objects.values())} | self.groups

    def put_pod(self, group: str, pod: ReservationPod) -> None:
        self._pods[pod.name] = group, pod

    def drop_pod(self, name: str, uid: str) -> None:
        if name in self._pods and self._pods[name][1].uid == uid:
            del self._pods[name]

    @property
    def groups(self) -> set[str]:
        """Returns the groups whose places are held by its Pods."""
        return {group for group, _ in self._pods.values()}

    def pods_of(self, group: str) -> list[ReservationPod]:
        return [pod for name, pod in self._pods.values() if name == group]

    def places(self, group: str, machine_type: str) -> Counter[str]:
        """Returns how many of its Pods of a type are on each Node."""
        return Counter(pod.node for pod in self.pods_of(group) if pod.bound and pod.type == machine_type)

    def took(self, key: Key) -> str | None:
        """Forgets an object that was deleted, and returns its group; None where it is none of these."""
        found = self.objects.pop(key, None) if self.objects is not None else None
        return None if found is None else group_of(found)

    def group_of(self, key: Key) -> str | None:
        found = (self.objects or {}).get(key)
        return None if found is None else group_of(found)

    def removals(self, group: str) -> list[Effect]:
        """Returns the requests that remove its objects of a group. Until they are done, its Pods would come again."""
        effects = []
        for key, obj in (self.objects or {}).items():
            if group_of(obj) == group and "deletionTimestamp" not in obj["metadata"]:
                policy = "Orphan" if key[0] == "StatefulSet" else "Background"
                body = {"propagationPolicy": policy, "preconditions": {"uid": obj["metadata"]["uid"]}}
                effects.append(Effect("delete", *key, body, "takeover"))
        return effects

    def has_sets(self, group: str) -> bool:
        """Returns whether Pods that are deleted may come again."""
        if self.objects is None:
            return True
        return any(key[0] == "StatefulSet" and group_of(obj) == group for key, obj in self.objects.items())

    def strays(self, groups: Collection[str]) -> list[ReservationPod]:
        """Returns the Pods of groups that no Machine has any more."""
        return [p for group, p in self._pods.values() if group not in groups and not p.deleting and not self.has_sets(group)]  # fmt: skip


def removal(pod: ReservationPod) -> Effect:
    """Returns the request that removes a Pod. It ends without waiting: what runs in it does not listen to signals."""
    body = {"gracePeriodSeconds": 1, "preconditions": {"uid": pod.uid}}
    return Effect("delete", "Pod", OTHER_NAMESPACE, pod.name, body, "takeover")


def taken_over_patch(guest: Guest, machine: str, claim: str) -> Object:
    """Returns the merge patch that makes a Pod known as a guest that was let in. `claim`: what its slot is counted to, in the mesh."""
    annotations = {SLOT_OF: machine, GIVEN_ALONE: "true"} if guest.alone else {SLOT_OF: machine}
    labels = {MACHINE_GROUP: machine.partition("/")[0], MACHINE_TYPE: guest.type, POD_ROLE: GUEST}
    return {
        "metadata": {"uid": guest.uid, "annotations": annotations, "labels": labels | ({CLAIM: claim} if claim else {})}
    }


def without_finalizer(obj: Mapping[str, Any]) -> list[str] | None:
    """Returns the finalizers of an object without that of the other controller, which nobody would remove; None if it has none."""
    finalizers = obj["metadata"].get("finalizers") or []
    return [f for f in finalizers if f != OTHER_FINALIZER] if OTHER_FINALIZER in finalizers else None


def group_of(obj: Mapping[str, Any]) -> str:
    return str((obj["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))
