"""Shapes: the needs of one pod of an object, resolved once per revision from its manifest and all intents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from .base import Model, Value
from .part_requests import PartGroup, PodContainer, Relation

#: A resource of nodes with a static CPU manager: whole cores that can be exclusive. Nodes of clusters that report no CPU
#: manager count as having any number, with a warning.
EXCLUSIVE = "moorage.dev/exclusive-cpu"
PODS = "pods"


class Requirement(Value, kw_only=True, frozen=True):
    """A Kubernetes node selector requirement: In, NotIn, Exists, DoesNotExist, Gt, Lt. Key `metadata.name` is the name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Toleration(Value, kw_only=True, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class OptionalNeed(Value, kw_only=True, frozen=True):
    """A need that excludes no cluster. A cluster where all `count` pods can have it scores its weight. `part_resources` are
    amounts that the group with the suffix `group` takes in addition where it is granted."""

    consumer: str
    name: str
    weight: int = 1
    resources: dict[str, int] = {}
    label: tuple[str, str] | None = None
    group: str = ""
    part_resources: dict[str, int] = {}


class NeedRef(Value, kw_only=True, frozen=True):
    """A need of a consumer, for explanations only. Without a `consumer` it is what the manifest itself requests. `group` is the
    suffix of its group of parts."""

    consumer: str
    name: str
    amount: int = 0
    label: tuple[str, str] | None = None
    group: str = ""


class PodRule(Value, kw_only=True, frozen=True):
    """A required rule of a pod about others of its group: `apart` from them, `near` to one of them, or `spread` evenly, over
    the domains that nodes with equal values of the label `key` are. `pods` names a selector of the group; empty: it selects
    no pod of the group, and the nodes only need the label."""

    kind: Literal["apart", "near", "spread"]
    key: str
    pods: str = ""
    shared: bool = False  # the selector selects pods of other objects, too
    max_skew: int = 1
    min_domains: int = 1
    honor_affinity: bool = True  # only nodes that the pod's own node affinity selects count
    honor_taints: bool = False  # only nodes whose taints it tolerates count


class Shape(Model, kw_only=True):
    """A pod of an object, `count` times in each cluster (or once on each matching node). `terms` are ORed, each a list of
    ANDed requirements; without any, every node matches. CPU is in milli, all else in whole units; `pods: 1` is always
    among the resources."""

    key: str  # a hash of everything that affects where it fits, so equal shapes have equal keys
    object: str  # "StatefulSet/core-fwall"
    count: int = msgspec.field(default_factory=lambda: 1)
    per_node: bool = False
    resources: dict[str, int] = {}
    terms: list[list[Requirement]] = []
    tolerations: list[Toleration] = []
    optional: list[OptionalNeed] = []
    needs: list[NeedRef] = []
    template: str = ""  # hash of the resolved pod template before claims
    surge: int = 0  # pods that a rollout may run beyond `count`; on every node if `per_node`
    unavailable: int = 0  # pods that may be missing during a rollout
    rules: list[PodRule] = []
    marks: list[str] = []  # the selectors of the group's rules that select these pods
    guaranteed: bool = False  # the pod has the QoS class Guaranteed; known only where `containers` are
    containers: list[PodContainer] = []  # given for pods that a kubelet may align with the zones of a node
    # Not supported yet: `fit` refuses non-empty values.
    groups: list[PartGroup] = []
    relations: list[Relation] = []
    devices: list[Any] = []
    machine: str = ""
    runtime: float = 0.0  # seconds until a pod in a slot of a machine is gone at the latest; 0: nobody knows
    namespace: str = ""  # given for pods that run in slots of a machine: not every namespace may use them
    alike: list[int] = []  # numbers of devices that pods of the same claim have: pins select what looks like these, too


def on_nodes(shape: Shape, operator: Literal["In", "NotIn"], nodes: Iterable[str]) -> Shape:
    """Returns the shape for these nodes only, or for all but these."""
    named = Requirement(key="metadata.name", operator=operator, values=tuple(sorted(nodes)))
    return msgspec.structs.replace(shape, terms=[[*term, named] for term in shape.terms or [[]]])


def _no_shapes() -> list[Shape]:
    return []  # with `list` itself as the factory, empty lists would not be encoded


class ShapedApp(Model, kw_only=True):
    """An app as controllers are asked about it. All fields that they need are encoded, for controllers that do not know the
    defaults. `steering`: whether the pods prefer the nodes of their slots, may run nowhere else, or are pinned each to its
    slot; empty: the document does not say."""

    name: str
    replicas: int = msgspec.field(default_factory=lambda: 1)
    shapes: list[Shape] = msgspec.field(default_factory=_no_shapes)
    steering: Literal["", "preferred", "required", "pinned"] = ""


class Intent(Model, kw_only=True):
    """An intent in an ask, of any kind, with its spec undecoded."""

    kind: str
    name: str
    spec: msgspec.Raw = msgspec.Raw(b"{}")

    def read(self) -> dict[str, Any]:
        """Decodes the spec into plain data."""
        found: dict[str, Any] = msgspec.json.decode(self.spec)
        return found
