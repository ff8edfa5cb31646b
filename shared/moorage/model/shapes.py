"""Shapes: the needs of one pod of an object, resolved once per revision from its manifest and all intents."""

from __future__ import annotations

from typing import Any

import msgspec

from .base import Model, Value

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
    """A need that excludes no cluster. A cluster where all `count` pods can have it scores its weight."""

    consumer: str
    name: str
    weight: int = 1
    resources: dict[str, int] = {}
    label: tuple[str, str] | None = None


class NeedRef(Value, kw_only=True, frozen=True):
    """A need of a consumer, for explanations only. Without a `consumer` it is what the manifest itself requests."""

    consumer: str
    name: str
    amount: int = 0
    label: tuple[str, str] | None = None


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
    surge: int = 0
    # Not supported yet: `fit` refuses non-empty values.
    devices: list[Any] = []
    request_groups: list[Any] = []
    machine: str = ""


def _no_shapes() -> list[Shape]:
    return []  # with `list` itself as the factory, empty lists would not be encoded


class ShapedApp(Model, kw_only=True):
    """An app as controllers are asked about it. All fields are encoded, for controllers that do not know the defaults."""

    name: str
    replicas: int = msgspec.field(default_factory=lambda: 1)
    shapes: list[Shape] = msgspec.field(default_factory=_no_shapes)


class Intent(Model, kw_only=True):
    """An intent in an ask, of any kind, with its spec undecoded."""

    kind: str
    name: str
    spec: msgspec.Raw = msgspec.Raw(b"{}")

    def read(self) -> dict[str, Any]:
        """Decodes the spec into plain data."""
        found: dict[str, Any] = msgspec.json.decode(self.spec)
        return found
