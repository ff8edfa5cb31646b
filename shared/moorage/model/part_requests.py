"""The requests of a pod for parts of its node: groups of amounts, relations between them, and what each container requests."""

from __future__ import annotations

from typing import Literal

from .base import Value

#: The suffix of the group of all that is asked of parts without naming a group.
NAMELESS = ""


Operator = Literal[
    "In", "NotIn", "Eq", "Gt", "GtEq", "Lt", "LtEq", "Exists", "DoesNotExist", "NotGt", "NotGtEq", "NotLt", "NotLtEq"
]


class PropertyCondition(Value, kw_only=True, frozen=True):
    """A condition on one property of a part. `values` are read as the property's type. Operators like NotGt, which no class has, hold
    exactly where the one without Not does not."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


#: Alternatives, each a conjunction. Without any, all parts are selected; an empty one selects none.
PropertySelector = tuple[tuple[PropertyCondition, ...], ...]


class DeviceToleration(Value, kw_only=True, frozen=True):
    """Tolerates taints of devices. Without a key it tolerates all; without an effect, all effects. `seconds`: how long a pod
    stays on a device with the effect NoExecute; None is for ever."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None


class ClassVersion(Value, kw_only=True, frozen=True):
    """The class that a name meant: one that is deleted and made again is another. `spec` is the hash of its spec, `algorithm` the one
    that chose devices of it."""

    uid: str
    spec: str
    algorithm: str = ""


class DeviceAsk(Value, kw_only=True, frozen=True):
    """Devices that a pod asks for: `count` of those that the class and all selectors select, or all of them. `device_class`
    names a DeviceClass of the cluster; `selectors` are CEL expressions. `capacity`: quantities of a device's
    capacities. With `admin` access nothing is taken of the devices."""

    name: str = ""  # of an alternative; empty: it has none beside it
    device_class: str = ""
    selectors: tuple[str, ...] = ()
    properties: PropertySelector = ()
    count: int = 1
    all: bool = False
    admin: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: dict[str, str] = {}
    resource_class: str = ""  # a class of the mesh, which `properties` has when it is asked, or of the cluster
    versions: dict[str, ClassVersion] = {}  # of the resource class, by cluster; "" is the fleet's
    share: int = 0  # thousandths of each capacity of a device that can be divided; 0: whole devices
    algorithm: str = ""  # by which devices are chosen; empty: the class's or the fleet's
    extended_resource: str = ""  # asked only of nodes where a DeviceClass serves it; others count it themselves


class RoleAsk(Value, kw_only=True, frozen=True):
    """The request of a pod with a role, of which each node's policy says how much it takes of a zone: whole cores of its main container,
    memory and huge pages."""

    name: str
    cores: int = 0
    memory: dict[str, int] = {}


class PartGroup(Value, kw_only=True, frozen=True):
    """Amounts that one part gives to one pod, and conditions that this part meets. The group without a suffix is spread: each
    of its classes may come from another part of the tree.

    `required` and `member_of` are conjunctions of alternatives: one name of each entry must be there. Classes and traits have
    the names of `moorage.model.part_names`; amounts of Kubernetes resources are in the units of `Shape.resources`, which
    includes them.

    With `devices` it asks for devices instead, the first of these that the node can give, and is named CLAIM/REQUEST."""

    suffix: str = NAMELESS
    resources: dict[str, int] = {}
    required: tuple[tuple[str, ...], ...] = ()
    forbidden: tuple[str, ...] = ()
    member_of: tuple[tuple[str, ...], ...] = ()
    not_member_of: tuple[str, ...] = ()
    properties: PropertySelector = ()
    in_tree: str = ""  # a part, usually the node, whose tree it must be
    count: int = 1  # so many such parts; each gives `resources`
    devices: tuple[DeviceAsk, ...] = ()
    role: RoleAsk | None = None  # nodes that tell what the role gets replace `resources` by that
    shared: str = ""  # a claim whose devices all pods that name it have together
    optional: bool = (
        False  # asked for only where an optional need of the group is granted, else left out of all relations
    )


class SameSubtree(Value, kw_only=True, frozen=True, tag="sameSubtree"):
    """One of the parts of `groups` is an ancestor of, or is, all of them. No part of `apart` is an ancestor or descendant of
    that one, or the same."""

    groups: tuple[str, ...]
    apart: tuple[str, ...] = ()


class Isolated(Value, kw_only=True, frozen=True, tag="isolated"):
    """The part of each of `groups` meets no other group that has a suffix."""

    groups: tuple[str, ...]


class OneZone(Value, kw_only=True, frozen=True, tag="oneZone"):
    """All resources of the pod that the zones of its node report come from one zone. A node without zones has none that could
    give them. If it is not `required`, such nodes are only preferred."""

    required: bool = True


class RoleZone(Value, kw_only=True, frozen=True, tag="roleZone"):
    """Requires that plugins of the node's agent serve these groups from the zone of the first, which is a role's. Of the others all
    else may come from anywhere."""

    groups: tuple[str, ...]


class RootConditions(Value, kw_only=True, frozen=True, tag="root"):
    """Traits and aggregates of the node itself. `required` and `member_of` are conjunctions of alternatives."""

    required: tuple[tuple[str, ...], ...] = ()
    forbidden: tuple[str, ...] = ()
    member_of: tuple[tuple[str, ...], ...] = ()
    not_member_of: tuple[str, ...] = ()


class AttributeRelation(Value, kw_only=True, frozen=True, tag="attribute"):
    """All devices of `groups` (CLAIM/REQUEST, or CLAIM/REQUEST/ALTERNATIVE) have the attribute, with a value that they have in
    common, or with `distinct` values. Values that are lists have a value in common, or none."""

    groups: tuple[str, ...]
    attribute: str
    distinct: bool = False


Relation = SameSubtree | Isolated | OneZone | RoleZone | RootConditions | AttributeRelation


class PodContainer(Value, kw_only=True, frozen=True):
    """The requests of one container. Init containers run one after the other before the rest starts, in the order of the list;
    sidecars are init containers that keep running."""

    name: str
    init: bool = False
    sidecar: bool = False
    requests: dict[str, int] = {}
