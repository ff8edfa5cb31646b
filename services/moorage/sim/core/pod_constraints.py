"""The scheduler's filters about other pods, after the plugins InterPodAffinity and PodTopologySpread: what a pod asks for, and
which nodes pass with the pods that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from moorage.model.reports import Taint
from moorage.model.shapes import Requirement, Toleration
from moorage.selectors import requirement_matches, tolerated

_NAMESPACE = "kubernetes.io/metadata.name"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class LabelSelector(NamedTuple):
    """`requirements` None selects nothing, an empty one everything."""

    requirements: tuple[Requirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.requirements is not None and all(
            requirement_matches(r, labels.get(r.key)) for r in self.requirements
        )

    def with_values(self, operator: str, keys: Iterable[str], labels: Mapping[str, str]) -> LabelSelector:
        """Adds the pod's own values of these labels; without a selector nothing is added."""
        if self.requirements is None:
            return self
        own = [Requirement(key=k, operator=operator, values=(labels[k],)) for k in keys if k in labels]
        return LabelSelector((*self.requirements, *own))


class AffinityTerm(NamedTuple):
    key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector

    def matches(self, pod: PodOf) -> bool:
        there = pod.namespace in self.namespaces or self.namespace_selector.matches({_NAMESPACE: pod.namespace})
        return there and self.selector.matches(pod.labels)


class SpreadConstraint(NamedTuple):
    key: str
    max_skew: int
    selector: LabelSelector
    min_domains: int
    honor_affinity: bool
    honor_taints: bool


class PodConstraints(NamedTuple):
    """The rules of a pod about the pods around it."""

    apart: tuple[AffinityTerm, ...] = ()
    near: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()


class PodOf(Protocol):
    """A pod that runs or is to be scheduled."""

    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def namespace(self) -> str: ...
    @property
    def constraints(self) -> PodConstraints: ...
    @property
    def tolerations(self) -> Sequence[Toleration]: ...


class NodeOf(Protocol):
    """A node with the pods on it."""

    def label(self, key: str) -> str | None: ...
    @property
    def taints(self) -> Sequence[Taint]: ...
    def running(self) -> Iterable[tuple[PodOf, int]]: ...


# --- reading manifests


def read_constraints(spec: Mapping[str, Any], labels: Mapping[str, str], namespace: str) -> PodConstraints:
    affinity = spec.get("affinity") or {}

    def terms(kind: str) -> tuple[AffinityTerm, ...]:
        return tuple(_term(t, labels, namespace) for t in (affinity.get(kind) or {}).get(_REQUIRED) or ())

    spread = tuple(
        SpreadConstraint(
            str(c["topologyKey"]),
            int(c.get("maxSkew", 1)),
            _selector(c.get("labelSelector")).with_values("In", c.get("matchLabelKeys") or (), labels),
            int(c.get("minDomains") or 1),
            c.get("nodeAffinityPolicy") != "Ignore",
            c.get("nodeTaintsPolicy") == "Honor",
        )
        for c in spec.get("topologySpreadConstraints") or ()
        if c.get("whenUnsatisfiable") != "ScheduleAnyway"
    )
    return PodConstraints(terms("podAntiAffinity"), terms("podAffinity"), spread)


def _term(term: Mapping[str, Any], labels: Mapping[str, str], namespace: str) -> AffinityTerm:
    selector = _selector(term.get("labelSelector")).with_values("In", term.get("matchLabelKeys") or (), labels)
    selector = selector.with_values("NotIn", term.get("mismatchLabelKeys") or (), labels)
    namespaces = frozenset(map(str, term.get("namespaces") or ()))
    if not namespaces and term.get("namespaceSelector") is None:
        namespaces = frozenset((namespace,))
    return AffinityTerm(str(term["topologyKey"]), selector, namespaces, _selector(term.get("namespaceSelector")))


def _selector(selector: Mapping[str, Any] | None) -> LabelSelector:
    if selector is None:
        return LabelSelector()
    equal = [
        Requirement(key=str(k), operator="In", values=(str(v),)) for k, v in (selector.get("matchLabels") or {}).items()
    ]
    expressions = [
        Requirement(key=str(e["key"]), operator=str(e["operator"]), values=tuple(map(str, e.get("values") or ())))
        for e in selector.get("matchExpressions") or ()
    ]
    return LabelSelector((*equal, *expressions))


# --- filtering nodes

_Pair = tuple[str, str]


class PodFilters:
    """The filters for one pod in a cluster. `selects`: whether a node passes the pod's own node affinity."""

    def __init__(self, pod: PodOf, nodes: Sequence[NodeOf], selects: Callable[[NodeOf], bool]) -> None:
        self._pod, self._constraints = pod, pod.constraints
        self._forbidden: set[_Pair] = set()  # by pods that run, or by this one
        self._supported: Counter[_Pair] = Counter()
        near = self._constraints.near
        for node in nodes:
            for other, count in node.running():
                terms = [t for t in other.constraints.apart if t.matches(pod)]
                terms += [t for t in self._constraints.apart if t.matches(other)]
                self._forbidden.update(pair for t in terms if (pair := _pair(node, t.key)) is not None)
                if near and all(t.matches(other) for t in near):
                    for term in near:
                        if (pair := _pair(node, term.key)) is not None:
                            self._supported[pair] += count
        self._spreads = [(c, self._count(c, nodes, selects)) for c in self._constraints.spread]

    def _count(
        self, constraint: SpreadConstraint, nodes: Sequence[NodeOf], selects: Callable[[NodeOf], bool]
    ) -> Counter[str]:
        """The matching pods per domain. Nodes without all the labels of the pod's constraints do not count."""
        counts: Counter[str] = Counter()
        for node in nodes:
            value = node.label(constraint.key)
            if value is None or any(node.label(c.key) is None for c in self._constraints.spread):
                continue
            if constraint.honor_affinity and not selects(node):
                continue
            if constraint.honor_taints and not tolerated(node.taints, self._pod.tolerations):
                continue
            counts[value] += sum(
                count
                for other, count in node.running()
                if constraint.selector.requirements  # an empty selector counts no pod here
                and other.namespace == self._pod.namespace
                and constraint.selector.matches(other.labels)
            )
        return counts

    def passes(self, node: NodeOf) -> bool:
        if any(node.label(key) == value for key, value in self._forbidden):
            return False
        return self._is_near(node) and all(self._is_even(node, c, counts) for c, counts in self._spreads)

    def _is_near(self, node: NodeOf) -> bool:
        near = self._constraints.near
        pairs = [_pair(node, term.key) for term in near]
        if None in pairs:
            return False
        if all(self._supported[pair] > 0 for pair in pairs if pair is not None):
            return True
        # The first pod of a series that is near itself.
        return not self._supported.total() and all(term.matches(self._pod) for term in near)

    def _is_even(self, node: NodeOf, constraint: SpreadConstraint, counts: Counter[str]) -> bool:
        value = node.label(constraint.key)
        if value is None:
            return False
        least = 0 if len(counts) < constraint.min_domains else min(counts.values(), default=0)
        itself = constraint.selector.matches(self._pod.labels)
        return counts[value] + itself - least <= constraint.max_skew


def _pair(node: NodeOf, key: str) -> _Pair | None:
    value = node.label(key)
    return None if value is None else (key, value)
