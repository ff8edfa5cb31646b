"""Works out what the types need that live in slots of another type: how many share a slot, and where those may be of which there are
only so many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moorage.machine_groups import Size, sizes
from moorage.machine_groups.sizes import in_order, per_slot
from moorage.model.machine_slots import slot_resource
from moorage.model.machines import Machine
from moorage.model.shared_slots import SharedSlots, SharedType

from .layout import NodeCounts, NodeKey


def types_below(machine: Machine, root: str) -> list[str]:
    """Returns the types that live in slots of a type, each after the one that it depends on."""
    found, below = sizes(machine), [root]
    for kind in in_order(machine.types):
        if found[kind.name].parent in below:
            below.append(kind.name)
    return below[1:]


def in_use(machine: Machine, pods: Mapping[str, NodeCounts]) -> dict[str, NodeCounts]:
    """Returns how many slots of each type are taken by node, also by pods of types that live in them."""
    found = sizes(machine)
    used = {name: dict(pods.get(name, {})) for name in found}
    for kind in reversed(in_order(machine.types)):
        size = found[kind.name]
        for node, count in used[kind.name].items() if size.parent else ():
            above = used[size.parent]
            above[node] = above.get(node, 0) - (-count // size.per_parent)
    return used


def places_alone(
    machine: Machine, root: str, offline: NodeCounts, alone: Mapping[str, NodeCounts]
) -> dict[str, NodeCounts]:
    """Returns, for types of which there are only so many, how many clusters give out alone on each node: where they did, then in the first
    slots of the root that they give out alone (`offline`). `alone`: slots of each type that they gave out already."""
    found, kinds = sizes(machine), {kind.name: kind for kind in machine.types}
    result: dict[str, NodeCounts] = {}
    for name in types_below(machine, root):
        if kinds[name].available < 0:
            continue
        places = result[name] = {node: count for node, count in alone.get(name, {}).items() if count}
        spare = kinds[name].offline_slots - sum(places.values())
        for node, count in offline.items():
            more = min(spare, count * per_slot(found, name) - places.get(node, 0))
            if more > 0:
                places[node] = places.get(node, 0) + more
                spare -= more
    return result


def limits(
    machine: Machine, root: str, slots: NodeCounts, pods: Mapping[str, NodeCounts], held: Mapping[str, NodeCounts],
    apart: Mapping[str, NodeCounts],
) -> dict[str, NodeCounts]:  # fmt: skip
    """Returns, for types of which there are only so many, how many the mesh may put on each node. They stay where they are and where they
    were allowed; others go first to where there is room for them now. `slots`: of the root, by node; `pods`: by type; `held`: what nodes
    may have by the ledger; `apart`: those that clusters give out alone, of which there are none in `slots` and `pods`."""
    found, below = sizes(machine), types_below(machine, root)
    available = {kind.name: kind.available - sum(apart.get(kind.name, {}).values()) for kind in machine.types}
    limited = [kind.name for kind in machine.types if kind.name in below and kind.available >= 0]
    used = in_use(machine, pods) if limited else {}
    result: dict[str, NodeCounts] = {}
    for name in limited:
        have, most = used[name], {node: per_slot(found, name) * count for node, count in slots.items()}
        room = {node: _room(found, below, root, name, count, pods, node) for node, count in slots.items()}
        places = {node: count for node, count in have.items() if count}
        spare = available[name] - sum(places.values())
        allowed = held.get(name, {})
        for wanted in (
            {node: min(allowed.get(node, 0), have.get(node, 0) + room[node]) for node in slots},
            {node: have.get(node, 0) + room[node] for node in slots},
            most,
        ):
            for node, count in wanted.items():
                more = min(spare, min(count, most[node]) - places.get(node, 0))
                if more > 0:
                    places[node] = places.get(node, 0) + more
                    spare -= more
        result[name] = places
    return result


def _room(
    found: Mapping[str, Size],
    below: Sequence[str],
    root: str,
    name: str,
    slots: int,
    pods: Mapping[str, NodeCounts],
    node: NodeKey,
) -> int:
    """Returns how many more pods of a type have room on a node, whatever their limit."""
    names = [root, *below]
    types = [
        SharedType(slot_resource(n), names.index(found[n].parent) if n != root else -1, found[n].per_parent)
        for n in names
    ]
    shared = SharedSlots(slots, tuple(types), tuple(pods.get(n, {}).get(node, 0) for n in names))
    return max(0, shared.free()[slot_resource(name)])
