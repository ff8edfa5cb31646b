"""Shapes: what one pod of an object needs, resolved once per revision from its manifest and all intents."""

from __future__ import annotations

from typing import Any

import msgspec

from .base import Model, Value

#: A resource of nodes whose CPU manager is static: whole cores that can be given exclusively. Nodes of clusters that
#: report no CPU manager at all count as having any number (and the answer warns).
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
    """Never excludes a cluster; a cluster where all `count` pods can have it scores its weight."""

    consumer: str
    name: str
    weight: int = 1
    resources: dict[str, int] = {}
    label: tuple[str, str] | None = None


class NeedRef(Value, kw_only=True, frozen=True):
    """Which consumer asked for how much of what: only for explanations. `container` is what the object already had."""

    consumer: str
    name: str
    amount: int = 0
    label: tuple[str, str] | None = None


class Shape(Model, kw_only=True):
    """One object's pod, `count` times in each cluster (or once on each matching node). `terms` are ORed, each a list of
    ANDed requirements; empty = every node. CPU is milli, all else whole units; `pods: 1` is always among them."""

    key: str  # equal shapes have equal keys: a hash of all that decides where it fits
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
    # Kinds that come later fill these; until then non-empty values are refused by `fit`, never ignored.
    devices: list[Any] = []
    request_groups: list[Any] = []
    machine: str = ""


def _no_shapes() -> list[Shape]:
    return []  # unlike `list` itself, told


class ShapedApp(Model, kw_only=True):
    """As controllers are asked about it: whoever knows no defaults finds all of it, and of each shape the count."""

    name: str
    replicas: int = msgspec.field(default_factory=lambda: 1)
    shapes: list[Shape] = msgspec.field(default_factory=_no_shapes)


class Intent(Model, kw_only=True):
    """An intent as asks carry it: known kinds and unknown ones alike, the spec undecoded."""

    kind: str
    name: str
    spec: msgspec.Raw = msgspec.Raw(b"{}")

    def read(self) -> dict[str, Any]:
        """Its `spec` as plain data."""
        found: dict[str, Any] = msgspec.json.decode(self.spec)
        return found
