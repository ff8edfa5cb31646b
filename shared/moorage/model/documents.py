"""Documents as users write them. Unknown fields are refused with their path, never ignored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

API_VERSION = "moorage.dev/v1alpha1"


class Strict(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Metadata(Strict, kw_only=True):
    name: str
    project: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ObjectRef(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Refers to an object with pods. Its version and kind may be absent where the name tells which one is meant."""

    name: str
    api_version: str = ""
    kind: str = ""


class ClassChoice(Strict, kw_only=True):
    """Devices of a resource class that serve a need. A `count` below 1 is a share of one device that can be shared."""

    class_: str = msgspec.field(name="class")
    count: int | float | str = 1
    capacity: dict[str, int | float | str] = {}


class Need(Strict, kw_only=True):
    """A need for a resource (with requests, limits or both), for a node label with a value, for devices (of a resource class, or of
    the first of several choices that can be had), or for a slot of a machine type, GROUP/TYPE, which the whole pod runs in. All
    needs of a `group` are met by one part of the node."""

    resource: str = ""
    requests: int | float | str | None = None
    limits: int | float | str | None = None
    units: str = ""
    label: str = ""
    value: str | bool | int | float = ""
    mandatory: bool | None = None
    weight: int | None = None
    name: str = ""
    group: str = ""
    class_: str = msgspec.field(default="", name="class")
    count: int | float | str | None = None
    one_of: list[ClassChoice] = []
    capacity: dict[str, int | float | str] = {}
    algorithm: str = ""
    machine: str = ""
    window: str = ""
    max_runtime: str = ""


class AttributeCondition(Strict, kw_only=True):
    """An attribute of all devices of these needs."""

    attribute: str
    needs: list[str] = []


class GroupConditions(Strict, kw_only=True):
    """Conditions on the part that meets a group: traits and aggregates as `T`, `!T` or `in:A,B`."""

    required: list[str] = []
    member_of: list[str] = []
    in_tree: str = ""


class Topology(Strict, kw_only=True):
    """Relations in a node between the parts of a pod's groups, and which attributes of devices are equal (`match`)
    or all different."""

    groups: dict[str, GroupConditions] = {}
    same_subtree: list[list[str]] = []
    isolate: list[str] = []
    group_policy: str = ""
    root_required: list[str] = []
    root_member_of: list[str] = []
    zone: str = ""
    match: list[AttributeCondition] = []
    distinct: list[AttributeCondition] = []


class Consumer(Strict, kw_only=True):
    object: ObjectRef
    name: str = ""
    container: str = ""
    replicas: int | None = None
    needs: list[Need] = []
    topology: Topology | None = None


class Term(Strict, kw_only=True):
    """A placement term: one of the fields. `anyOf` and `allOf` may be nested."""

    label: dict[str, str] = {}
    cluster: str = ""
    provider: str = ""
    any_of: list[Term] = []
    all_of: list[Term] = []


class PlacementSet(Strict, kw_only=True):
    """`count` of the clusters that the terms select; 0 means every one, or with `partial` those that can take the app."""

    count: int = 1
    partial: bool = False
    all_of: list[Term] = []
    any_of: list[Term] = []


class Placement(Strict, kw_only=True):
    """A filter. `sets` also say how many clusters, instead of the app's `replicas`."""

    all_of: list[Term] = []
    any_of: list[Term] = []
    sets: list[PlacementSet] = []


class App(Strict, kw_only=True):
    name: str
    replicas: int | None = None
    manifests: list[dict[str, Any]] | dict[str, Any] = []
    placement: Placement | None = None
    consumers: list[Consumer] = []
    steering: Literal["preferred", "required", "pinned"] | None = None


class AffinityRule(Strict, kw_only=True):
    together: list[str] = []
    apart: list[str] = []
    mandatory: bool = True


class ApplicationSpec(Strict, kw_only=True):
    apps: list[App]
    affinity: list[AffinityRule] = []


class Application(Strict, kw_only=True):
    kind: str
    metadata: Metadata
    spec: ApplicationSpec
    api_version: str = API_VERSION


class HpaIntentSpec(Strict, kw_only=True):
    group: str
    app: str
    consumers: list[Consumer] = []


class TopologyIntentSpec(HpaIntentSpec, kw_only=True):
    """Consumers as in an HpaIntent, from whoever knows the inside of the machines."""


class PlacementIntentSpec(Strict, kw_only=True):
    """A filter (`allOf`, `anyOf`) or several sets with counts, for one app of a group."""

    group: str
    app: str
    all_of: list[Term] = []
    any_of: list[Term] = []
    sets: list[PlacementSet] = []


class AffinityIntentSpec(Strict, kw_only=True):
    group: str
    rules: list[AffinityRule] = []


#: The specs of `INTENT_KINDS`.
INTENT_SPECS: dict[str, type[msgspec.Struct]] = {
    "HpaIntent": HpaIntentSpec,
    "TopologyIntent": TopologyIntentSpec,
    "PlacementIntent": PlacementIntentSpec,
    "AffinityIntent": AffinityIntentSpec,
}


class IntentDocument(Strict, kw_only=True):
    """A standalone intent (`HpaIntent`, `TopologyIntent`, `PlacementIntent`, `AffinityIntent`, or a registered kind), for `spec.group`."""

    kind: str
    metadata: Metadata
    spec: dict[str, Any]
    api_version: str = API_VERSION
