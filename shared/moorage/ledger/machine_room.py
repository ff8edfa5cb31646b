"""Counts what reservations of machines take of nodes, beyond the pods that fill their slots.

A slot takes its size until a live pod is in it, whoever's that is: the reservation's own, a guest, or one of an application
that the mesh placed there. It offers itself as a resource of the node all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moorage.fleet import Fleet
from moorage.model.claims import SlotGrants
from moorage.model.machine_slots import ReservedSlots, reservation_claim

from .families import NodeAmounts, add


def reserved_room(reserved: ReservedSlots, claims: Iterable[str], fleet: Fleet) -> NodeAmounts:
    """Returns what the slots take by node. Pods of `claims` fill them."""
    cid = fleet.ids.get(reserved.cluster)
    live: dict[str, int] = {}
    for claim in claims if cid is not None else ():
        add(live, fleet.pods.live(claim, cid))
    children = [
        (size, fleet.pods.live(reservation_claim(child, reserved.cluster), cid) if cid is not None else {})
        for child, size in reserved.children.items()
    ]
    found: NodeAmounts = {}
    for node, count in reserved.slots.items():
        amounts: dict[str, int] = {}
        add(amounts, reserved.size, max(0, count - live.get(node, 0)))
        for size, pods in children:
            for name, amount in size.items():
                amounts[name] = max(0, amounts.get(name, 0) - amount * pods.get(node, 0))
        add(amounts, reserved.offered(node), -1)
        found[node] = {name: amount for name, amount in amounts.items() if amount}
    return found


def granted_room(entry: SlotGrants) -> dict[str, NodeAmounts]:
    """Returns what guests take of slots, by cluster and node."""
    found: dict[str, NodeAmounts] = {}
    for slot in entry.granted:
        add_slot(found, slot.cluster, slot.node, slot.takes)
    return found


def add_slot(total: dict[str, NodeAmounts], cluster: str, node: str, amounts: Mapping[str, int]) -> None:
    if amounts:
        add(total.setdefault(cluster, {}).setdefault(node, {}), amounts)
