"""Keeps which pods are on their way to nodes, or there but not in what is reported to be in use of parts. The zones of their
slots are only a prediction: a kubelet gives a pod the lowest zone that fits when it arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from moorage.model.claims import Claim
from moorage.model.slots import STARTING, PodParts, pod_parts

from .families import CountedClaim, Family, counted

NodePods = dict[str, Counter[PodParts]]


def open_pods(claims: Sequence[CountedClaim]) -> NodePods:
    """Returns the pods of one object by node that no report counts, by what their slots take of zones."""
    found: NodePods = {}
    if not any(slot.aligned for claim in claims for slot in claim.slots):
        return found
    for claim in counted(claims):
        spare = {node: min(pods, claim.live.get(node, 0)) for node, pods in told(claim).items()}
        for slot in claim.slots:
            if not slot.aligned:
                continue
            covered = min(slot.count, spare.get(slot.node, 0))
            if covered:
                spare[slot.node] -= covered
            if slot.count > covered:
                parts = pod_parts(slot.aligned | ({STARTING: slot.starting} if slot.starting else {}))
                found.setdefault(slot.node, Counter())[parts] += slot.count - covered
    return found


def told(claim: CountedClaim) -> Mapping[str, int]:
    """Returns the pods of a claim by node whose use of zones is known: what is in use includes it, or it is told of each."""
    if not claim.named:
        return claim.counted
    aligned = {name for slot in claim.slots for amounts in slot.aligned.values() for name in amounts}
    pods = Counter(claim.counted)
    for node, of_pods in claim.named.items():
        pods[node] += sum(n for parts, n in of_pods if any(not aligned.isdisjoint(a) for a in parts.values()))
    return pods


class OpenPods:
    """The open pods of all claims and of decisions in flight."""

    def __init__(self) -> None:
        self._families: dict[Family, NodePods] = {}
        self._flights: dict[str, dict[Family, NodePods]] = {}
        self._totals: dict[str, NodePods] = {}
        self._changed: dict[str, set[str]] = {}

    def recount(self, family: Family, claims: Sequence[CountedClaim]) -> None:
        before, after = self._families.pop(family, {}), open_pods(claims)
        if after:
            self._families[family] = after
        if before != after:
            self._shift(family.cluster, before, -1)
            self._shift(family.cluster, after, 1)

    def hold(self, decision: str, family: Family, claim: Claim) -> None:
        """Adds what the decision would claim beyond what the object's claims have open."""
        have = self._families.get(family, {})
        more = {node: pods - have.get(node, Counter()) for node, pods in open_pods([CountedClaim(claim.slots)]).items()}
        if more:
            self._flights.setdefault(decision, {})[family] = more
            self._shift(family.cluster, more, 1)

    def give_back(self, decision: str) -> None:
        for family, pods in self._flights.pop(decision, {}).items():
            self._shift(family.cluster, pods, -1)

    def of(self, cluster: str) -> Mapping[str, Mapping[PodParts, int]]:
        """Returns the open pods of a cluster by node."""
        return self._totals.get(cluster, {})

    def on(self, cluster: str, node: str) -> Mapping[PodParts, int]:
        return self._totals.get(cluster, {}).get(node, {})

    def take_changed(self) -> Iterator[tuple[str, str]]:
        """Yields cluster and node where pods changed since the last time."""
        changed, self._changed = self._changed, {}
        for cluster, nodes in changed.items():
            for node in nodes:
                yield cluster, node

    def _shift(self, cluster: str, by_node: NodePods, sign: int) -> None:
        totals = self._totals.setdefault(cluster, {})
        for node, pods in by_node.items():
            total = totals.setdefault(node, Counter())
            for parts, count in pods.items():
                total[parts] += sign * count
                if not total[parts]:
                    del total[parts]
            if not total:
                del totals[node]
            self._changed.setdefault(cluster, set()).add(node)
        if not totals:
            del self._totals[cluster]
