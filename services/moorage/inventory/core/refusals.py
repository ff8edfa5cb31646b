"""Remembers which nodes refused pods of claims at their admission, until the node changes. The failed pods may be gone before:
controllers replace them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from moorage.fleet import NodeRow
from moorage.model.reports import AdmissionReport, PodReport, Report
from moorage.model.shapes import PODS
from moorage.parsing import parse_amount
from moorage.podspec import is_refusal

#: Refusals that are remembered of a cluster, and bytes of what the kubelet said.
MOST, LONGEST = 4096, 512

#: Counts the live pods of a claim on a node.
LivePods = Callable[[str, str], int]
_Place = tuple[str, str]  # claim, node


@dataclass(slots=True)
class _Refusal:
    """`row` is the node as first reported after it refused, `requested` what others than the claim's pods took of it."""

    words: str = ""
    pod: Mapping[str, int] | None = None  # what a pod requests; None: not known
    row: NodeRow | None = None
    requested: Mapping[str, int] | None = None


def is_refused(pod: PodReport) -> bool:
    """Returns whether the pod's node did not admit it."""
    return bool(pod.claim and pod.node) and is_refusal(pod.phase, pod.reason)


class Refusals:
    """The refusals of one cluster. `counts`: pods that were refused anywhere, by the kubelet's reason."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.fresh: list[PodReport] = []  # the pods that the last report told as refused for the first time
        self._failed: set[str] = set()
        self._not_admitted: dict[str, str] = {}  # uid → the words of its node's agent
        self._by_place: dict[_Place, _Refusal] = {}

    def inherit(self, refused: Mapping[str, Iterable[str]]) -> None:
        """Takes over what an inventory before learned."""
        for claim, nodes in refused.items():
            for node in nodes:
                self._by_place.setdefault((claim, node), _Refusal())

    def learn(self, report: Report, rows: Mapping[str, NodeRow], live: LivePods) -> set[str]:
        """Takes in a report with its rows. Returns the claims whose refusals changed."""
        full = report.kind == "full"
        changed: set[str] = set()
        for claim, node in list(self._by_place):
            is_gone = (full and node not in rows) or node in report.nodes_gone
            if is_gone or self._is_over((claim, node), rows, live):
                del self._by_place[claim, node]
                changed.add(claim)
        refused = {pod.uid: pod for pod in report.pods if is_refused(pod)}
        self._failed = self._failed & refused.keys() if full else self._failed.difference(report.pods_gone)
        there = {pod.uid for pod in report.pods} if full else self._not_admitted.keys() - set(report.pods_gone)
        self._not_admitted = {uid: words for uid, words in self._not_admitted.items() if uid in there}
        self.fresh = [pod for uid, pod in refused.items() if uid not in self._failed]
        for pod in self.fresh:
            self._failed.add(pod.uid)
            words = _words(pod.reason, pod.message)
            self._refuse((pod.claim, pod.node), pod.reason, words, pod.requests, rows, live)
            changed.add(pod.claim)
        while len(self._by_place) > MOST:
            place = next(iter(self._by_place))
            del self._by_place[place]
            changed.add(place[0])
        return changed

    def admitted(
        self,
        admission: AdmissionReport,
        claim: str,
        node: str,
        requests: Mapping[str, str] | None,
        rows: Mapping[str, NodeRow],
        live: LivePods,
    ) -> bool:
        """Takes in what a node's agent decided about a pod of a claim. `requests`: of a pod that does not run yet. Returns whether
        the refusals of the claim changed."""
        uid, words = admission.pod, _words(admission.code or "Refused", admission.message)
        if admission.outcome == "admitted":
            return self._not_admitted.pop(uid, None) is not None and self._by_place.pop((claim, node), None) is not None
        if requests is None or self._not_admitted.get(uid) == words:
            return False
        self._not_admitted[uid] = words
        self._refuse((claim, node), admission.code or "Refused", words, requests, rows, live)
        return True

    def _refuse(
        self,
        place: _Place,
        reason: str,
        words: str,
        requests: Mapping[str, str],
        rows: Mapping[str, NodeRow],
        live: LivePods,
    ) -> None:
        self._counts[reason] += 1
        refusal = self._by_place.setdefault(place, _Refusal())
        refusal.words, refusal.pod = words, _requests(requests)
        self._is_over(place, rows, live)

    def _is_over(self, place: _Place, rows: Mapping[str, NodeRow], live: LivePods) -> bool:
        """Returns whether the node changed since it refused. Pods of the claim itself come and go there: they are refused, and
        made again."""
        refusal, row = self._by_place[place], rows.get(place[1])
        if row is None:
            return False
        own = live(*place) if refusal.pod is not None else 0
        requested = {n: amount - own * (refusal.pod or {}).get(n, 0) for n, amount in row.requested.items()}
        before = refusal.row
        if before is None or refusal.requested is None:
            refusal.row, refusal.requested = row, requested
            return False
        if (row.flags, row.labels, row.taints, row.allocatable) != (
            before.flags,
            before.labels,
            before.taints,
            before.allocatable,
        ):
            return True
        if row.inside != before.inside or any(now < was for now, was in zip(row.in_use, before.in_use, strict=False)):
            return True
        return any(requested.get(name, 0) < amount for name, amount in refusal.requested.items())

    def has(self, claim: str, node: str) -> bool:
        """Returns whether the node refused pods of the claim and has not changed since."""
        return (claim, node) in self._by_place

    def nodes(self, claim: str) -> list[str]:
        """Returns the nodes that refused pods of the claim and have not changed since."""
        return sorted(node for found, node in self._by_place if found == claim)

    def words(self, claim: str) -> str:
        """Returns what the last of these nodes said."""
        return next((r.words for (found, _), r in reversed(self._by_place.items()) if found == claim), "")


def _words(reason: str, message: str) -> str:
    return f"{reason}: {message}"[:LONGEST] if message else reason


def _requests(requests: Mapping[str, str]) -> Mapping[str, int] | None:
    try:
        return {PODS: 1} | {name: parse_amount(name, text, True) for name, text in requests.items()}
    except ValueError:
        return None
