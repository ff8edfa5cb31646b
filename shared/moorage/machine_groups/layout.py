"""Lays slots out on the Nodes of one group: what is held stays, new ones go to the Nodes of the pool in order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from moorage.model.machines import Machine

from .sizes import Size


class NodeRoom(NamedTuple):
    """`usable`: new slots may be made there. `keeps`: unused ones stay there."""

    allocatable: Mapping[str, int]
    labels: Mapping[str, str]
    usable: bool
    keeps: bool


Slots = dict[str, dict[str, int]]


def room_for(size: Size, room: NodeRoom, taken: Mapping[str, int]) -> int:
    """Returns how many slots of a size fit beside what is taken of a Node."""
    if size.gpu_label is not None and room.labels.get(size.gpu_label[0]) != size.gpu_label[1]:
        return 0
    counts = []
    for name, amount in size.amounts.items():
        have = room.allocatable.get(name, 0)
        if amount > size.host_limit * have:
            return 0
        counts.append((have - taken.get(name, 0)) // amount)
    return max(0, min(counts, default=0))


def lay_out(
    machine: Machine,
    sizes: Mapping[str, Size],
    wanted: Mapping[str, int],
    rooms: Mapping[str, NodeRoom],
    held: Mapping[str, Mapping[str, int]],
    in_use: Mapping[str, Mapping[str, int]],
    most_on: Callable[[str, str], int | None] = lambda _type, _node: None,
) -> Slots:
    """Returns the slots of the types that depend on no other, by type and Node. `held`: what there is; `in_use`: those of them with guests,
    which stay wherever they are; `most_on`: how many of a type a Node takes at most, if that is known."""
    slots: Slots = {name: {} for name, size in sizes.items() if not size.parent}
    taken: dict[str, Counter[str]] = {node.name: Counter() for node in machine.node_pool}

    def add(name: str, node: str, count: int) -> None:
        if count > 0:
            slots[name][node] = slots[name].get(node, 0) + count
            for resource, amount in sizes[name].amounts.items():
                taken.setdefault(node, Counter())[resource] += amount * count

    def room_left(name: str, node: str) -> float:
        most = most_on(name, node)
        return math.inf if most is None else max(0, most - slots[name].get(node, 0))

    for name in slots:
        for node, count in in_use.get(name, {}).items():
            add(name, node, count)
    for name in slots:
        most = wanted.get(name, 0)
        for entry in machine.node_pool:
            room = rooms.get(entry.name)
            have = held.get(name, {}).get(entry.name, 0) - slots[name].get(entry.name, 0)
            if have <= 0 or room is None or not room.keeps or name not in entry.machine_types:
                continue
            add(name, entry.name, int(min(have, most - sum(slots[name].values()), room_left(name, entry.name))))
    for name, size in sizes.items():
        if size.parent:
            continue
        for entry in machine.node_pool:
            room = rooms.get(entry.name)
            missing = wanted.get(name, 0) - sum(slots[name].values())
            if missing <= 0:
                break
            if room is not None and room.usable and name in entry.machine_types:
                fits = room_for(size, room, taken[entry.name])
                add(name, entry.name, int(min(missing, fits, room_left(name, entry.name))))
    return slots
