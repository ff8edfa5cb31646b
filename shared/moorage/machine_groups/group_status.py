"""Writes the status of Machines and their pools, and tells guests why they wait. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from moorage.model.machines import Condition

from . import status
from .cluster_objects import ClusterObjects, Object
from .effects import Effect, pod_event
from .group_state import GroupState
from .handover_records import Guest, TypeCounts
from .layout import Slots
from .names import machine_key, pool_name
from .objects import difference

#: Seconds between two writes of a status. What becomes of Nodes is told at once.
STATUS_INTERVAL = 0.2
#: A guest that waits is told why once, until it is this many seconds old; of older guests others have told it.
TELL_UNTIL = 60.0
#: Events of one plan.
MAX_TOLD = 20


def conditions_of(obj: Object, found: list[status.Finding], now: float) -> list[Object]:
    """Returns the conditions of an object."""
    before = (obj.get("status") or {}).get("conditions") or []
    return status.conditions(found, before, int(obj["metadata"].get("generation") or 0), now)


def status_effect(
    cluster: ClusterObjects, kind: str, obj: Object, wanted: Object, now: float, times: list[float]
) -> list[Effect]:
    """Returns the request that makes the status of an object what it is to be, if it differs."""
    meta = obj["metadata"]
    patch = difference(wanted, obj.get("status") or {})
    key = (kind, "", meta["name"])
    if patch is None or not cluster.writes.is_new(key):
        return []
    # Another controller may write it, too, whenever it is changed.
    lasting = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in wanted["conditions"]]
    about = {**wanted, "conditions": lasting, "uid": meta.get("uid")}
    if not cluster.writes.may_repair(key, about, now, times, "status"):
        return []
    body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": patch}
    return [Effect("status", kind, "", meta["name"], body, "status")]


def status_effects(
    cluster: ClusterObjects,
    group: GroupState,
    machine: Object,
    slots: Slots,
    states: Mapping[str, Condition],
    usable: frozenset[str],
    now: float,
    times: list[float],
) -> list[Effect]:
    """Returns the requests that write the status of a Machine and of its pool."""
    if now < group.status_at + STATUS_INTERVAL and states == group.told_nodes:
        times.append(group.status_at + STATUS_INTERVAL)
        cluster.writes.later[("Status", "", group.machine.group)] = group.status_at + STATUS_INTERVAL
        return []
    counts = group.handover.counts(usable)
    lacking = Counter(p.type for p in group.handover.reservations.values() if p.unschedulable and not p.bound)
    short = {}
    for name, row in counts.items():
        if name in slots and group.handover.maximum.get(name):
            held = sum(count for node, count in slots[name].items() if node in usable)
            missing = max(0, row.maximum - max(held, row.used)) + lacking[name]
            short[name] = (missing, row.maximum)
    left = len(cluster.left_over.pods_of(group.machine.group))
    found = status.findings(group.machine, short, states, left)
    wanted = {"conditions": conditions_of(machine, found, now), "availableMachines": status.usage_rows(counts)}
    effects = status_effect(cluster, "Machine", machine, wanted, now, times)
    keys = [("Machine", "", group.machine.name), ("MachineNodePool", "", pool_name(group.machine.name))]
    if not any(cluster.writes.is_busy(key) for key in keys):
        group.told_nodes = states
    pool = cluster.objects.get(keys[1])
    if pool is not None:
        listed = [{"name": name, "condition": state} for name, state in states.items()]
        wanted = {"conditions": conditions_of(pool, [found[0], found[2]], now), "nodePool": listed}
        effects += status_effect(cluster, "MachineNodePool", pool, wanted, now, times)
    if effects:
        group.status_at = now
    return effects


def waiting_events(
    cluster: ClusterObjects, group: GroupState, usable: frozenset[str], now: float, times: list[float]
) -> list[Effect]:
    """Tells new guests why they still wait, some at a time."""
    if not group.untold:
        return []
    due = [uid for uid, time in group.untold.items() if time <= now]
    effects: list[Effect] = []
    counts = group.handover.counts(usable) if due else {}
    for uid in due:
        guest = group.handover.guests.get(uid)
        is_new = group.untold[uid] + TELL_UNTIL > now
        if guest is None or not guest.gated or guest.deleting or not guest.ready or not is_new:
            del group.untold[uid]
        elif len(effects) < MAX_TOLD:
            del group.untold[uid]
            effects.append(pod_event(guest, *_why_waiting(cluster, group, guest, counts)))
    if group.untold:
        cluster.writes.later["Waiting", "", group.machine.group] = later = max(now + 0.5, min(group.untold.values()))
        times.append(later)
    return effects


def _why_waiting(
    cluster: ClusterObjects, group: GroupState, guest: Guest, counts: Mapping[str, TypeCounts]
) -> tuple[str, str]:
    """Returns the code of a reason, and what it means with numbers."""
    told = cluster.mesh_reasons.get(guest.uid) if cluster.connected else None
    if told is not None and told.message:
        return told.code, told.message
    row = counts[guest.type]
    machine = machine_key(group.machine.group, guest.type)
    numbers = f"{row.used} of {row.maximum} are used, {row.waiting} guests wait"
    if guest.window:
        return "WindowClosed", f"window {guest.window!r} of {machine} is closed or full; {numbers}"
    if cluster.expects_mesh and not cluster.connected:
        return "MeshUnreachable", f"the mesh, which gives out slots of {machine}, cannot be reached; {numbers}"
    if row.reserved:
        return "SlotUnbound", f"no Node with a free slot of {machine} may be used by this Pod; {numbers}"
    return "SlotShort", f"no slot of {machine} is free; {numbers}"
