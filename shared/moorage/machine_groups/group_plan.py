"""Plans what is to be written for one group. Pure."""

from __future__ import annotations

from . import status
from .cluster_objects import ClusterObjects
from .effects import Effect
from .group_objects import object_effects
from .group_slots import set_aside_of, silent_nodes, slots_of
from .group_state import GroupState
from .group_status import conditions_of, status_effect, status_effects, waiting_events
from .guest_rules import PlacedGuests
from .handover_effects import handover_effects, takeover_effects
from .handover_plan import plan_handover
from .handover_records import Situation


def plan_group(cluster: ClusterObjects, group: GroupState, now: float, times: list[float]) -> list[Effect]:
    machine = cluster.machines.get(group.machine.name)
    if machine is None:
        return []
    if cluster.other_controller:
        text = f"{cluster.other_controller} still acts on Machines; remove it, and this one takes over"
        found = [status.Finding("Ready", False, "OtherControllerActive", text)]
        wanted = {"conditions": conditions_of(machine, found, now)}
        return status_effect(cluster, "Machine", machine, wanted, now, times)
    if group.machine.name in cluster.invalid:
        return []
    effects = object_effects(cluster, group, now, times)
    states = cluster.pool_conditions(group)
    usable = frozenset(name for name, state in states.items() if state == "Ready")
    stored_slots = slots_of(cluster, group, states, now)
    slots = {name: found.slots for name, found in stored_slots.items()}
    sets = {name: cluster.set_of(group, name) for name in group.sizes}
    stored = {name: group.stored_of(name, obj) for name, obj in sets.items() if obj is not None}
    situation = Situation(
        slots,
        {name: found.offline for name, found in stored_slots.items()},
        usable,
        stored,
        cluster.grants if cluster.connected else None,
        cluster.shapes.nodes_for(group),
        _placed(cluster, group),
        cluster.left_over.pods_of(group.machine.group),
        set_aside_of(group, stored_slots),
        silent_nodes(cluster, group, now),
    )
    plan = plan_handover(group.handover, now, situation)
    next_times = [time for time in (plan.next, group.limits.next_time(now)) if time is not None]
    if next_times:
        times.append(min(next_times))
        cluster.writes.later[("Group", "", group.machine.group)] = min(next_times)
    writing = {effect.key for effect in effects}
    effects += handover_effects(cluster, group, plan, stored_slots, writing, now, times)
    effects += takeover_effects(cluster, group, plan, slots, now)
    effects += waiting_events(cluster, group, usable, now, times)
    effects += status_effects(cluster, group, machine, slots, states, usable, now, times)
    return effects


def _placed(cluster: ClusterObjects, group: GroupState) -> PlacedGuests:
    """Returns the guests on Nodes, and those of other groups that are about to come there."""
    placed = cluster.shapes.placed()
    for other in cluster.by_group.values():
        if other is not group:
            for _, stored in other.stored.values():
                for uid, grant in stored.grants.items():
                    if uid in other.handover.guests:
                        placed.put(uid, grant.node)
    return placed
