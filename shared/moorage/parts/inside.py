"""Encodes what is reported of the inside of a node.

Equal insides have equal bytes. The identities of devices, like uuids, follow the rest of the bytes: without them the bytes are
those that all nodes of the kind have in common.
"""

from __future__ import annotations

import msgspec

from moorage.model.base import Value
from moorage.model.part_names import is_class
from moorage.model.part_reports import (
    CounterSetReport,
    DeviceClassReport,
    DeviceReport,
    ProviderReport,
    RoleKind,
    TopologyManager,
    ZoneReport,
)

from .identities import SEPARATOR, DeviceIdentity, joined, split
from .reported_amounts import class_of


class AddedNames(Value, kw_only=True, frozen=True):
    """Traits and aggregates that a part has besides those that are reported."""

    traits: list[str] = []
    aggregates: list[str] = []


class Inside(Value, kw_only=True, frozen=True):
    """The reported inside of a node. `node` has the node's own amounts of Kubernetes resources that parts have, too;
    `added` what clients of the Placement interface added, by path: `/ID` of a part, empty for the node."""

    zones: list[ZoneReport] = []
    providers: list[ProviderReport] = []
    devices: list[DeviceReport] = []  # without what names the node
    counters: list[CounterSetReport] = []
    device_classes: list[DeviceClassReport] = []  # of its cluster
    incomplete_pools: bool = False  # there are pools for it of which no device counts
    invalid_pools: bool = False  # among these are some that make no sense
    topology_manager: TopologyManager | None = None
    cpu_manager: str = ""  # the policy; empty: not reported
    roles: dict[str, RoleKind] = {}  # of a node agent's policy
    node: dict[str, int] = {}
    added: dict[str, AddedNames] = {}

    @property
    def extended_resources(self) -> set[str]:
        """Returns the extended resources that devices of DeviceClasses serve here."""
        return {found.extended_resource for found in self.device_classes if found.extended_resource}


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Inside)
_identities = msgspec.json.Decoder(list[DeviceIdentity])


def encode(inside: Inside) -> bytes:
    """Returns the bytes of what is inside a node; none if there is nothing."""
    if not (inside.zones or inside.providers or inside.devices or inside.added or inside.incomplete_pools):
        return b""
    devices, identities = split(inside.devices)
    if not identities:
        return _encoder.encode(inside)
    common = _encoder.encode(msgspec.structs.replace(inside, devices=devices))
    return common + SEPARATOR + _encoder.encode(identities)


def decode(source: bytes) -> Inside:
    """Returns what is inside a node. Raises `msgspec.DecodeError` for bytes that are not from `encode`."""
    common, _, identities = source.partition(SEPARATOR)
    inside = _decoder.decode(common) if common else Inside()
    if not identities:
        return inside
    found = _identities_of(source, len(inside.devices))
    return msgspec.structs.replace(inside, devices=joined(inside.devices, found))


def check_identities(source: bytes, devices: int) -> None:
    """Raises `msgspec.DecodeError` if bytes do not have the identities of so many devices, or none at all."""
    if SEPARATOR in source:
        _identities_of(source, devices)


def _identities_of(source: bytes, devices: int) -> list[DeviceIdentity]:
    found = _identities.decode(source.partition(SEPARATOR)[2])
    if len(found) != devices:
        raise msgspec.DecodeError(f"identities of {len(found)} devices, but there are {devices}")
    return found


def common_source(source: bytes) -> bytes:
    """Returns the bytes without the identities of devices."""
    return source.partition(SEPARATOR)[0]


def zone_id(given: int | str) -> str:
    return f"numa-{given}" if isinstance(given, int) else given


def classes_in(inside: Inside) -> set[str]:
    """Returns the Kubernetes resources of which parts have amounts, by their names."""
    found: set[str] = set()
    reported = [part.inventories for part in inside.zones] + [part.inventories for part in inside.providers]
    found.update(class_of(name)[0] for inventories in reported for name in inventories)
    if any(zone.cpus != "" for zone in inside.zones):
        found.add("cpu")
    if any(zone.memory for zone in inside.zones):
        found.add("memory")
    found.update(device.resource for device in inside.devices if device.resource)
    return {name for name in found if not is_class(name)}
