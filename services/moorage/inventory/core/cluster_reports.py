"""Keeps what is reported of a cluster beside the rows of its nodes: its sessions, its pods with a claim, and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from moorage.fleet import NamedPods, NodeRow
from moorage.model.reports import PodReport, Report
from moorage.model.slots import PartAmounts, PodParts, pod_parts

from .cluster_ids import ClusterRecord
from .node_overlays import NodeOverlays, part_amounts
from .refusals import Refusals
from .report_sessions import ReportSession

PodCounts = dict[str, dict[str, int]]  # claim → node → pods
_FINISHED = frozenset({"Succeeded", "Failed"})


class CountedPods(NamedTuple):
    """Pods by claim and node: all that live, those of them that are being deleted, those that what is in use of zones includes,
    and what those take of parts of which that is told."""

    live: PodCounts
    ending: PodCounts
    counted: PodCounts
    named: NamedPods


def _count(pods: PodCounts, claim: str, node: str) -> None:
    nodes = pods.setdefault(claim, {})
    nodes[node] = nodes.get(node, 0) + 1


class ClusterReports:
    """The state of a cluster beside its rows."""

    def __init__(
        self, name: str, record: ClusterRecord, now: float, period: float, overlays: NodeOverlays, refusals: Refusals
    ) -> None:
        self.name = name
        self.record = record
        self.last_report_at = now
        self.period = period
        self.owner: ReportSession | None = None
        self.retired: list[str] = []
        self.joining = False  # it has a record; its first report publishes that it joined
        self.labels: dict[str, str] | None = None  # reported by the agent; None: this inventory has had no report
        self.pods: dict[str, tuple[str, str, bool]] = {}  # uid -> claim, node, whether it is being deleted
        self.by_claim: dict[str, set[str]] = {}
        self.in_parts: dict[str, frozenset[str]] = {}  # node → uids of pods that what is in use of its zones includes
        self.pod_parts: dict[str, PartAmounts] = {}  # uid → what the cluster's agent says that a pod takes of parts
        self.requests: dict[str, dict[str, str]] = {}  # of pods that are bound and do not run yet
        self.refusals = refusals
        self.doubtful: set[str] = set()  # uids of pods that were bound to a node after it refused others of their claim
        self.overlays = overlays  # fields that node agents report
        self.problems: dict[str, str] = {}

    def live_pods(self, claim: str, node: str) -> int:
        """Counts the unfinished pods of a claim on a node."""
        return sum(self.pods[uid][1] == node for uid in self.by_claim.get(claim, ()))

    def awaits_refusal(self, uid: str) -> bool:
        """Returns whether the pod's node refused others of its claim and has not changed since."""
        claim, node, _ = self.pods[uid]
        return self.refusals.has(claim, node)

    def follow_pods(self, report: Report, full: bool) -> tuple[set[str], set[str]]:
        """Returns the claims whose live pods changed, and the pods that have just been bound and do not run yet."""
        touched: set[str] = set()
        bound: set[str] = set()
        before = {pod.uid: found[1] for pod in report.pods if (found := self.pods.get(pod.uid)) is not None}
        if full:
            self.pods, self.by_claim, self.in_parts = {}, {}, {}
            self.pod_parts, self.requests = {}, {}
        for uid in report.pods_gone:
            touched.update(self._forget(uid))
        for pod in report.pods:
            touched.update(self._forget(pod.uid))
            if pod.phase != "Pending":
                self.doubtful.discard(pod.uid)
            elif pod.node and before.get(pod.uid) != pod.node:
                bound.add(pod.uid)
            if _holds(pod):
                self.pods[pod.uid] = (pod.claim, pod.node, pod.deleting)
                self.by_claim.setdefault(pod.claim, set()).add(pod.uid)
                touched.add(pod.claim)
                if pod.parts:
                    self.pod_parts[pod.uid] = part_amounts(pod.parts)[0]
                if pod.phase == "Pending" and pod.node:
                    self.requests[pod.uid] = pod.requests
        for node in report.nodes_gone:
            self.in_parts.pop(node, None)
        for reported in report.nodes:
            uids, counted = frozenset(reported.counted), self.in_parts.get(reported.name, frozenset())
            if uids != counted:
                touched.update(self.pods[uid][0] for uid in uids ^ counted if uid in self.pods)
                self.in_parts[reported.name] = uids
        return touched, bound

    def learn_admission(self, uid: str, row: NodeRow | None) -> set[str]:
        """Takes in what a node's agent decided about a pod. Returns its claim if the refusals of that changed."""
        claim, node, _ = self.pods[uid]
        admission = self.overlays.admission(node, uid)
        if admission is None:
            return set()
        changed = self.refusals.admitted(
            admission, claim, node, self.requests.get(uid), {node: row} if row is not None else {}, self.live_pods
        )
        if admission.outcome == "admitted":
            self.doubtful.discard(uid)
        elif uid in self.requests:  # it does not run
            self.doubtful.add(uid)
        return {claim} if changed else set()

    def claimed_pods(self, claims: Iterable[str]) -> CountedPods:
        """Counts the pods of these claims by node. Pods that their node will refuse, as others before, cover no slot."""
        found = CountedPods({}, {}, {}, {})
        overlays = self.overlays
        for claim in claims:
            nodes = found.live[claim] = {}
            of_node: dict[str, list[tuple[bool, PartAmounts]]] = {}
            for uid in self.by_claim.get(claim, ()):
                if uid in self.doubtful:
                    continue
                _, node, deleting = self.pods[uid]
                nodes[node] = nodes.get(node, 0) + 1
                if deleting and node:
                    _count(found.ending, claim, node)
                own = overlays.parts_of(node, uid)
                of_zones = overlays.counted(node)
                if not own and uid in (self.in_parts.get(node, ()) if of_zones is None else of_zones):
                    _count(found.counted, claim, node)
                if parts := own | self.pod_parts.get(uid, {}):
                    of_node.setdefault(node, []).append((deleting, parts))
            for node, pods in of_node.items():
                found.named.setdefault(claim, {})[node] = _runs(pods)
        return found

    def _forget(self, uid: str) -> list[str]:
        found = self.pods.pop(uid, None)
        self.pod_parts.pop(uid, None)
        self.requests.pop(uid, None)
        if found is None:
            return []
        uids = self.by_claim[found[0]]
        uids.discard(uid)
        if not uids:
            del self.by_claim[found[0]]
        return [found[0]]


def _holds(pod: PodReport) -> bool:
    """Returns whether a pod holds resources of a claim: it carries one and has not ended."""
    return bool(pod.claim) and pod.phase not in _FINISHED


def _runs(pods: list[tuple[bool, PartAmounts]]) -> list[tuple[PartAmounts, int]]:
    """Returns what pods take of parts with how many do so; those that are being deleted come last."""
    runs: dict[tuple[bool, PodParts], tuple[PartAmounts, int]] = {}
    for deleting, parts in pods:
        key = deleting, pod_parts(parts)
        runs[key] = parts, runs.get(key, (parts, 0))[1] + 1
    return [runs[key] for key in sorted(runs)]
