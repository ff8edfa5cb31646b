"""Replaces what a pod with a role asks of a zone by what the policy of a kind of node gives to the role, and adds the CPUs that a
pod without one has alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from moorage.model.part_names import HW_NUMA_ROOT
from moorage.model.part_reports import RoleKind
from moorage.model.part_requests import PartGroup, RoleZone
from moorage.model.shapes import EXCLUSIVE, Shape
from moorage.podspec import ContainerResources, exclusive_cores
from moorage.qos.role_locks import LOCK_TOTAL, ROLE_LOCK
from moorage.qos.role_parts import role_amounts

#: The suffix of the group of CPUs that a pod without a role has alone. Documents cannot name it.
CORES_GROUP = "moorage.dev/cores"


def role_group(shape: Shape) -> PartGroup | None:
    """Returns the group of a pod's role; None if it has none."""
    return next((group for group in shape.groups if group.role is not None), None)


def with_role_of(
    shape: Shape, roles: Mapping[str, RoleKind], zone_classes: Collection[str], largest: Mapping[str, int]
) -> Shape:
    """Returns the shape as it asks nodes with these roles. `largest`: the most that a zone has of each class, in use or not: who needs
    more CPUs than that has them of several zones, unless it is bound. Nodes that tell no roles are asked as before."""
    own = role_group(shape)
    kind = roles.get(own.role.name) if own is not None and own.role is not None else None
    if own is None or own.role is None or kind is None:
        return shape
    if not kind.binds and own.role.cores * 1000 > largest.get("cpu", 0):
        kind = msgspec.structs.replace(kind, one_zone=False)
    lock = largest.get(ROLE_LOCK, LOCK_TOTAL)
    amounts = role_amounts(own.role, kind, counts_exclusive=EXCLUSIVE in zone_classes, lock=lock)
    groups = [msgspec.structs.replace(g, resources=amounts) if g is own else g for g in shape.groups]
    relations = [r for r in shape.relations if kind.one_zone or not isinstance(r, RoleZone)]
    return msgspec.structs.replace(shape, groups=groups, relations=relations)


def cores_alone(shape: Shape, granted: Iterable[int] = ()) -> int:
    """Returns the CPUs that a pod without a role has alone where a node agent gives them, unless it says itself of which parts they
    are."""
    if not shape.guaranteed or any(group.role is not None or "cpu" in group.resources for group in shape.groups):
        return 0
    containers = (
        ContainerResources(one.name, one.requests, one.requests, one.init, one.sidecar) for one in shape.containers
    )
    more = sum(shape.optional[i].resources.get(EXCLUSIVE, 0) for i in granted)
    return max(exclusive_cores(containers), shape.resources.get(EXCLUSIVE, 0)) + more


def with_cores_of_zones(shape: Shape, cores: int, largest: int) -> Shape:
    """Returns the shape with these CPUs from one zone; more than the `largest` has from whole zones and one more."""
    whole, rest = divmod(cores, max(largest, 1))
    groups = [
        PartGroup(
            suffix=f"{CORES_GROUP}/{size}",
            resources={"cpu": size * 1000, EXCLUSIVE: size},
            required=((HW_NUMA_ROOT,),),
            count=count,
        )
        for size, count in ((largest, whole), (rest, 1))
        if size and count
    ]
    return msgspec.structs.replace(shape, groups=[*shape.groups, *groups])
