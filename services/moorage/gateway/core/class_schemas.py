"""Types of responses about resource classes and what belongs to them."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.model.base import Model
from moorage.model.part_reports import PropertyValue
from moorage.model.reasons import Warn
from moorage.model.resource_classes import StoredMetadata


class DeviceAmounts(Model, kw_only=True):
    """Quantities of devices: healthy ones that the class selects, and of those the ones that are taken or free."""

    allocatable: str
    requested: str
    free: str


class ClassStatusItem(DeviceAmounts, kw_only=True):
    clusters: dict[str, DeviceAmounts]


class ResourceClassItem(Model, kw_only=True, omit_defaults=False):
    kind: str
    metadata: StoredMetadata
    spec: dict[str, Any]
    status: ClassStatusItem


class FleetObjectItem(Model, kw_only=True, omit_defaults=False):
    """`builtIn`: it is there from the start, and a stored one of its name takes its place."""

    kind: str
    metadata: StoredMetadata
    spec: dict[str, Any]
    built_in: bool = False


class ExplainClass(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The name of a stored class, or the document of one that is not stored. `cluster`: only its devices, and the class that the
    name means there."""

    name: str = msgspec.field(name="class", default="")
    document: dict[str, Any] | None = None
    cluster: str = ""


class RequirementCount(Model, kw_only=True, omit_defaults=False):
    """`matching`: devices that meet it alone; `remaining`: those that meet it and all before it."""

    key: str
    operator: str
    values: list[str]
    matching: int
    remaining: int


class NearestMiss(Model, kw_only=True):
    """A device that meets all requirements of a term but these."""

    cluster: str
    part: str
    fails: list[str]  # keys
    properties: dict[str, PropertyValue] = {}  # the values of these keys


class TermCount(Model, kw_only=True, omit_defaults=False):
    requirements: list[RequirementCount]
    selected: int
    nearest: NearestMiss | None = None


class DeviceAlgorithmItem(Model, kw_only=True, omit_defaults=False):
    """The algorithm that chooses devices where neither a need nor its class names one, and those that there are."""

    algorithm: str
    known: list[str] = []


class DeviceAlgorithmEdit(Model, kw_only=True, forbid_unknown_fields=True):
    algorithm: str


class DevicesMoved(Model, kw_only=True, omit_defaults=False):
    """The kinds of devices of which so many had failed at once that nothing moved, and that pods leave now."""

    cluster: str
    kinds: list[str] = []


class DevicesMoveEdit(Model, kw_only=True, forbid_unknown_fields=True):
    """Allows pods to leave failed devices of a kind, or of every kind without one."""

    cluster: str
    kind: str = ""


class ClassExplained(Model, kw_only=True, omit_defaults=False):
    """The devices that a class selects: `devices` there are, `selected` by one of the terms, of these `healthy`, and how many units
    are free."""

    name: str
    cluster: str
    devices: int
    terms: list[TermCount]
    selected: int
    healthy: int
    allocatable: str
    requested: str
    free: str
    clusters: dict[str, DeviceAmounts]
    warnings: list[Warn]
    diagnostics: dict[str, int]
