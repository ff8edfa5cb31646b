"""Leaves out alternatives of needs for devices with which a project would hold more than its quotas allow, and devices of classes of
which it may have no more."""

from __future__ import annotations

import hashlib
from collections.abc import Set as AbstractSet

import msgspec

from moorage.classes import CLUSTER, NAME, NODE, ClassCatalog, Selector
from moorage.classes.conditions import NEGATED
from moorage.fleet import Fleet
from moorage.ledger.device_quotas import QUOTA_EXCEEDED, DeviceQuotas
from moorage.model.groups import Revision
from moorage.model.part_requests import DeviceAsk, Operator, PartGroup, PropertyCondition, PropertySelector
from moorage.model.reasons import Warn
from moorage.model.shapes import Shape, ShapedApp

#: Thousandths of a device.
_WHOLE = 1000
#: Alternatives of a selector that says what another one does not select.
_MOST = 32
_NEGATED: dict[Operator, Operator] = {
    "In": "NotIn", "Eq": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists",
    **{without: negated for negated, without in NEGATED.items()},
}  # fmt: skip


def within_quotas(record: Revision, quotas: DeviceQuotas) -> Revision:
    """Returns the record without such alternatives. A need of which none would be left keeps all: the commit says why."""
    groups = (group for app in record.apps for shape in app.shapes for group in shape.groups)
    if not any(len(group.devices) > 1 for group in groups):
        return record
    return msgspec.structs.replace(record, apps=[_app(app, _groups(record), quotas) for app in record.apps])


def _groups(record: Revision) -> set[str]:
    return {record.group, record.succession.group} if record.succession is not None else {record.group}


def _app(app: ShapedApp, mine: AbstractSet[str], quotas: DeviceQuotas) -> ShapedApp:
    shapes = [
        msgspec.structs.replace(
            shape, groups=[_group(one, shape.count * max(app.replicas, 1), mine, quotas) for one in shape.groups]
        )
        for shape in app.shapes
    ]
    return msgspec.structs.replace(app, shapes=shapes)


def _group(found: PartGroup, pods: int, mine: AbstractSet[str], quotas: DeviceQuotas) -> PartGroup:
    if len(found.devices) < 2:
        return found
    kept = tuple(
        ask
        for ask in found.devices
        if not ask.resource_class
        or ask.all
        or quotas.may_hold(mine, ask.resource_class, (ask.share or _WHOLE) * ask.count * pods)
    )
    return msgspec.structs.replace(found, devices=kept) if kept and len(kept) < len(found.devices) else found


def without_full_classes(record: Revision, quotas: DeviceQuotas, catalog: ClassCatalog, fleet: Fleet) -> Revision:
    """Returns the record, whose needs are bound to selectors, without the devices of other classes of which its project may have no
    more, and warns of that. A need that would be left without any device keeps all: the commit says why."""
    asks = (ask for app in record.apps for shape in app.shapes for group in shape.groups for ask in group.devices)
    if not any(ask.properties for ask in asks) or not (full := quotas.full(_groups(record))):
        return record
    others = {name: found for name in sorted(full) if (found := _not_selected(name, catalog))}
    left_out: dict[str, set[str]] = {}
    apps = [
        msgspec.structs.replace(app, shapes=[_narrowed(shape, others, fleet, left_out) for shape in app.shapes])
        for app in record.apps
    ]
    if not left_out:
        return record
    project = record.group.partition("/")[0]
    warnings = [
        Warn(
            code=QUOTA_EXCEEDED,
            message=f"project {project} may have no more devices of {name} by quota: needs for {', '.join(sorted(needs))} get none of them",
        )
        for name, needs in sorted(left_out.items())
    ]
    return msgspec.structs.replace(record, apps=apps, warnings=[*record.warnings, *warnings])


def _narrowed(shape: Shape, others: dict[str, PropertySelector], fleet: Fleet, left_out: dict[str, set[str]]) -> Shape:
    groups = [
        msgspec.structs.replace(group, devices=tuple(_without(ask, others, fleet, left_out) for ask in group.devices))
        for group in shape.groups
    ]
    if groups == shape.groups:
        return shape
    # Caches go by the key, so other selectors need another one.
    selectors = msgspec.json.encode([[ask.properties for ask in group.devices] for group in groups])
    key = f"{shape.key}-{hashlib.blake2b(selectors, digest_size=6).hexdigest()}"
    return msgspec.structs.replace(shape, key=key, groups=groups)


def _without(
    ask: DeviceAsk, others: dict[str, PropertySelector], fleet: Fleet, left_out: dict[str, set[str]]
) -> DeviceAsk:
    for name, other in others.items():
        if ask.properties and not ask.all and name != ask.resource_class:
            # One without conditions selects nothing.
            both = tuple((*own, *rest) for own in ask.properties if own for rest in other)
            if len(both) <= _MOST and fleet.parts.properties.selected(Selector(both)).any():
                ask = msgspec.structs.replace(ask, properties=both)
                left_out.setdefault(name, set()).add(ask.resource_class)
    return ask


def _not_selected(name: str, catalog: ClassCatalog) -> PropertySelector:
    """Returns a selector of what a class does not select; nothing where that cannot be said by properties alone."""
    known = catalog.stored_class(name)
    if known is None or catalog.overriding(name) or not known.selector.keys.isdisjoint((CLUSTER, NAME, NODE)):
        return ()
    found: list[tuple[PropertyCondition, ...]] = [()]
    for alternative in filter(None, known.selector.alternatives):
        negated = [msgspec.structs.replace(one, operator=_NEGATED[one.operator]) for one in alternative]
        found = [(*before, one) for before in found for one in negated]
        if len(found) > _MOST:
            return ()
    return tuple(found) if found != [()] else ()
