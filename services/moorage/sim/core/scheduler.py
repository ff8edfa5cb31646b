"""Which node a pod is bound to: Kubernetes' filters, then preferred node affinity twice and least allocated once. Claims
are never looked at: what the mesh promised must come true through what it wrote into the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moorage.model.shapes import Requirement
from moorage.selectors import requirement_matches, tolerated

from .cluster_spec import HOSTNAME, NodeKind
from .pod_needs import PodNeed

_NAME = "metadata.name"


class SchedulerNode:
    """A node on which something happened, or may."""

    __slots__ = ("cores", "kind", "name", "pods", "scored", "used")

    def __init__(self, name: str, kind: NodeKind, used: dict[str, int], pods: int) -> None:
        self.name = name
        self.kind = kind
        self.used = used
        self.pods = pods
        self.cores = 0
        self.scored = (used.get("cpu", 0), used.get("memory", 0))

    def take(self, need: PodNeed, sign: int = 1) -> None:
        for name, value in need.requests.items():
            self.used[name] = self.used.get(name, 0) + sign * value
        self.pods += sign
        self.scored = (self.scored[0] + sign * need.scored[0], self.scored[1] + sign * need.scored[1])
        if self.kind.policy == "static":
            self.cores += sign * need.cores

    def label(self, key: str) -> str | None:
        if key == HOSTNAME:
            return self.kind.labels.get(HOSTNAME, self.name)
        return self.name if key == _NAME else self.kind.labels.get(key)


def _holds(term: Sequence[Requirement], node: SchedulerNode) -> bool:
    return bool(term) and all(requirement_matches(r, node.label(r.key)) for r in term)


def selects(need: PodNeed, node: SchedulerNode) -> bool:
    """The filters that do not depend on what runs there."""
    if need.node_name and need.node_name != node.name:
        return False
    if need.terms is not None and not any(_holds(term, node) for term in need.terms):
        return False
    return tolerated(node.kind.repels, need.tolerations)


def has_room(need: PodNeed, node: SchedulerNode) -> bool:
    amounts, used = node.kind.amounts, node.used
    if node.pods >= amounts["pods"]:
        return False
    return all(
        amounts.get(name, 0) - used.get(name, 0) >= value for name, value in need.requests.items() if name != "pods"
    )


def _least_allocated(need: PodNeed, node: SchedulerNode) -> int:
    score, parts = 0, 0
    for i, name in enumerate(("cpu", "memory")):
        have = node.kind.amounts.get(name, 0)
        if have:
            asked = node.scored[i] + need.scored[i]
            score += max(0, have - asked) * 100 // have
            parts += 1
    return score // parts if parts else 0


def choose(need: PodNeed, nodes: Iterable[SchedulerNode]) -> SchedulerNode | None:
    """The best feasible node; of equals the first, where Kubernetes would draw lots."""
    feasible = [node for node in nodes if has_room(need, node) and selects(need, node)]
    if len(feasible) < 2:
        return feasible[0] if feasible else None
    likes = [sum(weight for weight, term in need.preferred if _holds(term, node)) for node in feasible]
    top = max(likes)
    best, best_score = feasible[0], -1
    for node, like in zip(feasible, likes, strict=True):
        score = 2 * (like * 100 // top if top > 0 else 0) + _least_allocated(need, node)
        if score > best_score:
            best, best_score = node, score
    return best
