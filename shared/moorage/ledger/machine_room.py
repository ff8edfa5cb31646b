"""Counts what reservations of machines take of nodes, beyond the pods that fill their slots.

A slot takes its size until a live pod is in it, whoever's that is: the reservation's own, a guest, or one of an application
that the mesh placed there. It offers itself as a resource of the node all the time.

What is free of slots in which pods of other types live, too, does not add up by type. It is counted by node, and the fleet's columns
are brought to it (`SharedRoom`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from moorage.fleet import Fleet
from moorage.model.claims import SlotGrants
from moorage.model.machine_slots import ReservedSlots, gone_by, machine_of
from moorage.model.shapes import PODS
from moorage.model.shared_slots import SharedSlots

from .families import NodeAmounts, add

ClusterAmounts = Mapping[str, NodeAmounts]


def reserved_room(reserved: ReservedSlots, claims_of: Callable[[str], Iterable[str]], fleet: Fleet) -> NodeAmounts:
    """Returns what the slots take by node. `claims_of`: by machine type, the claims whose pods fill its slots."""
    cid = fleet.ids.get(reserved.cluster)

    def pods(machine: str) -> dict[str, int]:
        live: dict[str, int] = {}
        for claim in claims_of(machine) if cid is not None else ():
            add(live, fleet.pods.live(claim, cid))
        return live

    live = pods(reserved.machine)
    children = [(size, pods(child)) for child, size in reserved.children.items()]
    found: NodeAmounts = {}
    for node, count in reserved.slots.items():
        amounts: dict[str, int] = {}
        add(amounts, reserved.size, max(0, count - live.get(node, 0)))
        if children:  # a slot has room for as many pods as may share it
            amounts[PODS] = max(0, reserved.size.get(PODS, 0) * count - live.get(node, 0))
        for size, there in children:
            for name, amount in size.items():
                amounts[name] = max(0, amounts.get(name, 0) - amount * there.get(node, 0))
        add(amounts, reserved.offered(node), -1)
        found[node] = {name: amount for name, amount in amounts.items() if amount}
    return found


def loses_taken(before: ReservedSlots, after: ReservedSlots, node: str, totals: Mapping[str, int]) -> bool:
    """Returns whether a node has fewer slots after than before that are not for the cluster alone, and somebody has them. `totals`: what is
    taken there of each type, less what is offered before."""
    # Guests may have slots that windows keep from now on, and those that windows keep for later.
    times = {gone_by(name) for name, n in totals.items() if n and machine_of(name) == (before.machine, "")} - {0}
    if not times <= after.before.keys():
        return True
    before, after = (_at_all_times(reserved, before.kept, times) for reserved in (before, after))
    old, new = occupied(before, node, totals), after.shared(node)
    most = {kind.resource: kind.most for kind in old.types}
    capped = any(kind.most is not None and kind.most != most.get(kind.resource) for kind in new.types)
    if after.plain(node) >= before.plain(node) and not capped:
        return False
    counts = {kind.resource: count for kind, count in zip(old.types, old.taken, strict=True)}
    was, left = old.free(), new.with_taken(counts).free()
    return any(free < min(0, was.get(name, 0)) for name, free in left.items())


def _at_all_times(reserved: ReservedSlots, kept: dict[str, int], times: Collection[int]) -> ReservedSlots:
    """Returns the slots as if windows kept these, and none of them until these times."""
    found = msgspec.structs.replace(reserved, kept={})
    free = {node: max(0, found.plain(node)) for node in reserved.slots}
    return msgspec.structs.replace(found, kept=kept, before=dict.fromkeys(times, free))


def occupied(reserved: ReservedSlots, node: str, totals: Mapping[str, int]) -> SharedSlots:
    """Returns the slots of a node with the pods in them. `totals`: what is taken there of each type, less what is offered."""
    empty = reserved.shared(node)
    return empty.with_taken(totals).with_taken({kind.resource: kind.offered for kind in empty.types})


def granted_room(entry: SlotGrants) -> dict[str, NodeAmounts]:
    """Returns what guests take of slots, by cluster and node."""
    found: dict[str, NodeAmounts] = {}
    for slot in entry.granted:
        add_slot(found, slot.cluster, slot.node, slot.takes)
    return found


def add_slot(total: dict[str, NodeAmounts], cluster: str, node: str, amounts: Mapping[str, int]) -> None:
    if amounts:
        add(total.setdefault(cluster, {}).setdefault(node, {}), amounts)
