"""Makes requests of what is planned for the slots of one group. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from moorage.podspec import CLAIM

from .cluster_objects import ClusterObjects, Object
from .effects import Effect, pod_event
from .group_state import GroupState, StoredSlots, grants_text
from .handover import Handover
from .handover_records import Opening, Plan, Stored
from .injection import with_tolerations
from .layout import Slots
from .names import GRANTS, MACHINE_GROUP, OTHER_NAMESPACE, SLOT_GATE, SLOTS, machine_key
from .object_writes import REPAIR_INTERVAL, Key
from .pods import opening_patch, pin_patch
from .takeover import removal, taken_over_patch


def handover_effects(
    cluster: ClusterObjects,
    group: GroupState,
    plan: Plan,
    slots: Mapping[str, StoredSlots],
    writing: Collection[Key],
    now: float,
    times: list[float],
) -> list[Effect]:
    """`writing`: objects of which something else is being written."""
    effects: list[Effect] = []
    handover = group.handover
    claims = {name: cluster.reservation_of(group, name) for name in group.sizes}
    for name in group.sizes:
        obj = cluster.set_of(group, name)
        if obj is None:
            continue
        key = ("StatefulSet", cluster.namespace, obj["metadata"]["name"])
        if key in writing or cluster.writes.is_busy(key):
            continue
        kept = slots.get(name)
        if kept is None and claims[name]:  # it has no slots of its own, but guests that are counted to its claim
            kept = StoredSlots(claim=claims[name], mesh=True)
        effects += _store_effect(cluster, obj, plan.stores.get(name), kept, now, times)
    for name, node in plan.pins.items():
        if not cluster.writes.is_free(("Pod", cluster.namespace, name), now):
            continue
        pod = handover.reservations[name]
        handover.pinning[name] = node
        body = pin_patch(pod.uid, pod.version, cluster.pin_specs.get(name, {}), [SLOT_GATE], node)
        if claims[pod.type]:
            body["metadata"]["labels"] = {CLAIM: claims[pod.type]}  # so that the mesh counts the Pod in its slot
        effects.append(Effect("merge", "Pod", cluster.namespace, name, body, "pin"))
    for pod in handover.reservations.values():
        # It was pinned before the mesh told of the claim.
        claim = claims.get(pod.type)
        if (
            claim
            and pod.node
            and not (pod.claim or pod.deleting)
            and cluster.writes.is_free(("Pod", cluster.namespace, pod.name), now)
        ):
            body = {"metadata": {"uid": pod.uid, "labels": {CLAIM: claim}}}
            effects.append(Effect("merge", "Pod", cluster.namespace, pod.name, body, "claim"))
    for name, lost in cluster.strayed.items():
        key = ("Pod", cluster.namespace, name)
        ours = lost.labels.get(MACHINE_GROUP) == handover.machine.group
        if (
            ours
            and not cluster.writes.is_busy(key)
            and cluster.writes.may_repair(key, lost.labels, now, times, "labels")
        ):
            body = {"metadata": {"uid": lost.uid, "labels": dict(lost.labels)}}
            effects.append(Effect("merge", *key, body, "reservation"))
    for name in plan.removals:
        if not cluster.writes.is_free(("Pod", cluster.namespace, name), now):
            continue
        handover.removing.add(name)
        body = {"preconditions": {"uid": handover.reservations[name].uid}}
        effects.append(Effect("delete", "Pod", cluster.namespace, name, body, "reservation"))
    for name in plan.forced:
        key = ("Pod", cluster.namespace, name)
        body = {"preconditions": {"uid": handover.reservations[name].uid}, "gracePeriodSeconds": 0}
        if not cluster.writes.is_busy(key) and cluster.writes.may_repair(key, body, now, times, "forced"):
            effects.append(Effect("delete", *key, body, "reservation"))
    for opening in plan.openings:
        effects += _opening_effect(cluster, handover, opening, claims[opening.guest.type], now)
    for found in plan.evictions:
        key = ("Pod", found.namespace, found.name)
        if cluster.writes.is_free(key, now):
            cluster.writes.later[key] = now + REPAIR_INTERVAL
            meta = {"name": found.name, "namespace": found.namespace}
            options = {"preconditions": {"uid": found.uid}}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
            effects.append(Effect("evict", *key, body, "eviction"))
            text = f"not bound to {found.node} within 60 s; its successor tries other Nodes"
            effects.append(pod_event(found, "SlotUnbound", text))
    return effects


def _opening_effect(
    cluster: ClusterObjects, handover: Handover, opening: Opening, claim: str, now: float
) -> list[Effect]:
    found = opening.guest
    key = ("Pod", found.namespace, found.name)
    if not cluster.writes.is_free(key, now):
        return []
    handover.opening[found.uid] = opening.grant.node
    cluster.given_at[found.uid] = max(opening.grant.at, opening.grant.not_before)
    own = cluster.shapes.spec(found)
    body = opening_patch(opening, own, now, claim)
    wanted, _ = cluster.groups()[handover.machine.group].needs(found.type)
    tolerated = with_tolerations(own, wanted)["tolerations"]
    if tolerated != own["tolerations"]:
        body["spec"]["tolerations"] = tolerated
    return [Effect("merge", *key, body, "open")]


def _store_effect(
    cluster: ClusterObjects,
    obj: Object,
    stored: Stored | None,
    slots: StoredSlots | None,
    now: float,
    times: list[float],
) -> list[Effect]:
    """Writes replicas, grants and slots of a StatefulSet in one request, which fails if another process wrote meanwhile."""
    meta = obj["metadata"]
    key = ("StatefulSet", cluster.namespace, meta["name"])
    annotations: dict[str, str] = {}
    before = meta.get("annotations") or {}
    patch: Object = {}
    if stored is not None:
        text = grants_text(stored.grants)
        if before.get(GRANTS, "") != text:
            annotations[GRANTS] = text
        if obj["spec"].get("replicas") != stored.replicas:
            patch["spec"] = {"replicas": stored.replicas}
    if slots is not None:
        text = msgspec.json.encode(slots, order="sorted").decode()
        if before.get(SLOTS) != text:
            annotations[SLOTS] = text
    if annotations:
        patch["metadata"] = {"annotations": {k: v or None for k, v in annotations.items()}}
    if not patch or not cluster.writes.may_repair(key, patch, now, times, "slots"):
        return []
    patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": meta["resourceVersion"]}}
    return [Effect("merge", *key, patch, "grant" if stored is not None and stored.grants else "scale")]


def takeover_effects(cluster: ClusterObjects, group: GroupState, plan: Plan, slots: Slots, now: float) -> list[Effect]:
    """Removes what another controller left of a group, and lets its guests be known as guests."""
    name = group.machine.group
    effects: list[Effect] = []
    # Until slots are laid out there is nothing that could replace what it holds.
    if any(slots.values()) or not any(group.handover.maximum.values()):
        effects += cluster.left_over.removals(name)
        if not cluster.left_over.has_sets(name):
            effects += [removal(pod) for pod in plan.replaced]
    for pod in cluster.left_over.pods_of(name):
        order = cluster.orders.get(machine_key(name, pod.type))
        if pod.bound and not (pod.claim or pod.deleting) and order is not None and order.claim:
            body = {"metadata": {"uid": pod.uid, "labels": {CLAIM: order.claim}}}
            effects.append(Effect("merge", "Pod", OTHER_NAMESPACE, pod.name, body, "takeover"))
    for uid in sorted(group.unmarked):
        found = group.handover.guests.get(uid)
        if found is None or found.deleting:
            continue
        machine = machine_key(name, found.type)
        order = cluster.orders.get(machine)
        claim = order.claim if order is not None and found.bound and not found.has_claim else ""
        if claim or not found.is_marked:
            body = taken_over_patch(found, machine, claim)
            effects.append(Effect("merge", "Pod", found.namespace, found.name, body, "takeover"))
    return [e for e in effects if cluster.writes.is_free(e.key, now)]
