"""Resource classes: names for devices, selected by their properties."""

from __future__ import annotations

from .documents import API_VERSION, Strict

RESOURCE_CLASS = "ResourceClass"


class FleetMetadata(Strict, kw_only=True):
    """The name of an object of the whole fleet, or of one cluster, PROVIDER/NAME, where it wins over the fleet's."""

    name: str
    cluster: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


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
