"""Makes a request to one tree of parts out of what a pod asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from moorage.model.part_names import HW_NUMA_ROOT
from moorage.model.part_requests import AttributeRelation, Isolated, OneZone, PartGroup, RootConditions
from moorage.model.part_requests import RoleZone as RoleZoneRelation
from moorage.model.part_requests import SameSubtree as SameSubtreeRelation
from moorage.model.shapes import PODS, Shape

from .request import INTERNAL, NAMELESS, Group, Request, RoleZone, SameSubtree

#: The suffix of the group that the one zone of a pod meets.
ZONE = f"{INTERNAL}zone"


def pod_request(shape: Shape, granted: Iterable[int] = (), zone_classes: Collection[str] | None = None) -> Request:
    """Returns what one pod asks of the parts of its node. `granted` are indexes of optional needs.

    With `zone_classes`, all of the pod that has one of these classes comes from one zone: they are the classes that the zones
    of the node and the parts below zones offer."""
    groups = {group.suffix: group for group in granted_groups(shape, granted)}
    parts: dict[str, Group] = {}
    copies: dict[str, list[str]] = {}
    for suffix, group in groups.items():
        numbers = range(1, 2 if group.devices else group.count + 1)
        copies[suffix] = [suffix if n == 1 else f"{n}{INTERNAL}{suffix}" for n in numbers]
        parts |= dict.fromkeys(copies[suffix], _group(group))
    same_subtree: list[SameSubtree] = []
    isolated: set[str] = set()
    attributes: list[AttributeRelation] = []
    role_zones: list[RoleZone] = []
    root = RootConditions()
    for relation in shape.relations:
        if isinstance(relation, SameSubtreeRelation):
            together, apart = _of(copies, relation.groups), _of(copies, relation.apart)
            if together:
                same_subtree.append(SameSubtree(together, apart))
        elif isinstance(relation, Isolated):
            isolated |= _of(copies, relation.groups)
        elif isinstance(relation, RoleZoneRelation):
            role_zones.append(RoleZone(relation.groups[0], _of(copies, relation.groups[1:])))
        elif isinstance(relation, AttributeRelation):
            attributes.append(relation)
        elif isinstance(relation, RootConditions):
            root = relation
    if zone_classes is not None:
        same_subtree.append(_one_zone(shape, granted, parts, zone_classes))
    return Request(
        groups=parts,
        same_subtree=tuple(same_subtree),
        isolated=frozenset(isolated),
        attributes=tuple(attributes),
        role_zones=tuple(role_zones),
        root_required=tuple(map(frozenset, root.required)),
        root_forbidden=frozenset(root.forbidden),
        root_member_of=tuple(map(frozenset, root.member_of)),
        root_not_member_of=frozenset(root.not_member_of),
        alike=frozenset(shape.alike),
    )


def needs_one_zone(shape: Shape) -> bool:
    """Returns whether nodes where the pod is not in one zone are excluded."""
    return any(isinstance(relation, OneZone) and relation.required for relation in shape.relations)


def granted_groups(shape: Shape, granted: Iterable[int]) -> Iterator[PartGroup]:
    """Yields the groups with the amounts of the optional needs granted, without those that are optional and not granted."""
    more: dict[str, dict[str, int]] = {}
    needs: set[str] = set()
    for index in granted:
        need = shape.optional[index]
        needs.add(need.group)
        if need.part_resources:
            _add(more.setdefault(need.group, {}), need.part_resources)
    for group in shape.groups:
        extra = more.get(group.suffix)
        if extra:
            resources = dict(group.resources)
            _add(resources, extra)
            yield msgspec.structs.replace(group, resources=resources, optional=False)
        elif group.devices and group.optional and group.suffix in needs:
            yield msgspec.structs.replace(group, optional=False)
        elif not group.optional:
            yield group


def _add(total: dict[str, int], amounts: dict[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _group(group: PartGroup) -> Group:
    return Group(
        resources=group.resources,
        required=tuple(map(frozenset, group.required)),
        forbidden=frozenset(group.forbidden),
        member_of=tuple(map(frozenset, group.member_of)),
        not_member_of=frozenset(group.not_member_of),
        in_tree=group.in_tree or None,
        properties=group.properties,
        devices=group.devices,
    )


def _of(copies: dict[str, list[str]], suffixes: Iterable[str]) -> frozenset[str]:
    return frozenset(copy for suffix in suffixes for copy in copies.get(suffix, ()))


def _one_zone(
    shape: Shape, granted: Iterable[int], parts: dict[str, Group], zone_classes: Collection[str]
) -> SameSubtree:
    """Adds a group that the zone meets, which gives what is asked without a group, and returns the relation that puts all
    groups with classes of zones below it."""
    total = dict(shape.resources)
    for index in granted:
        _add(total, shape.optional[index].resources)
    for group in parts.values():
        for name, amount in group.resources.items():
            total[name] = total.get(name, 0) - amount
    of_zone = {name: n for name, n in total.items() if n > 0 and name in zone_classes and name != PODS}
    together = {ZONE}
    nameless = parts.get(NAMELESS)
    if nameless is not None:
        inside = {name: n for name, n in nameless.resources.items() if name in zone_classes}
        for name, amount in inside.items():
            suffix = f"{INTERNAL}class={name}"
            parts[suffix] = Group(resources={name: amount})
            together.add(suffix)
        parts[NAMELESS] = nameless._replace(
            resources={name: n for name, n in nameless.resources.items() if name not in inside}
        )
        if not parts[NAMELESS].resources:
            del parts[NAMELESS]
    together |= {
        suffix
        for suffix, group in parts.items()
        if suffix != NAMELESS and group.resources and group.resources.keys() <= set(zone_classes)
    }
    parts[ZONE] = Group(resources=of_zone, required=(frozenset({HW_NUMA_ROOT}),))
    return SameSubtree(frozenset(together))
