"""Bodies of the `/v2` interface. Clients may use older spellings; the intent store keeps and returns this form."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_DESCRIPTION, MAX_USER_DATA = 1024, 512


class Body(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    pass


class Meta(Body, kw_only=True):
    name: str
    description: str = ""
    user_data1: str = ""
    user_data2: str = ""


class Named(Body, kw_only=True):
    """A project, composite profile or provider: a name and a description. A `spec` is kept as given."""

    metadata: Meta
    spec: dict[str, Any] = {}


class CompositeAppSpec(Body, kw_only=True):
    composite_app_version: str


class CompositeApp(Body, kw_only=True):
    metadata: Meta
    spec: CompositeAppSpec


class AppSpec(Body, kw_only=True):
    """`manifests`: Kubernetes objects, or YAML text with several, unless they are uploaded as a file."""

    manifests: list[dict[str, Any]] | str = []


class App(Body, kw_only=True):
    metadata: Meta
    spec: AppSpec = msgspec.field(default_factory=AppSpec)


class OfAppSpec(Body, kw_only=True):
    app: str


class OfApp(Body, kw_only=True):
    """A profile or a hardware intent, for one app of the composite app."""

    metadata: Meta
    spec: OfAppSpec


class OverrideValues(Body, kw_only=True):
    app: str
    values: dict[str, Any] = {}


class GroupSpec(Body, kw_only=True):
    composite_profile: str = ""
    version: str = ""
    logical_cloud: str = ""
    override_values: list[OverrideValues] = []


class Group(Body, kw_only=True):
    metadata: Meta
    spec: GroupSpec = msgspec.field(default_factory=GroupSpec)


class IntentsSpec(Body, kw_only=True):
    intent: dict[str, str]


class Intents(Body, kw_only=True):
    """Names of the intents that apply to the group, by kind. Of kinds that are not named, all apply."""

    metadata: Meta
    spec: IntentsSpec


class ClusterTerm(Body, kw_only=True):
    """Selects one cluster by name, or those of a provider with a label."""

    cluster_provider: str = ""
    cluster: str = ""
    cluster_label: str = ""
    all_of: list[ClusterTerm] = []
    any_of: list[ClusterTerm] = []


class ClusterTerms(Body, kw_only=True):
    all_of: list[ClusterTerm] = []
    any_of: list[ClusterTerm] = []


class AppIntentSpec(Body, kw_only=True):
    app: str
    intent: ClusterTerms = msgspec.field(default_factory=ClusterTerms)


class AppIntent(Body, kw_only=True):
    metadata: Meta
    spec: AppIntentSpec


class GroupConditions(Body, kw_only=True):
    """Conditions on the part that meets a group: traits and aggregates as `T`, `!T` or `in:A,B`."""

    required: list[str] = []
    member_of: list[str] = []
    in_tree: str = ""


class Topology(Body, kw_only=True):
    """Relations in a node between the parts of a pod's groups, with the same fields as in documents."""

    groups: dict[str, GroupConditions] = {}
    same_subtree: list[list[str]] = []
    isolate: list[str] = []
    group_policy: str = ""
    root_required: list[str] = []
    root_member_of: list[str] = []
    zone: str = ""


class ConsumerSpec(Body, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str
    container: str = ""
    replicas: int | None = None
    topology: Topology | None = None


class Consumer(Body, kw_only=True):
    metadata: Meta
    spec: ConsumerSpec


class ClassChoice(Body, kw_only=True):
    """Devices of a resource class that serve a need."""

    class_: str = msgspec.field(name="class")
    count: int | float | str = 1
    capacity: dict[str, int | float | str] = {}


class Amount(Body, kw_only=True):
    """A need for the resource `name`, with requests, limits or both, for a node label with `key` and `value`, for devices of a
    resource class, or of one of several, or for a slot of the `machine` GROUP/TYPE."""

    name: str = ""
    requests: int | float | str | None = None
    limits: int | float | str | None = None
    units: str = ""
    group: str = ""  # the suffix of the group of parts that a resource is for
    key: str = ""
    value: str | msgspec.UnsetType = msgspec.UNSET  # the value of a label may be empty
    class_: str = msgspec.field(default="", name="class")
    count: int | float | str | None = None
    one_of: list[ClassChoice] = []
    capacity: dict[str, int | float | str] = {}
    algorithm: str = ""
    machine: str = ""
    window: str = ""
    max_runtime: str = ""


class RequirementSpec(msgspec.Struct, rename="camel", kw_only=True):
    mandatory: bool
    allocatable: bool
    weight: int | msgspec.UnsetType = msgspec.UNSET
    resource: Amount


class Requirement(Body, kw_only=True):
    metadata: Meta
    spec: RequirementSpec


class ClusterLabel(Body, kw_only=True):
    """A label of a cluster: `clusterLabel` is `east`, or `region=eu` if it has a value."""

    cluster_label: str


class KeyValues(Body, kw_only=True):
    kv: list[dict[str, Any]] = []


class KeyValuePairs(Body, kw_only=True):
    metadata: Meta
    spec: KeyValues = msgspec.field(default_factory=KeyValues)


class ClusterReferenceSpec(Body, kw_only=True):
    cluster_provider: str
    cluster: str
    loadbalancer_ip: str = ""


class ClusterReference(Body, kw_only=True):
    metadata: Meta
    spec: ClusterReferenceSpec


class ControllerSpec(Body, kw_only=True):
    host: str = ""
    port: int = 0
    type: str = ""
    priority: int = 0


class ControllerBody(Body, kw_only=True):
    metadata: Meta
    spec: ControllerSpec = msgspec.field(default_factory=ControllerSpec)


class MigrateSpec(Body, kw_only=True):
    target_dig_name: str
    target_composite_app_version: str = ""


class Migrate(Body, kw_only=True):
    spec: MigrateSpec
    metadata: dict[str, Any] = {}


class RollbackSpec(Body, kw_only=True):
    revision: int | str


class Rollback(Body, kw_only=True):
    spec: RollbackSpec
    metadata: dict[str, Any] = {}
