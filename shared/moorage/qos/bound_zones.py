"""Says which NUMA nodes are open to pods of a role that binds: those where it shares with all roles that are bound there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from .node_policy import NodePolicy


class BoundEntry(Protocol):
    """The resources of a container on the NUMA nodes it is bound to; `bound` is 0 where it is bound to none."""

    @property
    def role(self) -> str: ...
    @property
    def bound(self) -> int: ...


def roles_by_zone(entries: Mapping[str, Mapping[str, BoundEntry]], but: str = "") -> dict[int, set[str]]:
    """Returns the roles that are bound to each node, without those of the pod with the uid `but`."""
    found: dict[int, set[str]] = {}
    for uid, containers in entries.items():
        if uid == but:
            continue
        for entry in containers.values():
            mask = entry.bound
            while mask:
                low = mask & -mask
                found.setdefault(low.bit_length() - 1, set()).add(entry.role)
                mask ^= low
    return found


def open_zones(policy: NodePolicy, role: str, there: Mapping[int, set[str]], nodes: Iterable[int]) -> int:
    """Returns those of the nodes where only roles are bound that share with this one."""
    return sum(1 << node for node in nodes if all(policy.shares_numa(role, other) for other in there.get(node, ())))
