"""Lays out the slots of machine types on the nodes of their pools.

Slots that are there stay, those in use in any case. New ones go where they fit, types in the order of their document, nodes in
the order of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Protocol

from moorage.machine_groups import Size, maximum, sizes
from moorage.machine_groups.sizes import slot_size
from moorage.model.machines import Machine

#: Seconds for which unused slots stay on a node that is not ready.
PATIENCE = 300.0


class NodeKey(NamedTuple):
    cluster: str
    name: str


NodeCounts = dict[NodeKey, int]


class PooledNode(NamedTuple):
    """A node of a pool. `stays`: unused slots that are there stay; `takes`: it takes new ones."""

    key: NodeKey
    types: tuple[str, ...]
    stays: bool
    takes: bool


class Room(Protocol):
    """The room of nodes for slots."""

    def free(self, node: NodeKey, resource: str) -> int:
        """Returns what a node would have free if it had no slots of this Machine, and nothing in them."""

    def allocatable(self, node: NodeKey, resource: str) -> int: ...

    def has_label(self, node: NodeKey, label: tuple[str, str]) -> bool: ...


@dataclass(slots=True)
class TypeLayout:
    """`slots` by node. `takes`: what one takes of its node. `short`: how many are missing, because of `why`."""

    size: Size
    takes: Mapping[str, int]
    maximum: int
    slots: NodeCounts = field(default_factory=dict)
    short: int = 0
    why: str = ""


def lay_out(
    machine: Machine,
    nodes: Sequence[PooledNode],
    held: Mapping[str, Mapping[NodeKey, int]],
    used: Mapping[str, Mapping[NodeKey, int]],
    room: Room,
) -> dict[str, TypeLayout]:
    """Returns the layout of each type that is no child of another. `held` are its slots now, `used` those that somebody has."""
    found = sizes(machine)
    layouts = {
        name: TypeLayout(size, slot_size(found, name), maximum(machine, found, name))
        for name, size in found.items()
        if not size.parent
    }
    ordered = [t.name for t in machine.types if t.name in layouts]
    left: dict[NodeKey, dict[str, int]] = {}
    for name in ordered:
        layouts[name].slots = _kept(name, layouts[name].maximum, nodes, held.get(name, {}), used.get(name, {}))
    _fit_together(ordered, layouts, nodes, used, left, room)
    for name in ordered:
        _extend(name, layouts[name], nodes, left, room)
    order = {node.key: number for number, node in enumerate(nodes)}
    for layout in layouts.values():
        in_order = sorted(layout.slots, key=lambda key: (order.get(key, len(order)), key))
        layout.slots = {key: layout.slots[key] for key in in_order}
    return layouts


def _kept(
    name: str, most: int, nodes: Sequence[PooledNode], held: Mapping[NodeKey, int], used: Mapping[NodeKey, int]
) -> NodeCounts:
    """Returns the slots that stay: those in use, and others on nodes that keep them, up to the maximum."""
    kept = {node: count for node, count in used.items() if count > 0}
    spare = most - sum(kept.values())
    for node in nodes:
        if spare <= 0:
            break
        unused = held.get(node.key, 0) - kept.get(node.key, 0)
        if node.stays and name in node.types and unused > 0:
            kept[node.key] = kept.get(node.key, 0) + min(unused, spare)
            spare -= min(unused, spare)
    return kept


def _fit_together(
    ordered: Sequence[str],
    layouts: Mapping[str, TypeLayout],
    nodes: Sequence[PooledNode],
    used: Mapping[str, Mapping[NodeKey, int]],
    left: dict[NodeKey, dict[str, int]],
    room: Room,
) -> None:
    """Takes what the kept slots need, and drops unused ones that do not fit any more, those of later types first."""
    for node in nodes:
        for name in ordered:
            layout = layouts[name]
            count = layout.slots.get(node.key, 0)
            if not count:
                continue
            free = _left(node.key, layout.takes, left, room)
            fits = _times(free, layout.takes)
            least = used.get(name, {}).get(node.key, 0)
            stays = max(least, min(count, fits))
            if stays:
                layout.slots[node.key] = stays
            else:
                del layout.slots[node.key]
            for resource, amount in layout.takes.items():
                free[resource] -= stays * amount


def _extend(
    name: str,
    layout: TypeLayout,
    nodes: Sequence[PooledNode],
    left: dict[NodeKey, dict[str, int]],
    room: Room,
) -> None:
    missing = layout.maximum - sum(layout.slots.values())
    best = ""
    for node in nodes:
        if missing <= 0:
            break
        if name not in node.types or not node.takes:
            continue
        if (why := _unsuitable(node.key, layout.size, room)) is not None:
            best = best or why
            continue
        free = _left(node.key, layout.takes, left, room)
        more = min(missing, _times(free, layout.takes))
        if more < missing:
            best = _scarcest(node.key, free, layout.takes, more)
        if more > 0:
            layout.slots[node.key] = layout.slots.get(node.key, 0) + more
            missing -= more
            for resource, amount in layout.takes.items():
                free[resource] -= more * amount
    layout.short = max(0, missing)
    layout.why = (best or "no node of its pool is ready") if missing > 0 else ""


def _unsuitable(node: NodeKey, size: Size, room: Room) -> str | None:
    """Returns why the node takes no slot of the type, however empty it is."""
    if size.gpu_label is not None and not room.has_label(node, size.gpu_label):
        return f"{node.name} has no label {size.gpu_label[0]}={size.gpu_label[1]}"
    for resource, amount in size.amounts.items():
        limit = size.host_limit * room.allocatable(node, resource)
        if Fraction(amount) > limit:
            return f"{resource}: one takes {amount}, {node.name} allows {int(limit)}"
    return None


def _left(node: NodeKey, takes: Iterable[str], left: dict[NodeKey, dict[str, int]], room: Room) -> dict[str, int]:
    free = left.setdefault(node, {})
    for resource in takes:
        if resource not in free:
            free[resource] = room.free(node, resource)
    return free


def _times(free: Mapping[str, int], amounts: Mapping[str, int]) -> int:
    return max(0, min(free[resource] // amount for resource, amount in amounts.items() if amount))


def _scarcest(node: NodeKey, free: Mapping[str, int], amounts: Mapping[str, int], fits: int) -> str:
    resource = min((r for r in amounts if amounts[r]), key=lambda r: free[r] / amounts[r])
    left = free[resource] - fits * amounts[resource]
    return f"{resource}: one needs {amounts[resource]}, {node.name} has {max(0, left)} left"
