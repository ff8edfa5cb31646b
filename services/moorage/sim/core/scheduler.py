"""Schedules pods as Kubernetes does: filters, then scores: preferred node affinity (weight 2) and least allocated (weight 1).

Claims are never read: what the mesh decided must come true through the manifests alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from moorage.model.reports import Taint
from moorage.model.shapes import Requirement
from moorage.podspec import HostPort
from moorage.selectors import requirement_matches, tolerated

from .cluster_spec import HOSTNAME, NodeKind
from .node_zones import Zones
from .pod_constraints import PodFilters
from .pod_needs import PodNeed

_NAME = "metadata.name"


class SchedulerNode:
    """A node with the requests of the pods on it."""

    __slots__ = ("_running", "cores", "kind", "name", "pods", "ports", "scored", "used", "zones")

    def __init__(self, name: str, kind: NodeKind, used: dict[str, int], pods: int) -> None:
        self.name = name
        self.kind = kind
        self.used = used
        self.pods = pods
        self.cores = 0
        self.ports: Counter[HostPort] = Counter()
        self._running: dict[int, tuple[PodNeed, int]] = {}
        self.scored = (used.get("cpu", 0), used.get("memory", 0))
        self.zones: Zones | None = kind.zones_of(name)

    def take(self, need: PodNeed, sign: int = 1) -> None:
        """Adds a pod; with sign -1, removes one."""
        for name, value in need.requests.items():
            self.used[name] = self.used.get(name, 0) + sign * value
        self.pods += sign
        count = self._running.get(id(need), (need, 0))[1] + sign
        if count:
            self._running[id(need)] = need, count
        else:
            del self._running[id(need)]
        for port in need.host_ports:
            self.ports[port] += sign
            if not self.ports[port]:
                del self.ports[port]
        self.scored = (self.scored[0] + sign * need.scored[0], self.scored[1] + sign * need.scored[1])
        if self.kind.policy == "static":
            self.cores += sign * need.cores

    def running(self) -> Iterable[tuple[PodNeed, int]]:
        """Yields the pods that run here, each with the number of equal ones."""
        return self._running.values()

    @property
    def taints(self) -> Sequence[Taint]:
        return self.kind.repelling_taints

    def label(self, key: str) -> str | None:
        if key == HOSTNAME:
            return self.kind.labels.get(HOSTNAME, self.name)
        return self.name if key == _NAME else self.kind.labels.get(key)


def _matches(term: Sequence[Requirement], node: SchedulerNode) -> bool:
    return bool(term) and all(requirement_matches(r, node.label(r.key)) for r in term)


def passes_filters(need: PodNeed, node: SchedulerNode) -> bool:
    """Returns whether the node passes the filters that do not depend on the pods there: name, affinity, taints."""
    return selects(need, node) and tolerated(node.kind.repelling_taints, need.tolerations)


def has_free_ports(need: PodNeed, node: SchedulerNode) -> bool:
    """Returns whether the node passes the filter for host ports."""
    return not any(
        port[:2] == used[:2] and (not port.ip or not used.ip or port.ip == used.ip)
        for port in need.host_ports
        for used in node.ports
    )


def has_capacity(need: PodNeed, node: SchedulerNode, beside: Collection[str] = ()) -> bool:
    """Returns whether the node passes the filter for resources and the number of pods. `beside`: resources that devices serve."""
    amounts, used = node.kind.amounts, node.used
    if node.pods >= amounts["pods"]:
        return False
    return all(
        amounts.get(name, 0) - used.get(name, 0) >= value
        for name, value in need.requests.items()
        if name != "pods" and name not in beside
    )


class NodeDevicesFilter(NamedTuple):
    """The scheduler's filter for devices. `short` returns the resources of a pod that devices of a node must serve, `fits` whether
    the node has devices for the pod."""

    short: Callable[[PodNeed, SchedulerNode], Mapping[str, int]]
    fits: Callable[[PodNeed, SchedulerNode], bool]


def _least_allocated(need: PodNeed, node: SchedulerNode) -> int:
    """Returns the score of the NodeResourcesFit plugin: the mean free share of CPU and memory, in percent."""
    shares = []
    for i, name in enumerate(("cpu", "memory")):
        allocatable = node.kind.amounts.get(name, 0)
        if allocatable:
            requested = node.scored[i] + need.scored[i]
            shares.append(max(0, allocatable - requested) * 100 // allocatable)
    return sum(shares) // len(shares) if shares else 0


def selects(need: PodNeed, node: SchedulerNode) -> bool:
    """Returns whether the node passes the pod's own node affinity."""
    if need.node_name and need.node_name != node.name:
        return False
    return need.terms is None or any(_matches(term, node) for term in need.terms)


def _has_neighbour_rules(need: PodNeed, nodes: Iterable[SchedulerNode]) -> bool:
    """Returns whether rules of the pod or of one that runs are about other pods."""
    return any(need.constraints) or any(pod.constraints.apart for node in nodes for pod, _ in node.running())


def choose(
    need: PodNeed,
    nodes: Collection[SchedulerNode],
    cluster: Collection[SchedulerNode] | None = None,
    devices: NodeDevicesFilter | None = None,
) -> SchedulerNode | None:
    """Returns the feasible node with the highest score; of equal ones the first, where Kubernetes picks at random. `cluster`: all nodes,
    where only some may be chosen."""
    everywhere = nodes if cluster is None else cluster
    feasible = [
        node
        for node in nodes
        if has_capacity(need, node, devices.short(need, node) if devices is not None else ())
        and has_free_ports(need, node)
        and passes_filters(need, node)
    ]
    if feasible and _has_neighbour_rules(need, everywhere):
        filters = PodFilters(need, list(everywhere), lambda node: selects(need, cast("SchedulerNode", node)))
        feasible = [node for node in feasible if filters.passes(node)]
    if len(feasible) < 2 and devices is None:
        return feasible[0] if feasible else None
    affinities = [sum(weight for weight, term in need.preferred if _matches(term, node)) for node in feasible]
    top = max(affinities, default=0)
    scores = [
        2 * (affinity * 100 // top if top > 0 else 0) + _least_allocated(need, node)
        for node, affinity in zip(feasible, affinities, strict=True)
    ]
    if devices is None:
        return feasible[max(range(len(feasible)), key=lambda i: (scores[i], -i))]
    # Devices are looked at last, because that costs most; which nodes are left is the same.
    best_first = sorted(range(len(feasible)), key=lambda i: (-scores[i], i))
    return next((feasible[i] for i in best_first if devices.fits(need, feasible[i])), None)
