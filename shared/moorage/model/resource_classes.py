"""Resource classes, which name devices by their properties, and what belongs to them: sources of properties, quotas, grants.

They are of the fleet, not of a project; administrators write them.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from .base import Model
from .documents import API_VERSION, Strict
from .names import token


class FleetMetadata(Strict, kw_only=True):
    """The name of an object of the whole fleet, or of one cluster, PROVIDER/NAME, where it wins over the fleet's."""

    name: str
    cluster: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str = ""  # as shown; what is given is ignored
    creation_timestamp: str = ""


class PropertyRequirement(Strict, kw_only=True):
    """A condition on one property of a device. Its values are read as the property's type."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class PropertySelectorTerm(Strict, kw_only=True):
    """Requirements that a device meets all. Without any it selects nothing."""

    match_expressions: list[PropertyRequirement] | None = None


class ResourceClassSpec(Strict, kw_only=True):
    """Selects the devices that one of the terms selects. Without any it selects nothing."""

    resource_selector: list[PropertySelectorTerm | None] | None = None


class ResourceClass(Strict, kw_only=True):
    kind: str
    metadata: FleetMetadata
    spec: ResourceClassSpec | None = None
    api_version: str = API_VERSION


class SourceMatch(Strict, kw_only=True):
    """The devices of a DRA driver, or those that an extended resource or huge pages of nodes count. `*` stands for any text."""

    driver: str = ""
    resource: str = ""


class PropertySource(Strict, kw_only=True):
    """The source of a property's value: one of attribute, capacity, label of the node, name of the resource (what its `*`
    stands for), or a value as it is."""

    attribute: str = ""
    capacity: str = ""
    label: str = ""
    name: bool = False
    value: str = ""
    units: str = ""
    type: str = ""


class DeviceSourceSpec(Strict, kw_only=True):
    match: SourceMatch
    kind: str = ""
    vendor: str = ""
    properties: dict[str, PropertySource] = {}


class DeviceSource(Strict, kw_only=True):
    """Maps devices to kind, vendor and properties."""

    kind: str
    metadata: FleetMetadata
    spec: DeviceSourceSpec
    api_version: str = API_VERSION


class QuotaItem(Strict, kw_only=True):
    """Limits how many devices that the class selects are held, through whatever class or claim; `*`: of all devices."""

    class_: str = msgspec.field(name="class")
    count: int


class DeviceQuotaSpec(Strict, kw_only=True):
    projects: list[str] = []
    devices: list[QuotaItem] = []


class DeviceQuota(Strict, kw_only=True):
    """Bounds the devices that each of the projects holds."""

    kind: str
    metadata: FleetMetadata
    spec: DeviceQuotaSpec
    api_version: str = API_VERSION


class ClassGrantSpec(Strict, kw_only=True):
    projects: list[str] = []
    classes: list[str] = []
    algorithms: list[str] = []


class ClassGrant(Strict, kw_only=True):
    """Lets projects use classes, and name these algorithms in their needs. `*` in a name stands for any text. A class that a
    grant names is only for those to whom it is granted."""

    kind: str
    metadata: FleetMetadata
    spec: ClassGrantSpec
    api_version: str = API_VERSION


class FleetKind(NamedTuple):
    """`plural` is the name of its list in REST."""

    kind: str
    plural: str
    document: type[ResourceClass | DeviceSource | DeviceQuota | ClassGrant]


RESOURCE_CLASS = FleetKind("ResourceClass", "resource-classes", ResourceClass)
DEVICE_SOURCE = FleetKind("DeviceSource", "device-sources", DeviceSource)
DEVICE_QUOTA = FleetKind("DeviceQuota", "device-quotas", DeviceQuota)
CLASS_GRANT = FleetKind("ClassGrant", "class-grants", ClassGrant)
FLEET_KINDS = {one.kind: one for one in (RESOURCE_CLASS, DEVICE_SOURCE, DEVICE_QUOTA, CLASS_GRANT)}
#: Stands for the cluster of an object of the whole fleet in keys.
_WHOLE_FLEET = "fleet"


class StoredMetadata(Model, kw_only=True):
    name: str
    cluster: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str = ""
    creation_timestamp: str = ""


class FleetObject(Model, kw_only=True):
    """An object as it is stored and shown; its spec is that of its kind. `told`: its last change, and the id of the event of that."""

    kind: str
    metadata: StoredMetadata
    spec: dict[str, Any] = {}
    told: list[str] = []

    @property
    def key(self) -> str:
        return fleet_object_key(self.kind, self.metadata.name, self.metadata.cluster)

    @property
    def spec_hash(self) -> str:
        """Returns what tells its spec from any other."""
        encoded = msgspec.json.encode(self.spec, order="sorted")
        return hashlib.sha256(encoded).hexdigest()[:16]


def fleet_object_key(kind: str, name: str, cluster: str = "") -> str:
    """Returns the key in the bucket of such objects."""
    return f"{token(kind)}.{token(cluster) if cluster else _WHOLE_FLEET}.{token(name)}"


def is_fleet_object_key(key: str) -> bool:
    return key.partition(".")[0] in FLEET_KINDS
