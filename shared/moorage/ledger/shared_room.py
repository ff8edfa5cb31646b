"""Knows which slots of machines on nodes are shared by several types, and what is free of each.

The totals of a node add up what claims and guests take of each type. That is not what the others may still have: the first pod in a slot
takes all of it from every other type, the next ones nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moorage.model.machine_slots import ReservedSlots, opened_resource
from moorage.model.shared_slots import SharedSlots

from .machine_room import occupied


class SharedRoom:
    """The reservations whose slots are shared."""

    def __init__(self) -> None:
        self._reserved: dict[str, ReservedSlots] = {}  # by claim
        self._in_cluster: dict[str, set[str]] = {}  # cluster → claims

    def set(self, claim: str, reserved: ReservedSlots | None) -> list[tuple[str, str]]:
        """Takes over a reservation, or its removal. Returns the nodes, each with its cluster, of which something may be different now."""
        before, after = (
            self._reserved.pop(claim, None),
            reserved if reserved is not None and (reserved.children or reserved.before) else None,
        )
        if after is not None:
            self._reserved[claim] = after
            self._in_cluster.setdefault(after.cluster, set()).add(claim)
        elif before is not None:
            self._in_cluster[before.cluster].discard(claim)
        return [(one.cluster, node) for one in (before, after) if one is not None for node in one.slots]

    def on(self, cluster: str, node: str, totals: Mapping[str, int]) -> tuple[SharedSlots, ...]:
        """Returns the shared slots of a node. `totals`: what is taken of each type there, less what is offered."""
        claims = self._in_cluster.get(cluster)
        if not claims:
            return ()
        found = []
        for claim in sorted(claims):
            reserved = self._reserved[claim]
            if node in reserved.slots:
                found.append(occupied(reserved, node, totals))
        return tuple(found)


def taken_with(totals: Mapping[str, int], shared: Iterable[SharedSlots]) -> dict[str, int]:
    """Returns what is taken of a node, less what is offered, with that of shared slots as it is free."""
    found = dict(totals)
    for slots in shared:
        found |= {name: -free for name, free in slots.free().items()}
        for kind in slots.types[1:]:
            found[opened_resource(kind.resource)] = -slots.in_opened(kind.resource)[-1]
    return {name: amount for name, amount in found.items() if amount}
