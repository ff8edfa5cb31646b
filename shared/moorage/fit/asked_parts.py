"""Reads what a shape asks of the inside of its pods' nodes, and makes requests for the parts of a layout of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import gcd

import msgspec

from moorage.model.part_requests import OneZone, PartGroup
from moorage.model.shapes import EXCLUSIVE, Shape
from moorage.parts import Request, needs_one_zone, pod_request
from moorage.parts.device_slots import class_name, of_identity, reads_identities
from moorage.parts.identities import may_select, names_identity
from moorage.parts.kubelet import Alignment, TopologyManager, aligned_steps, alignment
from moorage.parts.layout import Layout
from moorage.parts.role_request import cores_alone, role_group, with_cores_of_zones, with_role_of

from .protocols import Rows
from .static_inside import StaticInside


def asks_parts(shape: Shape, rows: Rows) -> bool:
    """Returns whether the inside of these nodes matters to the shape's pods."""
    if shape.groups or shape.relations:
        return True
    if rows.layout is None:
        return False
    layouts = rows.parts.layouts
    return (bool(shape.containers) and layouts.any_aligns) or (layouts.any_gives_exclusive and _may_be_exclusive(shape))


def _may_be_exclusive(shape: Shape) -> bool:
    if not shape.guaranteed:
        return False
    return cores_alone(shape) > 0 or any(EXCLUSIVE in need.resources for need in shape.optional)


def without_parts(shape: Shape) -> Shape:
    """Returns the shape without what it asks of the inside of nodes."""
    if not (shape.groups or shape.relations or shape.containers):
        return shape
    return msgspec.structs.replace(
        shape, key=f"{shape.key} without parts", groups=[], relations=[], containers=[], guaranteed=False
    )


class Asked:
    """The requests of a pod of a shape for the inside of its node, with these optional needs granted."""

    def __init__(self, shape: Shape, granted: Iterable[int] = ()) -> None:
        self.shape, self.granted = shape, tuple(granted)
        self.explicit = bool(shape.groups or shape.relations)
        self.one_zone = needs_one_zone(shape)
        self.asks_devices = any(group.devices for group in shape.groups)
        self.prefers_zone = not self.one_zone and any(isinstance(r, OneZone) for r in shape.relations)
        #: Equal for shapes that ask the same.
        self.key = msgspec.json.encode(
            (
                shape.groups,
                shape.relations,
                shape.containers,
                shape.guaranteed,
                sorted(shape.resources.items()),
                [shape.optional[i] for i in self.granted],
                shape.alike,
            )
        )
        #: Claims whose devices the pods have together.
        self.shared = frozenset(group.shared for group in shape.groups if group.shared)
        self._relates_identities = any(map(reads_identities, shape.groups)) or any(map(of_identity, shape.relations))
        #: Selectors of devices that name identities.
        self._identities = [a.properties for g in shape.groups for a in g.devices if names_identity(a.properties)]
        #: DeviceClasses of clusters that are asked for.
        self._asks = [ask for group in shape.groups for ask in group.devices]
        #: Extended resources for which devices are asked where a DeviceClass serves them.
        self._extended = {ask.extended_resource for ask in self._asks if ask.extended_resource}
        self.role = role_group(shape)
        self.cores = cores_alone(shape, self.granted)
        self._requests: dict[tuple[frozenset[str] | None, bool, object], Request] = {}
        self._alignments: dict[tuple[TopologyManager, frozenset[str]], Alignment] = {}

    def reads_identities(self, layout: Layout) -> bool:
        """Returns whether the identities of a layout's devices may matter."""
        return bool(self._identities) or self._always_reads(layout)

    def depends_on_identities(self, layout: Layout, source: bytes) -> bool:
        """Returns whether the identities in a source of this layout may matter: others select no device more or less."""
        return self._always_reads(layout) or any(may_select(selector, source) for selector in self._identities)

    def _always_reads(self, layout: Layout) -> bool:
        static = StaticInside.of(layout)
        if self._relates_identities or not static.identity_classes:
            return self._relates_identities
        return any(class_name(ask, static.table) in static.identity_classes for ask in self._asks)

    def explicit_on(self, static: StaticInside) -> bool:
        """Returns whether parts of nodes of a layout are asked for: by the shape, or because CPUs of one's own are of zones."""
        return self.explicit or (self.cores > 0 and static.gives_exclusive)

    def request(self, static: StaticInside, *, in_zone: bool = False, shared: bool = True) -> Request:
        """Returns the request to nodes of a layout. `shared`: with the devices that pods have together."""
        of_layout: object = static.role_terms(self.role) if self.role is not None else None
        cores = self.cores if static.gives_exclusive else 0
        if cores:
            of_layout = static.largest.get(EXCLUSIVE, 0)
        counted = frozenset(self._extended - static.table.serving.keys()) if self._extended else None
        key = static.zone_classes if self.one_zone or in_zone else None, shared or not self.shared, (of_layout, counted)
        found = self._requests.get(key)
        if found is None:
            shape = self.shape
            if self.role is not None:
                shape = with_role_of(shape, static.layout.inside.roles, static.zone_classes, static.largest)
            if cores:
                shape = with_cores_of_zones(shape, cores, static.largest.get(EXCLUSIVE, 0))
            if counted:
                shape = msgspec.structs.replace(shape, groups=[g for g in shape.groups if not _asks_for(g, counted)])
            if not key[1]:
                shape = msgspec.structs.replace(shape, groups=[group for group in shape.groups if not group.shared])
            found = pod_request(shape, self.granted, key[0])
            # Which nodes a group names is tested before.
            groups = {suffix: group._replace(in_tree=None) for suffix, group in found.groups.items()}
            found = self._requests[key] = found._replace(groups=groups)
        return found

    def alignment(self, manager: TopologyManager, reported: frozenset[str]) -> Alignment:
        """Returns what the kubelet of a node insists on aligning."""
        if not manager.rejects or not self.shape.containers:
            return ()
        found = self._alignments.get((manager, reported))
        if found is None:
            found = alignment(self.shape.containers, self.shape.guaranteed, manager, reported)
            self._alignments[manager, reported] = found
        return found

    def taken_of_zones(self, manager: TopologyManager, reported: frozenset[str]) -> frozenset[str]:
        """Returns the classes that a kubelet takes of zones for the pod, whether it insists on aligning them or not."""
        steps = aligned_steps(self.shape.containers, self.shape.guaranteed, manager, reported)
        return frozenset(name for step in steps for name, _ in step.amounts)

    def units(self, layout: Layout, limit: int) -> dict[str, tuple[int, int]]:
        """Returns, for each class that matters, the unit in which it is given and the most that pods up to `limit` take."""
        amounts: dict[str, list[int]] = {}
        static = StaticInside.of(layout)
        for group in self.request(static, in_zone=self.prefers_zone).groups.values():
            for name, amount in group.resources.items():
                amounts.setdefault(name, []).append(amount)
        found = {name: (gcd(*all_of) or 1, sum(all_of) * limit) for name, all_of in amounts.items()}
        found |= dict.fromkeys(static.taken_for(amounts.keys()) - found.keys(), (1, 1 << 62))
        for step in self.alignment(static.manager, static.reported):
            for name, _ in step.amounts:
                found[name] = 1, 1 << 62
        if self.cores and static.gives_exclusive:
            found |= {"cpu": (1000, 1 << 62), EXCLUSIVE: (1, 1 << 62)}
        if self.asks_devices:
            # How much is taken of which depends on the device that is chosen.
            found |= dict.fromkeys(static.device_classes, (1, 1 << 62))
        return found


def _asks_for(group: PartGroup, resources: Collection[str]) -> bool:
    """Returns whether a group is devices for one of these extended resources."""
    return any(ask.extended_resource in resources for ask in group.devices if ask.extended_resource)
