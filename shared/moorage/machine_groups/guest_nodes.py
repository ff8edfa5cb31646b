"""Tells which Nodes a guest may use: its node selector, required affinity and tolerations, and required rules about other guests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from moorage.model.reports import Taint
from moorage.model.shapes import Requirement, Toleration
from moorage.selectors import requirement_matches, tolerated

from .node_marks import NodeView

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class PodOnNode(msgspec.Struct, frozen=True):
    namespace: str
    labels: Mapping[str, str]
    node: str
    shape: str


class Shape:
    """What guests with equal selectors, affinity and tolerations have in common."""

    def __init__(self, text: str) -> None:
        self.text = text
        read = msgspec.json.decode(text)
        self.selector: dict[str, str] = read.get("nodeSelector") or {}
        self.affinity: dict[str, Any] = read.get("affinity") or {}
        self.tolerations = tuple(
            Toleration(
                key=t.get("key") or "",
                operator=t.get("operator") or "Equal",
                value=t.get("value") or "",
                effect=t.get("effect") or "",
            )
            for t in read.get("tolerations") or ()
        )
        required = (self.affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}
        self._terms = [_term(t) for t in required.get("nodeSelectorTerms") or ()]
        self.near = (self.affinity.get("podAffinity") or {}).get(_REQUIRED) or []
        self.apart = (self.affinity.get("podAntiAffinity") or {}).get(_REQUIRED) or []

    @property
    def has_pod_rules(self) -> bool:
        return bool(self.near or self.apart)

    def allows(self, node: NodeView) -> bool:
        """Returns whether the Node has what the Pod requires, and no taint that it does not tolerate."""
        if any(node.labels.get(k) != v for k, v in self.selector.items()):
            return False
        labels = {**node.labels, "metadata.name": node.name}
        if self._terms and not any(
            t and all(requirement_matches(r, labels.get(r.key)) for r in t) for t in self._terms
        ):
            return False
        taints = [Taint(key=t["key"], effect=t.get("effect", ""), value=t.get("value") or "") for t in node.taints]
        return tolerated(taints, self.tolerations)


def shape_text(spec: Mapping[str, Any]) -> str:
    """Returns what the shape of a Pod is made of."""
    parts = {k: spec[k] for k in ("nodeSelector", "affinity", "tolerations") if spec.get(k)}
    return msgspec.json.encode(parts, order="sorted").decode()


def without_conflict(
    shape: Shape, namespace: str, labels: Mapping[str, str], node: NodeView, nodes: Mapping[str, NodeView],
    others: Iterable[PodOnNode], shapes: Mapping[str, Shape],
) -> bool:  # fmt: skip
    """Returns whether a guest's rules about other guests, and theirs about it, hold on a Node."""
    others = list(others)
    for other in others:
        if any(
            _selects(t, namespace, other.namespace, other.labels) and _same_domain(t, node, nodes.get(other.node))
            for t in shape.apart
        ):
            return False
        theirs = shapes.get(other.shape)
        if theirs is not None and any(
            _selects(t, other.namespace, namespace, labels) and _same_domain(t, node, nodes.get(other.node))
            for t in theirs.apart
        ):
            return False
    for term in shape.near:
        found = [o for o in others if _selects(term, namespace, o.namespace, o.labels)]
        if any(_same_domain(term, node, nodes.get(o.node)) for o in found):
            continue
        # The first of Pods that want to be near each other may start anywhere; of strangers nobody here knows.
        if found:
            return False
    return True


def _same_domain(term: Mapping[str, Any], one: NodeView, other: NodeView | None) -> bool:
    key = str(term.get("topologyKey", ""))
    value = one.labels.get(key)
    return other is not None and value is not None and other.labels.get(key) == value


def _selects(term: Mapping[str, Any], own: str, namespace: str, labels: Mapping[str, str]) -> bool:
    namespaces = term.get("namespaces") or ([] if term.get("namespaceSelector") is not None else [own])
    if term.get("namespaceSelector") is None and namespace not in namespaces:
        return False
    selector = term.get("labelSelector")
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(
        requirement_matches(r, labels.get(r.key)) for r in map(_requirement, selector.get("matchExpressions") or ())
    )


def _term(term: Mapping[str, Any]) -> list[Requirement]:
    found = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return [_requirement(r) for r in found]


def _requirement(raw: Mapping[str, Any]) -> Requirement:
    return Requirement(key=raw.get("key", ""), operator=raw.get("operator", ""), values=tuple(raw.get("values") or ()))
