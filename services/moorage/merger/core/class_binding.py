"""Gives needs for devices the selectors of their resource classes, as the fleet and its clusters have them when a group is decided,
and adds needs for devices that serve extended resources."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

import msgspec

from moorage.classes import CLUSTER, ClassCatalog, KnownClass
from moorage.device_algorithms import DEFAULT
from moorage.model.groups import Revision
from moorage.model.part_requests import ClassVersion, DeviceAsk, PartGroup, PropertyCondition, PropertySelector
from moorage.model.shapes import Shape, ShapedApp
from moorage.podspec.extended_resources import extended_needs


def bound(record: Revision, catalog: ClassCatalog, served: AbstractSet[str] = frozenset()) -> Revision:
    """Returns the record with the selector of each class that its shapes ask for. A name that is no class of the mesh stays as it is:
    it means the DeviceClass of each cluster. `served`: extended resources that DeviceClasses serve somewhere in the fleet."""
    if not any(_is_bound(app, served) for app in record.apps):
        return record
    return msgspec.structs.replace(record, apps=[bound_app(app, catalog, served) for app in record.apps])


def bound_app(app: ShapedApp, catalog: ClassCatalog, served: AbstractSet[str] = frozenset()) -> ShapedApp:
    if not _is_bound(app, served):
        return app
    return msgspec.structs.replace(app, shapes=[_shape(shape, catalog, served) for shape in app.shapes])


def _is_bound(app: ShapedApp, served: AbstractSet[str]) -> bool:
    return any(
        any(group.devices for group in shape.groups) or not served.isdisjoint(shape.resources) for shape in app.shapes
    )


def _shape(shape: Shape, catalog: ClassCatalog, served: AbstractSet[str]) -> Shape:
    extended = list(_extended(shape, served))
    if not extended and not any(ask.resource_class for group in shape.groups for ask in group.devices):
        return shape
    groups = [_group(group, catalog) for group in shape.groups] + extended
    # A class that was deleted and made again is another one: what is cached by the key is of one selector.
    selectors = msgspec.json.encode([[(a.properties, a.extended_resource) for a in group.devices] for group in groups])
    key = f"{shape.key}+{hashlib.blake2b(selectors, digest_size=6).hexdigest()}"
    return msgspec.structs.replace(shape, key=key, groups=groups)


def _extended(shape: Shape, served: AbstractSet[str]) -> Iterator[PartGroup]:
    """Yields needs for the devices of extended resources. They are asked of nodes where a DeviceClass serves these."""
    if served.isdisjoint(shape.resources):
        return
    taken = {group.suffix for group in shape.groups}
    for need in extended_needs(shape.containers, shape.resources, served):
        if need.name not in taken:
            ask = DeviceAsk(count=need.devices, extended_resource=need.resource)
            yield PartGroup(suffix=need.name, devices=(ask,))


def _group(group: PartGroup, catalog: ClassCatalog) -> PartGroup:
    return msgspec.structs.replace(group, devices=tuple(_ask(ask, catalog) for ask in group.devices))


def _ask(ask: DeviceAsk, catalog: ClassCatalog) -> DeviceAsk:
    name = ask.resource_class
    if not name:
        return ask
    fleet = catalog.stored_class(name)
    overriding = sorted(catalog.overriding(name))
    if fleet is None and not overriding:
        return ask
    alternatives: list[tuple[PropertyCondition, ...]] = []
    algorithm = ask.algorithm or (fleet.algorithm if fleet is not None else "") or catalog.algorithm
    versions: dict[str, ClassVersion] = {}
    if fleet is not None:
        versions[""] = _version(fleet, algorithm)
        elsewhere = PropertyCondition(key=CLUSTER, operator="NotIn", values=tuple(overriding))
        alternatives += _with(fleet, lambda one: (*one, elsewhere) if overriding else one)
    for cluster in overriding:
        own = catalog.stored_class(name, cluster)
        if own is not None:
            versions[cluster] = _version(own, algorithm)
            here = PropertyCondition(key=CLUSTER, operator="In", values=(cluster,))
            alternatives += _with(own, lambda one, here=here: (*one, here))  # type: ignore[misc]
    selector = tuple(alternatives) or ((),)
    return msgspec.structs.replace(ask, properties=selector, algorithm=algorithm, versions=versions)


def _version(known: KnownClass, algorithm: str) -> ClassVersion:
    return ClassVersion(uid=known.uid, spec=known.spec_hash, algorithm=algorithm or DEFAULT)


def _with(
    known: KnownClass, change: Callable[[tuple[PropertyCondition, ...]], tuple[PropertyCondition, ...]]
) -> PropertySelector:
    return tuple(change(one) for one in known.selector.of_devices.alternatives)
