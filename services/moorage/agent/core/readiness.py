"""Derives how ready an object is from the status that its controller writes, by the conventions of Kubernetes, so that custom
resources that follow them are understood too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

State = Literal["Ready", "Progressing", "Failed"]


class Readiness(NamedTuple):
    state: State
    message: str = ""
    ready: int = 0
    wanted: int = 0
    code: str = ""  # of a reason, where one says more than the message


READY = Readiness("Ready")


def readiness_of(obj: Mapping[str, Any]) -> Readiness:
    meta = obj.get("metadata") or {}
    if meta.get("deletionTimestamp"):
        return Readiness("Progressing", "is being deleted")
    status = obj.get("status") or {}
    seen = status.get("observedGeneration")
    if isinstance(seen, int) and seen < int(meta.get("generation") or 0):
        return Readiness("Progressing", "its controller has not seen the change yet")
    return _KINDS.get(str(obj.get("kind")), _other)(obj.get("spec") or {}, status)


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(c.get("type")): c for c in status.get("conditions") or () if isinstance(c, dict)}


def _message(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "")


def _is(condition: Mapping[str, Any] | None, value: str) -> bool:
    return condition is not None and condition.get("status") == value


def _unobserved(status: Mapping[str, Any]) -> bool:
    return "observedGeneration" not in status


def _rollout(wanted: int, updated: int, ready: int, total: int, status: Mapping[str, Any]) -> Readiness:
    if _unobserved(status):
        return Readiness("Progressing", "its controller has not seen it yet", 0, wanted)
    if updated < wanted:
        return Readiness("Progressing", f"{updated} of {wanted} pods are of this version", ready, wanted)
    if ready < wanted:
        return Readiness("Progressing", f"{ready} of {wanted} pods are ready", ready, wanted)
    if total > wanted:
        return Readiness("Progressing", f"{total - wanted} old pods still run", ready, wanted)
    return Readiness("Ready", "", ready, wanted)


def _deployment(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    wanted = int(spec.get("replicas", 1))
    ready = int(status.get("availableReplicas") or 0)
    conditions = _conditions(status)
    for condition in (conditions.get("ReplicaFailure"), conditions.get("Progressing")):
        late = condition is not None and condition.get("reason") == "ProgressDeadlineExceeded"
        if condition is not None and (late or (condition.get("type") == "ReplicaFailure" and _is(condition, "True"))):
            return Readiness("Failed", _message(condition), ready, wanted)
    return _rollout(wanted, int(status.get("updatedReplicas") or 0), ready, int(status.get("replicas") or 0), status)


def _stateful(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    wanted = int(spec.get("replicas", 1))
    ready = int(status.get("readyReplicas") or 0)
    if (spec.get("updateStrategy") or {}).get("type") == "OnDelete":
        return _rollout(wanted, wanted, ready, wanted, status)
    changed = status.get("updateRevision") != status.get("currentRevision")
    updated = int(status.get("updatedReplicas") or 0) if changed else int(status.get("replicas") or 0)
    return _rollout(wanted, updated, ready, int(status.get("replicas") or 0), status)


def _daemon(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    wanted = int(status.get("desiredNumberScheduled") or 0)
    ready = int(status.get("numberAvailable") or 0)
    return _rollout(wanted, int(status.get("updatedNumberScheduled") or 0), ready, wanted, status)


def _replicas(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    wanted = int(spec.get("replicas", 1))
    ready = int(status.get("readyReplicas") or 0)
    failure = _conditions(status).get("ReplicaFailure")
    if failure is not None and _is(failure, "True"):
        return Readiness("Failed", _message(failure), ready, wanted)
    return _rollout(wanted, wanted, ready, int(status.get("replicas") or 0), status)


def _job(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    wanted = int(spec.get("completions") or 1)
    done = int(status.get("succeeded") or 0)
    conditions = _conditions(status)
    failed = conditions.get("Failed")
    if failed is not None and _is(failed, "True"):
        return Readiness("Failed", _message(failed), done, wanted)
    active = int(status.get("ready") or 0)
    if _is(conditions.get("Complete"), "True") or done >= wanted or spec.get("suspend"):
        return Readiness("Ready", "", done, wanted)
    if active:  # a running Job is ready: its end is not awaited
        return Readiness("Ready", f"{active} pods run", done + active, wanted)
    return Readiness("Progressing", "no pod is ready yet", done, wanted)


def _pod(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    phase = status.get("phase", "Pending")
    conditions = _conditions(status)
    if phase == "Succeeded" or _is(conditions.get("Ready"), "True"):
        return Readiness("Ready", "", 1, 1)
    if phase == "Failed":
        return Readiness("Failed", str(status.get("message") or status.get("reason") or "the pod failed"), 0, 1)
    scheduled = conditions.get("PodScheduled")
    if scheduled is not None and _is(scheduled, "False"):
        return Readiness("Progressing", _message(scheduled), 0, 1)
    return Readiness("Progressing", f"the pod is {phase}", 0, 1)


def _bound(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    phase = status.get("phase", "Pending")
    if phase == "Lost":
        return Readiness("Failed", "its volume is lost")
    # A volume may wait for its first pod, and a pod whose volume cannot be bound is reported itself.
    return READY


def _namespace(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    return READY if status.get("phase", "Active") == "Active" else Readiness("Progressing", "is being deleted")


def _crd(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    conditions = _conditions(status)
    refused = conditions.get("NamesAccepted")
    if refused is not None and _is(refused, "False"):
        return Readiness("Failed", _message(refused))
    return READY if _is(conditions.get("Established"), "True") else Readiness("Progressing", "is not established yet")


def _other(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Readiness:
    conditions = _conditions(status)
    for name in ("Stalled", "Failed"):
        condition = conditions.get(name)
        if condition is not None and _is(condition, "True"):
            return Readiness("Failed", _message(condition))
    for name in ("Ready", "Available"):
        condition = conditions.get(name)
        if condition is not None and not _is(condition, "True"):
            return Readiness("Progressing", _message(condition))
    return READY


_KINDS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Readiness]] = {
    "Deployment": _deployment,
    "StatefulSet": _stateful,
    "DaemonSet": _daemon,
    "ReplicaSet": _replicas,
    "ReplicationController": _replicas,
    "Job": _job,
    "CronJob": lambda spec, status: READY,
    "Pod": _pod,
    "PersistentVolumeClaim": _bound,
    "Namespace": _namespace,
    "CustomResourceDefinition": _crd,
    "Service": lambda spec, status: READY,
}
