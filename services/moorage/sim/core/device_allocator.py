"""Chooses devices of one node for ResourceClaims, as the scheduler's allocator does: the first that fit, all claims of a pod
together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moorage.dra.objects import AllocatedDevice
from moorage.dra.slices import NodeDevices
from moorage.fit.asked_parts import Asked
from moorage.fit.budget import BudgetExceeded
from moorage.fit.node_state import NodeState
from moorage.fleet.normalize import normalize_node
from moorage.model.part_reports import DeviceClassReport, DeviceReport
from moorage.model.part_requests import PartGroup, Relation
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage.parts.device_parts import class_of, id_of_device
from moorage.parts.layout import layout_of
from moorage.podspec.device_claims import ClaimSpec, claim_needs


class NodeView(NamedTuple):
    """The devices that a node reaches, what is in use of them, by id and class, and the classes that claims name."""

    name: str
    devices: NodeDevices
    in_use: Mapping[str, Mapping[str, str]]
    classes: Sequence[DeviceClassReport]


def allocate(view: NodeView, claims: Sequence[ClaimSpec]) -> list[list[AllocatedDevice]] | None:
    """Returns the devices of each claim; None if the node does not have them."""
    groups: list[PartGroup] = []
    relations: list[Relation] = []
    for i, spec in enumerate(claims):
        needs = claim_needs(str(i), spec)
        groups += needs.groups
        relations += needs.relations
    if not groups:
        return [[] for _ in claims]
    asked = Asked(Shape(key="pod", object="Pod/pod", groups=groups, relations=relations))
    try:
        shares = _state(view).assign([(asked, 1)])
    except BudgetExceeded:
        return None
    if shares is None:
        return None
    reports = {device.id: device for device in view.devices.devices}
    taken: dict[tuple[str, str], dict[str, int]] = {}
    for grant in shares[0][0].grants:
        of_device = taken.setdefault((grant.need, id_of_device(view.name, grant.part)), {})
        of_device[grant.resource] = of_device.get(grant.resource, 0) + grant.amount
    found: list[list[AllocatedDevice]] = [[] for _ in claims]
    for (need, ident), amounts in taken.items():
        claim, _, request = need.partition("/")
        found[int(claim)].append(_result(reports[ident], request, amounts, is_admin(claims[int(claim)], request)))
    return found


def is_admin(spec: ClaimSpec, request: str) -> bool:
    """Returns whether a request is for admin access, with which devices are seen and not taken."""
    return any((one.exactly or one).admin_access for one in spec.devices.requests or () if one.name == request)


def _result(device: DeviceReport, request: str, amounts: Mapping[str, int], admin: bool) -> AllocatedDevice:
    consumed: dict[str, str | int | float] = {
        name: str(amounts[class_of(name)]) for name in device.capacity if class_of(name) in amounts
    }
    return AllocatedDevice(
        driver=device.driver,
        pool=device.pool,
        device=device.name,
        request=request,
        admin_access=admin or None,
        consumed_capacity=consumed if device.divisible and not admin else None,
    )


def _state(view: NodeView) -> NodeState:
    """Returns the node with its devices, those that other nodes reach included: what these take of them is in use here, too."""
    report = NodeReport(
        name=view.name,
        devices=view.devices.devices,
        counters=view.devices.counters,
        device_classes=list(view.classes),
        incomplete_pools=bool(view.devices.problems),
        in_use={ident: dict(amounts) for ident, amounts in view.in_use.items()},
    )
    row, _ = normalize_node(report)
    layout = layout_of(row.inside)
    inventories = [layout.parts[entry.part].inventories[entry.resource] for entry in layout.entries]
    used = row.in_use or (0,) * len(inventories)
    return NodeState.of(layout, tuple(i.capacity - n for i, n in zip(inventories, used, strict=True)))
