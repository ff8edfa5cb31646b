"""Counts which slots of a claim its live pods cover.

A live pod covers one slot on its own node and nowhere else; what no pod covers is open. A pod beyond its claim's slots on a
node is a stray, and no slot counts less for it. Pods that are being deleted cover a slot only while their claim has no stray:
otherwise a pod and the one that replaces it elsewhere would stand for two slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moorage.model.claims import Slot


class Coverage(NamedTuple):
    """`open`: per slot, how many of its places no pod covers. `strays`: pods by node beyond the slots there."""

    open: list[int]
    strays: dict[str, int]


def cover(slots: Sequence[Slot], live: Mapping[str, int], ending: Mapping[str, int]) -> Coverage:
    """Counts for the live pods by node, of which `ending` are being deleted."""
    if not live:
        return Coverage([slot.count for slot in slots], {})
    places: dict[str, int] = {}
    for slot in slots:
        places[slot.node] = places.get(slot.node, 0) + slot.count
    staying = {node: pods - ending.get(node, 0) for node, pods in live.items()} if ending else live
    strays = {node: pods - places.get(node, 0) for node, pods in staying.items() if pods > places.get(node, 0)}
    spare = dict(staying if strays else live)
    left: list[int] = []
    for slot in slots:
        covered = min(slot.count, spare.get(slot.node, 0))
        if covered:
            spare[slot.node] -= covered
        left.append(slot.count - covered)
    return Coverage(left, strays)
