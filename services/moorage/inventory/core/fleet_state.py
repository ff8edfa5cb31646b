"""What a report does to the fleet: who may speak for a cluster, what of it changed, who fell silent. No clock and no I/O:
time comes in as a number, and what is to be said comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from moorage.fleet import CORDONED, STALE, FleetWriter, NodeRow, name_problem, normalize_node
from moorage.model.reports import NodeReport, PodReport, Report, ReportReply

from .cluster_ids import ClusterIds, ClusterRecord
from .node_overlays import AHEAD, GATHERED, NodeOverlays
from .report_sessions import MAX_BYTES, ReportSession, Verdict

#: Sources with this prefix are node agents: they own zones, devices and the CPU manager of nodes. All others speak for the
#: whole cluster, and of those there is one at a time.
NODE_SOURCE = "node-"
MISSED = 3  # periods of silence until a cluster is stale
TAKEOVER = 1.5  # periods of silence until another session may take a source over
REPORTS_PER_SECOND = 500
SHORTEST_PERIOD = 2.0
AT_ONCE = 1000  # clusters in one uninterrupted piece of work: the lease is to be renewed in between
_FINISHED = frozenset({"Succeeded", "Failed"})


class FleetEvent(NamedTuple):
    """An event about a cluster: of a state (joined, edited, stale, ready, gone) or of mere figures (changed). `id` is
    given where it stands in a store already."""

    change: str
    cluster: str
    data: dict[str, Any]
    cause: str = ""
    id: str = ""
    time: str = ""


class Outcome(NamedTuple):
    reply: ReportReply
    said: list[FleetEvent]
    problems: list[str]
    gone: bool = False  # the record in KV is to say so


class ClusterReports:
    """What inventory knows of a cluster beyond its rows."""

    def __init__(self, name: str, record: ClusterRecord, now: float, period: float, overlays: NodeOverlays) -> None:
        self.name = name
        self.record = record
        self.heard = now
        self.period = period
        self.owner: ReportSession | None = None
        self.retired: list[str] = []
        self.joining = False  # its record is there; that it joined is said with its first report
        self.labels: dict[str, str] | None = None  # the agent's; None = not known to this inventory
        self.pods: dict[str, tuple[str, str]] = {}  # uid -> claim, node
        self.by_claim: dict[str, set[str]] = {}
        self.overlays = overlays  # what node agents say
        self.problems: dict[str, str] = {}


def period_for(clusters: int) -> float:
    """Seconds between reports: so that the fleet sends no more heartbeats per second than inventory likes to read."""
    return SHORTEST_PERIOD if clusters <= 1000 else max(SHORTEST_PERIOD, clusters / REPORTS_PER_SECOND)


class FleetState:
    def __init__(self, writer: FleetWriter, generation: int) -> None:
        self.writer = writer
        self.generation = generation
        self.ids = ClusterIds()
        self.clusters: dict[str, ClusterReports] = {}
        self._unheard: set[str] = set()
        self.present = 0  # clusters that are not gone

    @property
    def period(self) -> float:
        return period_for(self.present)

    # -- clusters -----------------------------------------------------------------------------------------------------

    def begin(self, records: dict[str, ClusterRecord], now: float) -> Iterator[None]:
        """What stands in KV, over rows that may have been inherited: rows of nobody go, and who has none is stale. Yields
        from time to time, for others to run."""
        fleet = self.writer.fleet
        for name, record in records.items():
            self.ids.learn(name, record)
            if not record.gone:
                self.present += 1
                self._unheard.add(name)
        right = {record.id: name for name, record in records.items() if not record.gone}
        for cid in range(fleet.size):
            if fleet.known[cid] and right.get(cid) != fleet.names[cid]:
                self.writer.drop(cid)
        for count, (name, record) in enumerate(records.items(), 1):
            self._know(name, record, now)
            if not record.gone:
                inherited = record.id < fleet.size and bool(fleet.known[record.id])
                flags = fleet.cluster_flags(record.id) if inherited else -1
                state = (flags & STALE if inherited else STALE) | _cordon(record)
                if state != flags:
                    labels = None if inherited else dict(record.labels)
                    self.writer.put(record.id, name, labels=labels, state=state)
            if count % AT_ONCE == 0:
                yield

    def record_for(self, cluster: str, labels: dict[str, str]) -> ClusterRecord:
        """A number for a new cluster. It is to be durable before `register`."""
        region = labels.get("region") or labels.get("topology.kubernetes.io/region") or ""
        return self.ids.next(cluster, region)

    def numbered_anew(self, cluster: str, record: ClusterRecord) -> ClusterRecord:
        """The record with a number that no other cluster has."""
        fresh = self.ids.next(cluster, record.region)
        return msgspec.structs.replace(record, id=fresh.id, block=fresh.block)

    def register(self, cluster: str, record: ClusterRecord, now: float) -> None:
        assert not self.ids.others(cluster, record.id)
        self.ids.learn(cluster, record)
        known = self._know(cluster, record, now)
        known.joining = not record.gone
        self.present += not record.gone

    def _know(self, name: str, record: ClusterRecord, now: float) -> ClusterReports:
        overlays = NodeOverlays(lambda node: self.writer.row(record.id, node))
        known = self.clusters[name] = ClusterReports(name, record, now, self.period, overlays)
        return known

    def edit(self, cluster: str, record: ClusterRecord) -> list[FleetEvent]:
        """Labels, cordon or presence were changed, and KV has it."""
        known = self.clusters[cluster]
        before, known.record = known.record, record
        self.present += before.gone - record.gone
        self._relabel(known, set(before.labels) - set(record.labels))
        if not record.told or record.told == before.told:
            return []
        change, ident, cause = record.told
        known.joining = change == "joined"
        return [] if known.joining else [FleetEvent(change, cluster, told_of(record), cause, ident)]

    def _relabel(self, known: ClusterReports, removed: set[str]) -> None:
        record, fleet = known.record, self.writer.fleet
        cid = record.id
        if not (cid < fleet.size and fleet.known[cid]):
            return
        labels = dict(fleet.cluster_labels(cid)) if known.labels is None else dict(known.labels)
        for name in removed if known.labels is None else ():
            labels.pop(name, None)
        state = fleet.cluster_flags(cid) & ~CORDONED | _cordon(record)
        self.writer.put(cid, known.name, labels=labels | record.labels, state=state)

    def nodes(self, cluster: str) -> int | None:
        """How many it has; None: it has not reported, to nobody whose rows these are."""
        fleet, cid = self.writer.fleet, self.clusters[cluster].record.id
        heard = cid < fleet.size and bool(fleet.known[cid]) and fleet.as_of(cid) > 0
        return len(fleet.nodes_of(cid)) if heard else None

    def silent(self, cluster: str) -> bool:
        return bool(self.writer.fleet.cluster_flags(self.clusters[cluster].record.id) & STALE)

    def unheard(self) -> bool:
        """Some cluster of the fleet has not reported to this inventory yet."""
        return bool(self._unheard)

    def tick(self, now: float) -> list[FleetEvent]:
        """Clusters that missed three periods are stale; if they are many, the rest at the next call."""
        said = []
        fleet = self.writer.fleet
        for name, cluster in self.clusters.items():
            if cluster.record.gone or now - cluster.heard <= MISSED * cluster.period:
                continue
            cid = cluster.record.id
            flags = fleet.cluster_flags(cid)
            if not flags & STALE and cid < fleet.size and fleet.known[cid]:
                self.writer.set_state(cid, flags | STALE)
                said.append(FleetEvent("stale", name, {"silentFor": round(now - cluster.heard, 1)}))
                if len(said) >= AT_ONCE:
                    break
        return said

    # -- reports ------------------------------------------------------------------------------------------------------

    def report(self, cluster: str, source: str, report: Report, now: float, size: int = 0) -> Outcome:
        """The cluster must be registered. `size`: of the message."""
        known = self.clusters[cluster]
        node_agent = source.startswith(NODE_SOURCE)
        speaker = known.overlays.sources.get(source) if node_agent else known.owner
        if speaker is None or speaker.session != report.session or speaker.name != source:
            refused = self._refusal(known, speaker, report, now)
            if refused:
                return self._answer(refused=refused)
            if report.kind != "full":
                return self._answer(resync=True)
            if node_agent and speaker is None and (refused := self._crowded(known, now)):
                return self._answer(refused=refused)
            if speaker is not None:
                known.retired = [*known.retired[-15:], speaker.session]
            speaker = ReportSession(source, report.session, now, self.period)
            if node_agent:
                known.overlays.sources[source] = speaker
            else:
                known.owner = speaker
        most = MAX_BYTES
        if node_agent and report.part[1] > 1:
            most = GATHERED - known.overlays.gathered + speaker.gathered
        verdict, whole = speaker.accept(report, size, most)
        if verdict is Verdict.RESYNC:
            return self._answer(resync=True)
        if verdict is Verdict.LARGE:
            return self._answer(refused=f"a report of more than {most} bytes is not kept")
        if verdict is Verdict.OLD:
            return self._answer()
        speaker.heard, speaker.period = now, self.period
        if not node_agent:
            known.heard, known.period = now, self.period
        if whole is None:
            return self._answer()
        if node_agent:
            return self._node_fields(known, source, whole)
        if whole.leaving:
            return self._leave(known, whole)
        return self._rows(known, whole)

    def _answer(self, *, resync: bool = False, refused: str = "") -> Outcome:
        reply = ReportReply(
            period_ms=round(self.period * 1000), resync=resync, refused=refused, generation=self.generation
        )
        return Outcome(reply, [], [])

    def _refusal(self, cluster: ClusterReports, speaker: ReportSession | None, report: Report, now: float) -> str:
        if report.session in cluster.retired:
            return "this session was replaced by another one"
        if speaker is None or now - speaker.heard > TAKEOVER * speaker.period:
            return ""
        # Of one process all sessions are named after its first: who takes over from it takes over from all of them.
        if report.succeeds and f"{speaker.session}.".startswith(f"{report.succeeds}."):
            return ""
        return f"another session reports for {cluster.name}; it was heard {now - speaker.heard:.1f} s ago"

    def _crowded(self, cluster: ClusterReports, now: float) -> str:
        """Why there is no room for one more node agent. One that fell silent makes room."""
        overlays, most = cluster.overlays, max(AHEAD, self.nodes(cluster.name) or 0)
        if len(overlays.sources) < most:
            return ""
        name, oldest = min(overlays.sources.items(), key=lambda item: item[1].heard)
        if now - oldest.heard <= MISSED * oldest.period:
            return f"{most} node agents report for {cluster.name} already"
        if rows := overlays.dismiss(name):
            self.writer.put(cluster.record.id, cluster.name, rows)
        return ""

    def _rows(self, cluster: ClusterReports, report: Report) -> Outcome:
        full = report.kind == "full"
        outcome = self._answer()
        fleet, cid = self.writer.fleet, cluster.record.id
        new = not (cid < fleet.size and fleet.known[cid])
        if new:
            cluster.labels = {}
        stale = not new and bool(fleet.cluster_flags(cid) & STALE)
        if full:
            cluster.problems = {}
        rows = {made.name: made for made in self._normalised(cluster, report.nodes, outcome.problems)}
        if report.labels is not None:
            cluster.labels = report.labels
        labels = None if cluster.labels is None else cluster.labels | cluster.record.labels
        gone = [node for node in report.nodes_gone if node not in rows]
        if full:
            gone = [] if new or not cluster.overlays else [n for n in fleet.nodes_of(cid) if n not in rows]
        cluster.overlays.drop(gone)
        for node in gone:
            cluster.problems.pop(node, None)
        changed = self.writer.put(
            cid,
            cluster.name,
            list(rows.values()),
            whole=full,
            gone=() if full else gone,
            labels=labels,
            state=_cordon(cluster.record),
            as_of=report.as_of,
            claims=self._claims(cluster, report, full),
        )
        self._unheard.discard(cluster.name)
        if new or cluster.joining:
            told = cluster.record.told
            ident = told[1] if cluster.joining and told and told[0] == "joined" else ""
            outcome.said.append(FleetEvent("joined", cluster.name, {"nodes": len(rows)}, report.id, ident))
            cluster.joining = False
        elif stale:
            outcome.said.append(FleetEvent("ready", cluster.name, {"nodes": len(fleet.nodes_of(cid))}, report.id))
        elif changed:
            outcome.said.append(FleetEvent("changed", cluster.name, {"nodes": len(rows)}, report.id))
        return outcome

    def _normalised(self, cluster: ClusterReports, nodes: list[NodeReport], problems: list[str]) -> Iterator[NodeRow]:
        for node in nodes:
            problem = name_problem(node.name)
            if problem:
                problems.append(problem)
                continue
            made, problem = normalize_node(node)
            # A node that stays as wrong as it was is not news.
            if problem and cluster.problems.get(node.name) != problem:
                problems.append(problem)
                cluster.problems[node.name] = problem
            elif not problem:
                cluster.problems.pop(node.name, None)
            yield cluster.overlays.over(made)

    def _claims(self, cluster: ClusterReports, report: Report, full: bool) -> dict[str, dict[str, int]]:
        """Claims whose live pods changed, with all their pods."""
        touched: set[str] = set()
        if full:
            cluster.pods, cluster.by_claim = {}, {}
        for uid in report.pods_gone:
            touched.update(_forget(cluster, uid))
        for pod in report.pods:
            touched.update(_forget(cluster, pod.uid))
            if _holds(pod):
                cluster.pods[pod.uid] = (pod.claim, pod.node)
                cluster.by_claim.setdefault(pod.claim, set()).add(pod.uid)
                touched.add(pod.claim)
        counted: dict[str, dict[str, int]] = {}
        for claim in touched:
            nodes = counted[claim] = {}
            for uid in cluster.by_claim.get(claim, ()):
                node = cluster.pods[uid][1]
                nodes[node] = nodes.get(node, 0) + 1
        return counted

    def _node_fields(self, cluster: ClusterReports, source: str, report: Report) -> Outcome:
        """What node agents own of a row. A node that the cluster agent has not named yet gets it when it does."""
        rows = cluster.overlays.take(source, report)
        if rows is None:
            return self._answer(refused=f"too many nodes that nobody else has named yet in {cluster.name}")
        outcome = self._answer()
        if rows and self.writer.put(cluster.record.id, cluster.name, rows):
            outcome.said.append(FleetEvent("changed", cluster.name, {"nodes": len(rows)}, report.id))
        return outcome

    def _leave(self, cluster: ClusterReports, report: Report) -> Outcome:
        cluster.retired = [*cluster.retired[-15:], report.session]  # what it said before must not bring it back
        self.forget(cluster)
        return self._answer()._replace(gone=True)

    def forget(self, cluster: ClusterReports) -> None:
        """Its rows go. Whoever speaks for it may bring it back with a full report."""
        cluster.owner, cluster.labels = None, None
        cluster.pods, cluster.by_claim, cluster.problems = {}, {}, {}
        cluster.overlays.clear()
        self.writer.drop(cluster.record.id)
        self._unheard.discard(cluster.name)


def told_of(record: ClusterRecord) -> dict[str, Any]:
    """What the event of a record's change says."""
    return {} if record.gone else {"labels": record.labels, "cordoned": record.cordoned}


def _cordon(record: ClusterRecord) -> int:
    return CORDONED if record.cordoned else 0


def _holds(pod: PodReport) -> bool:
    """Carries a claim and has not ended: what has ended holds nothing any more."""
    return bool(pod.claim) and pod.phase not in _FINISHED


def _forget(cluster: ClusterReports, uid: str) -> list[str]:
    found = cluster.pods.pop(uid, None)
    if found is None:
        return []
    uids = cluster.by_claim[found[0]]
    uids.discard(uid)
    if not uids:
        del cluster.by_claim[found[0]]
    return [found[0]]
