"""Schedules pods as Kubernetes does: filters, then scores: preferred node affinity (weight 2) and least allocated (weight 1).

Claims are never read: what the mesh decided must come true through the manifests alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moorage.model.shapes import Requirement
from moorage.selectors import requirement_matches, tolerated

from .cluster_spec import HOSTNAME, NodeKind
from .pod_needs import PodNeed

_NAME = "metadata.name"


class SchedulerNode:
    """A node with the requests of the pods on it."""

    __slots__ = ("cores", "kind", "name", "pods", "scored", "used")

    def __init__(self, name: str, kind: NodeKind, used: dict[str, int], pods: int) -> None:
        self.name = name
        self.kind = kind
        self.used = used
        self.pods = pods
        self.cores = 0
        self.scored = (used.get("cpu", 0), used.get("memory", 0))

    def take(self, need: PodNeed, sign: int = 1) -> None:
        """Adds a pod; with sign -1, removes one."""
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


def _matches(term: Sequence[Requirement], node: SchedulerNode) -> bool:
    return bool(term) and all(requirement_matches(r, node.label(r.key)) for r in term)


def passes_filters(need: PodNeed, node: SchedulerNode) -> bool:
    """Whether the node passes the filters that do not depend on the pods there: name, affinity, taints."""
    if need.node_name and need.node_name != node.name:
        return False
    if need.terms is not None and not any(_matches(term, node) for term in need.terms):
        return False
    return tolerated(node.kind.repelling_taints, need.tolerations)


def has_capacity(need: PodNeed, node: SchedulerNode) -> bool:
    """Whether the node passes the filter for resources and the number of pods."""
    amounts, used = node.kind.amounts, node.used
    if node.pods >= amounts["pods"]:
        return False
    return all(
        amounts.get(name, 0) - used.get(name, 0) >= value for name, value in need.requests.items() if name != "pods"
    )


def _least_allocated(need: PodNeed, node: SchedulerNode) -> int:
    """The score of the NodeResourcesFit plugin: the mean free share of CPU and memory, in percent."""
    shares = []
    for i, name in enumerate(("cpu", "memory")):
        allocatable = node.kind.amounts.get(name, 0)
        if allocatable:
            requested = node.scored[i] + need.scored[i]
            shares.append(max(0, allocatable - requested) * 100 // allocatable)
    return sum(shares) // len(shares) if shares else 0


def choose(need: PodNeed, nodes: Iterable[SchedulerNode]) -> SchedulerNode | None:
    """The feasible node with the highest score; of equal ones the first, where Kubernetes picks at random."""
    feasible = [node for node in nodes if has_capacity(need, node) and passes_filters(need, node)]
    if len(feasible) < 2:
        return feasible[0] if feasible else None
    affinities = [sum(weight for weight, term in need.preferred if _matches(term, node)) for node in feasible]
    top = max(affinities)
    best, best_score = feasible[0], -1
    for node, affinity in zip(feasible, affinities, strict=True):
        score = 2 * (affinity * 100 // top if top > 0 else 0) + _least_allocated(need, node)
        if score > best_score:
            best, best_score = node, score
    return best
