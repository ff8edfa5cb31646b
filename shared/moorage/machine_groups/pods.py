"""Reads Pods of the API server as guests and reservations, and makes the patches that let them go to their Nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage.model.object_names import CLAIM
from moorage.podspec import pinned_node, pinned_to

from .guest_nodes import shape_text
from .handover_records import OFFLINE, Guest, Opening, ReservationPod
from .injection import machine_type_of
from .names import (
    GIVEN_ALONE,
    GRANTED_AT,
    GUEST,
    MACHINE_GROUP,
    OTHER_NAMESPACE,
    POD_ROLE,
    RESERVATION,
    SLOT_GATE,
    SLOT_OF,
    WINDOW,
)
from .windows import deadline_seconds

#: The grace period of pods that name none.
DEFAULT_GRACE = 30
Pod = Mapping[str, Any]


def labels_of(pod: Pod) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}


def gates_of(pod: Pod) -> list[str]:
    return [gate.get("name", "") for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]


def group_of(pod: Pod) -> str:
    return labels_of(pod).get(MACHINE_GROUP, "")


def was_let_in(pod: Pod) -> bool:
    return SLOT_OF in (pod["metadata"].get("annotations") or {}) or (
        SLOT_GATE in gates_of(pod) and labels_of(pod).get(POD_ROLE) == GUEST
    )


def has_role_of_guest(pod: Pod) -> bool:
    return labels_of(pod).get(POD_ROLE, GUEST) == GUEST


def is_over(pod: Pod) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _owner(pod: Pod) -> Mapping[str, Any]:
    return next((o for o in pod["metadata"].get("ownerReferences") or () if o.get("controller")), {})


def reservation(pod: Pod, name: str, namespace: str) -> ReservationPod | None:
    """Returns the reservation that a Pod of the StatefulSet `name` is; None for one that only looks like it."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    labels, owner = labels_of(pod), _owner(pod)
    prefix, _, ordinal = meta["name"].rpartition("-")
    if labels.get(POD_ROLE) != RESERVATION or meta.get("namespace") != namespace or is_over(pod):
        return None
    if owner.get("kind") != "StatefulSet" or owner.get("name") != name or prefix != name or not ordinal.isdigit():
        return None
    gated = SLOT_GATE in gates_of(pod)
    return ReservationPod(
        uid=meta["uid"],
        name=meta["name"],
        version=meta["resourceVersion"],
        type=machine_type_of(labels),
        ordinal=int(ordinal),
        node=spec.get("nodeName") or ("" if gated else pinned_node(spec)),
        bound=bool(spec.get("nodeName")),
        deleting="deletionTimestamp" in meta,
        unschedulable=_is_unschedulable(pod),
        unschedulable_since=_unschedulable_since(pod),
        claim=labels.get(CLAIM, ""),
    )


def left_over(pod: Pod) -> ReservationPod | None:
    """Returns the reservation that a Pod of another controller is, which is not over; its StatefulSet may be gone already."""
    meta, spec, labels = pod["metadata"], pod.get("spec") or {}, labels_of(pod)
    if meta.get("namespace") != OTHER_NAMESPACE or labels.get(POD_ROLE) != RESERVATION or is_over(pod):
        return None
    ordinal = meta["name"].rpartition("-")[2]
    return ReservationPod(
        uid=meta["uid"],
        name=meta["name"],
        version=meta["resourceVersion"],
        type=machine_type_of(labels),
        ordinal=int(ordinal) if ordinal.isdigit() else 0,
        node=spec.get("nodeName") or "",
        bound=bool(spec.get("nodeName")),
        deleting="deletionTimestamp" in meta,
        unschedulable=_is_unschedulable(pod),
        claim=labels.get(CLAIM, ""),
    )


def guest(pod: Pod) -> Guest:
    """Returns the guest that a Pod is, which is not over."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    labels, gates = labels_of(pod), gates_of(pod)
    gated = SLOT_GATE in gates
    bound = spec.get("nodeName") or ""
    grace = spec.get("terminationGracePeriodSeconds")
    claim = labels.get(CLAIM, "")
    return Guest(
        uid=meta["uid"],
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        version=meta["resourceVersion"],
        type=machine_type_of(labels),
        bound=bool(bound),
        gated=gated and not bound,
        ready=all(gate == SLOT_GATE for gate in gates),
        deleting="deletionTimestamp" in meta,
        node=bound or ("" if gated else pinned_node(spec)),
        window=labels.get(WINDOW, ""),
        claim=claim,
        owner=str(_owner(pod).get("kind", "")),
        owner_uid=str(_owner(pod).get("uid", "")),
        shape=shape_text(spec),
        created=meta.get("creationTimestamp") or "",
        priority=int(spec.get("priority") or 0),
        seconds=int(spec.get("activeDeadlineSeconds") or 0),
        grace=DEFAULT_GRACE if grace is None else int(grace),
        granted_at=_granted_at(pod),
        is_marked=SLOT_OF in (meta.get("annotations") or {}),
        alone=claim.startswith(OFFLINE) or GIVEN_ALONE in (meta.get("annotations") or {}),
    )


def _granted_at(pod: Pod) -> float:
    text = (pod["metadata"].get("annotations") or {}).get(GRANTED_AT, "")
    if text.isascii() and text.isdigit():
        return int(text) / 1000
    created = pod["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(created).timestamp() if created else 0.0


def _is_unschedulable(pod: Pod) -> bool:
    return _unschedulable(pod) is not None


def _unschedulable_since(pod: Pod) -> float:
    since = (_unschedulable(pod) or {}).get("lastTransitionTime")
    return datetime.fromisoformat(since).timestamp() if since else 0.0


def _unschedulable(pod: Pod) -> Mapping[str, Any] | None:
    """Returns the condition that says that the scheduler found no room for a Pod."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "PodScheduled" and c.get("reason") == "Unschedulable"), None)


def pin_patch(uid: str, version: str, spec: Mapping[str, Any], gates: list[str], node: str) -> dict[str, Any]:
    """Returns the merge patch that pins a Pod to a Node and takes its gate off, if nothing of it changed."""
    affinity = pinned_to({"affinity": spec.get("affinity") or {}}, node)["affinity"]
    rest = [{"name": gate} for gate in gates if gate != SLOT_GATE]
    return {
        "metadata": {"uid": uid, "resourceVersion": version},
        "spec": {"schedulingGates": rest or None, "affinity": {"nodeAffinity": affinity["nodeAffinity"]}},
    }


def opening_patch(opening: Opening, spec: Mapping[str, Any], now: float, reservation: str = "") -> dict[str, Any]:
    """Returns the merge patch that lets a guest go to its slot. `reservation`: the claim of all slots of its type, if the mesh told it."""
    guest, grant = opening
    patch = pin_patch(guest.uid, guest.version, spec, [SLOT_GATE], grant.node)
    annotations = patch["metadata"]["annotations"] = {GRANTED_AT: str(int(now * 1000))}
    if grant.alone:
        annotations[GIVEN_ALONE] = "true"
    if not guest.claim:
        patch["metadata"]["labels"] = {CLAIM: reservation if grant.alone and reservation else grant.claim}
    if grant.until:
        patch["spec"]["activeDeadlineSeconds"] = max(1, deadline_seconds(grant.until, now, guest.grace, guest.seconds))
    return patch
