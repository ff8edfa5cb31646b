"""Leaves out alternatives of needs for devices with which a project would hold more than its quotas allow."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from moorage.ledger.device_quotas import DeviceQuotas
from moorage.model.groups import Revision
from moorage.model.part_requests import PartGroup
from moorage.model.shapes import ShapedApp

#: Thousandths of a device.
_WHOLE = 1000


def within_quotas(record: Revision, quotas: DeviceQuotas) -> Revision:
    """Returns the record without such alternatives. A need of which none would be left keeps all: the commit says why."""
    groups = (group for app in record.apps for shape in app.shapes for group in shape.groups)
    if not any(len(group.devices) > 1 for group in groups):
        return record
    mine = {record.group, record.succession.group} if record.succession is not None else {record.group}
    return msgspec.structs.replace(record, apps=[_app(app, mine, quotas) for app in record.apps])


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
