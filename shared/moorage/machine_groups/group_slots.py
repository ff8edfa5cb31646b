"""Lays out the slots of one group: those that the mesh gave, or those that the cluster grants alone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from moorage.model.machines import Condition

from .cluster_objects import ClusterObjects
from .group_state import GroupState, StoredSlots, read_slots
from .handover import Handover
from .layout import NodeRoom, Slots, lay_out
from .names import machine_key
from .sizes import root_of
from .slot_assignment import BIND_WITHIN

#: Unused slots of a Node that is not Ready move after this many seconds.
MOVE_AFTER = 300.0


def slots_of(
    cluster: ClusterObjects, group: GroupState, states: Mapping[str, Condition], now: float
) -> dict[str, StoredSlots]:
    """Returns the slots of the types of a group that depend on no other."""
    held = {name: read_slots(cluster.set_of(group, name)) for name in group.sizes}
    ordered: dict[str, StoredSlots] = {}
    for name in group.sizes:
        order = cluster.orders.get(machine_key(group.machine.group, name))
        if order is not None:
            ordered[name] = StoredSlots(slots=order.slots, offline=order.offline, claim=order.claim, mesh=True)
        elif held[name].mesh:
            ordered[name] = held[name]
    local = _local_slots(cluster, group, held, ordered, states, now)
    return {
        name: ordered.get(name) or StoredSlots(slots=local[name], offline=local[name])
        for name, size in group.sizes.items()
        if not size.parent
    }


def set_aside_of(group: GroupState, slots: Mapping[str, StoredSlots]) -> dict[str, int]:
    """Returns how many the cluster grants alone of the types of which the mesh promises only so many."""
    return {
        kind.name: kind.offline_slots
        for kind in group.machine.types
        if kind.spec.dependence is not None and kind.available >= 0 and slots[root_of(group.sizes, kind.name)].mesh
    }


def _local_slots(
    cluster: ClusterObjects, group: GroupState, held: Mapping[str, StoredSlots], ordered: Mapping[str, StoredSlots],
    states: Mapping[str, Condition], now: float,
) -> Slots:  # fmt: skip
    """Lays out the slots that the cluster grants alone, of types of which the mesh said nothing."""
    alone = {
        t.name: t.offline_slots for t in group.machine.types if t.name not in ordered and t.spec.dependence is None
    }
    bound = [(g.type, g.node) for name in group.sizes for g in group.handover.holding(name) if g.bound]
    in_use = _taken(group.handover, alone, bound)
    places = cluster.left_over.places
    kept = {n: held[n].slots or in_use[n] + places(group.machine.group, n) for n in alone}
    rooms = {n: _room(cluster, n, states[n], now) for n in group.entries}
    group.limits.observe(
        (pod for pod in group.handover.reservations.values() if pod.type in alone),
        {n: held[n].slots for n in alone},
        lambda: _taken(group.handover, alone, [*bound, *_granted(group, now)]),
        now,
    )
    return lay_out(
        group.machine, group.sizes, alone, rooms, kept, in_use, lambda name, node: group.limits.most(name, node, now)
    )


def _taken(handover: Handover, types: Iterable[str], guests: Iterable[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Returns how many slots of these types guests take on each Node. `guests`: the type and Node of each."""
    by_node: dict[str, Counter[str]] = {}
    for name, node in guests:
        by_node.setdefault(node, Counter())[name] += 1
    return {name: Counter({n: handover.taken(counts, name) for n, counts in by_node.items()}) for name in types}


def _granted(group: GroupState, now: float) -> Iterable[tuple[str, str]]:
    """Yields the type and Node of each guest that was given a slot and may still be bound there."""
    for _, stored in group.stored.values():
        for uid, grant in stored.grants.items():
            guest = group.handover.guests.get(uid)
            if guest is None or guest.bound or guest.deleting:
                continue
            if guest.gated or now < max(guest.granted_at, grant.at) + BIND_WITHIN:
                yield guest.type, grant.node


def _room(cluster: ClusterObjects, name: str, state: Condition, now: float) -> NodeRoom:
    node = cluster.nodes.get(name)
    keeps_yet = now < cluster.not_ready_since.get(name, now) + MOVE_AFTER
    if node is None:
        return NodeRoom({}, {}, False, state != "Maintenance" and keeps_yet)
    keeps = state == "Ready" or (state == "NotReady" and keeps_yet)
    return NodeRoom(node.allocatable, node.labels, state == "Ready", keeps)


def silent_nodes(cluster: ClusterObjects, group: GroupState, now: float) -> frozenset[str]:
    """Returns the Nodes from which unused slots have moved, and whose kubelets do not end Pods: they are gone, or say nothing."""
    found = set()
    for name in group.entries:
        node = cluster.nodes.get(name)
        since = cluster.not_ready_since.get(name, now)
        if now >= since + MOVE_AFTER and (node is None or node.conditions.get("Ready") != "True"):
            found.add(name)
    return frozenset(found)
