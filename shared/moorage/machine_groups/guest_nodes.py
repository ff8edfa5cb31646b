"""Tells which Nodes a guest may use by its node selector, required affinity and tolerations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from moorage.model.reports import Taint
from moorage.model.shapes import Requirement, Toleration
from moorage.selectors import requirement_matches, tolerated

from .node_marks import NodeView

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Shape:
    """The needs of guests with equal selectors, affinity and tolerations. `near` and `apart`: terms about other Pods."""

    def __init__(self, text: str) -> None:
        self.text = text
        read = msgspec.json.decode(text)
        self.selector: dict[str, str] = read.get("nodeSelector") or {}
        self.affinity: dict[str, Any] = read.get("affinity") or {}
        self.own_tolerations: list[dict[str, Any]] = read.get("tolerations") or []
        self.tolerations = tuple(
            Toleration(
                key=t.get("key") or "",
                operator=t.get("operator") or "Equal",
                value=t.get("value") or "",
                effect=t.get("effect") or "",
            )
            for t in self.own_tolerations
        )
        required = (self.affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}
        self._terms = [_term(t) for t in required.get("nodeSelectorTerms") or ()]
        self.near = (self.affinity.get("podAffinity") or {}).get(_REQUIRED) or []
        self.apart = (self.affinity.get("podAntiAffinity") or {}).get(_REQUIRED) or []

    def allows(self, node: NodeView, given: Collection[tuple[str, str]] = ()) -> bool:
        """Returns whether the Node has what the Pod requires, and no taint that it does not tolerate. `given`: keys and values of taints
        for which it is given tolerations with its slot."""
        if any(node.labels.get(k) != v for k, v in self.selector.items()):
            return False
        labels = {**node.labels, "metadata.name": node.name}
        if self._terms and not any(
            t and all(requirement_matches(r, labels.get(r.key)) for r in t) for t in self._terms
        ):
            return False
        taints = [Taint(key=t["key"], effect=t.get("effect", ""), value=t.get("value") or "") for t in node.taints]
        return tolerated([t for t in taints if (t.key, t.value) not in given], self.tolerations)


def shape_text(spec: Mapping[str, Any]) -> str:
    """Returns what the shape of a Pod is made of."""
    parts = {k: spec[k] for k in ("nodeSelector", "affinity", "tolerations") if spec.get(k)}
    return msgspec.json.encode(parts, order="sorted").decode()


def _term(term: Mapping[str, Any]) -> list[Requirement]:
    found = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return [_requirement(r) for r in found]


def _requirement(raw: Mapping[str, Any]) -> Requirement:
    return Requirement(key=raw.get("key", ""), operator=raw.get("operator", ""), values=tuple(raw.get("values") or ()))
