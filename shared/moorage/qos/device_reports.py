"""Describes to the mesh what plugins that are not built in give out of which zones, and which of it pods have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from moorage.model.part_reports import DeviceReport, PropertyValue

from .messages import (
    AllocatableResource,
    ResourceAllocationInfo,
    TopologyAwareQuantity,
    TopologyAwareResource,
)

#: Devices of a node that are reported, and the longest name of one.
MOST_DEVICES, LONGEST_NAME = 1024, 253
#: What a pod takes of devices, by the device's path in its node (`numa-1/eth1`) and resource.
DeviceAmounts = dict[str, dict[str, int]]
_SOCKET = 1


def device_reports(
    offers: Mapping[str, AllocatableResource], running: Collection[str], zones: Collection[int]
) -> list[DeviceReport]:
    """Returns the devices of resources that the node counts, each of one zone. Those whose plugins do not run now are not healthy.
    What is tied to no zone is an amount of the node alone."""
    found: dict[tuple[str, str], DeviceReport] = {}
    for resource, offer in sorted(offers.items()):
        if "/" not in resource or not offer.is_node_resource:
            continue  # no container can request it
        for quantity in offer.allocatable:
            zone, name = _zone(quantity, zones), _name(quantity, resource)
            if not zone or not name or quantity.resource_value < 0:
                continue
            known = found.get((zone, name))
            amount = int(quantity.resource_value) + (known.quantity if known is not None else 0)
            found[zone, name] = DeviceReport(
                name=name,
                zone=zone,
                kind=quantity.type or resource,
                resource=resource,
                quantity=amount,
                properties=_properties(quantity),
                healthy=resource in running,
            )
    return [found[key] for key in sorted(found)][:MOST_DEVICES]


def _zone(quantity: TopologyAwareQuantity, zones: Collection[int]) -> str:
    return f"numa-{quantity.node}" if quantity.topology_level != _SOCKET and quantity.node in zones else ""


def _name(quantity: TopologyAwareQuantity, resource: str) -> str:
    name = quantity.name or resource
    usable = len(name) <= LONGEST_NAME and name.isprintable() and not name.startswith(("/", "="))
    return name if usable else ""


def _properties(quantity: TopologyAwareQuantity) -> dict[str, PropertyValue]:
    return {name: text for name, text in sorted(quantity.annotations.items()) if name}


def amounts_told(given: Mapping[str, TopologyAwareResource], devices: Iterable[DeviceReport]) -> DeviceAmounts:
    """Returns what a container has of devices, as a plugin tells it. More than is there of one is told of others of its zone."""
    known = list(devices)
    found: DeviceAmounts = {}
    for resource, answer in given.items():
        for quantity in answer.quantities:
            zone, name = f"numa-{quantity.node}", quantity.name or resource
            own = [d for d in known if (d.resource, d.zone, d.name) == (resource, zone, name)]
            _take(found, own or _of_zone(known, resource, zone), quantity.resource_value)
    return found


def amounts_by_hint(resource: str, info: ResourceAllocationInfo, devices: Iterable[DeviceReport]) -> DeviceAmounts:
    """Returns what a container has of devices by its zones alone, for a plugin that tells no more."""
    found: DeviceAmounts = {}
    known = list(devices)
    if info.topology_assignments:
        for zone, amount in sorted(info.topology_assignments.items()):
            _take(found, _of_zone(known, resource, f"numa-{zone}"), amount)
        return found
    nodes = sorted({node for hint in info.resource_hints for node in hint.nodes})
    among = [device for node in nodes for device in _of_zone(known, resource, f"numa-{node}")]
    _take(found, among, info.allocated_quantity)
    return found


def _of_zone(devices: Iterable[DeviceReport], resource: str, zone: str) -> list[DeviceReport]:
    return [device for device in devices if (device.resource, device.zone) == (resource, zone)]


def _take(found: DeviceAmounts, devices: Sequence[DeviceReport], amount: float) -> None:
    """Takes an amount of devices, of one after the other."""
    left = -int(-amount // 1)
    for device in devices:
        last = device is devices[-1]
        taken = left if last else min(left, device.quantity)
        if taken > 0:
            here = found.setdefault(path_of(device), {})
            here[device.resource] = here.get(device.resource, 0) + taken
        left -= taken


def path_of(device: DeviceReport) -> str:
    """Returns the device's path in its node."""
    return f"{device.zone}/{device.name}"
