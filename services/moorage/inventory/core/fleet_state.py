"""Applies reports to the fleet: which session may report for a cluster, what changed, which clusters are silent.

There is no clock and no I/O: the time is an argument, and the events to publish are returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from moorage.classes import BUILT_IN_ONLY, DeviceSources
from moorage.fleet import (
    CORDONED,
    STALE,
    FleetWriter,
    NodeRow,
    name_problem,
    normalize_node,
    with_additions,
    with_devices,
)
from moorage.model.reports import NodeReport, Report, ReportReply
from moorage.parts.inside import AddedNames, Inside
from moorage.parts.inside import decode as decode_inside
from moorage.parts.layout import common_layout

from .cluster_ids import ClusterIds, ClusterRecord
from .cluster_reports import ClusterReports
from .node_overlays import MAX_BUFFERED_BYTES, MAX_UNNAMED, NODE_SOURCE, NodeOverlays, node_of
from .part_changes import InsideChanges, part_changes
from .refusals import Refusals
from .report_sessions import MAX_BYTES, ReportSession, Verdict

MISSED = 3  # periods of silence until a cluster is stale
TAKEOVER = 1.5  # periods of silence until another session may take a source over
REPORTS_PER_SECOND = 500
SHORTEST_PERIOD = 2.0
BATCH = 1000  # clusters handled without yielding: the lease must be renewed in between


class FleetEvent(NamedTuple):
    """An event of a cluster: a state (joined, edited, stale, ready, gone), new figures (changed), another inside of nodes
    (parts), other devices (devices) or a pod that its node refused (refused). `id` is set if a store
    has recorded the event already."""

    change: str
    cluster: str
    data: dict[str, Any]
    cause: str = ""
    id: str = ""
    time: str = ""


class ReportOutcome(NamedTuple):
    reply: ReportReply
    events: list[FleetEvent]
    problems: list[str]
    gone: bool = False  # the KV record must be marked


def period_for(clusters: int) -> float:
    """Returns the seconds between reports, so that the fleet sends at most `REPORTS_PER_SECOND`."""
    return SHORTEST_PERIOD if clusters <= 1000 else max(SHORTEST_PERIOD, clusters / REPORTS_PER_SECOND)


class FleetState:
    """The clusters of the fleet, and the writer of their rows."""

    def __init__(self, writer: FleetWriter, generation: int) -> None:
        self.writer = writer
        self.generation = generation
        self.ids = ClusterIds()
        self.clusters: dict[str, ClusterReports] = {}
        self._awaited: set[str] = set()
        self.refused_pods: Counter[str] = Counter()  # by the kubelet's reason
        self.present = 0  # clusters that are not gone
        self._sources = BUILT_IN_ONLY
        # By cluster, node and path in it: what clients of the Placement interface added.
        self._additions: dict[str, dict[str, dict[str, AddedNames]]] = {}

    @property
    def period(self) -> float:
        return period_for(self.present)

    # -- clusters -----------------------------------------------------------------------------------------------------

    def begin(self, records: dict[str, ClusterRecord], now: float) -> Iterator[None]:
        """Takes over the KV records, and the rows of an inventory before.

        Rows without a record are dropped, and a cluster without rows is stale. Yields now and then, so that others can run.
        """
        fleet = self.writer.fleet
        for name, record in records.items():
            self.ids.learn(name, record)
            if not record.gone:
                self.present += 1
                self._awaited.add(name)
        cluster_of = {record.id: name for name, record in records.items() if not record.gone}
        for cid in range(fleet.size):
            if fleet.known[cid] and cluster_of.get(cid) != fleet.names[cid]:
                self.writer.drop(cid)
        for count, (name, record) in enumerate(records.items(), 1):
            self._add(name, record, now)
            if not record.gone:
                inherited = record.id < fleet.size and bool(fleet.known[record.id])
                flags = fleet.cluster_flags(record.id) if inherited else -1
                state = (flags & STALE if inherited else STALE) | _cordon(record)
                if state != flags:
                    labels = None if inherited else dict(record.labels)
                    self.writer.put(record.id, name, labels=labels, state=state)
            if count % BATCH == 0:
                yield

    def new_record(self, cluster: str, labels: dict[str, str]) -> ClusterRecord:
        """Returns a record with an id for a new cluster. It must be stored before `register` is called."""
        region = labels.get("region") or labels.get("topology.kubernetes.io/region") or ""
        return self.ids.next(cluster, region)

    def with_new_id(self, cluster: str, record: ClusterRecord) -> ClusterRecord:
        """Returns the record with an id that no other cluster has."""
        fresh = self.ids.next(cluster, record.region)
        return msgspec.structs.replace(record, id=fresh.id, block=fresh.block)

    def register(self, cluster: str, record: ClusterRecord, now: float) -> None:
        assert not self.ids.belongs_to_other(cluster, record.id)
        self.ids.learn(cluster, record)
        known = self._add(cluster, record, now)
        known.joining = not record.gone
        self.present += not record.gone

    def _add(self, name: str, record: ClusterRecord, now: float) -> ClusterReports:
        overlays = NodeOverlays(lambda node: self.writer.row(record.id, node))
        known = self.clusters[name] = ClusterReports(
            name, record, now, self.period, overlays, Refusals(self.refused_pods)
        )
        return known

    def edit(self, cluster: str, record: ClusterRecord) -> list[FleetEvent]:
        """Takes over a stored change of labels, cordon or presence, and returns its event."""
        known = self.clusters[cluster]
        before, known.record = known.record, record
        self.present += before.gone - record.gone
        self._relabel(known, set(before.labels) - set(record.labels))
        if not record.told or record.told == before.told:
            return []
        change, ident, cause = record.told
        known.joining = change == "joined"
        return [] if known.joining else [FleetEvent(change, cluster, event_data(record), cause, ident)]

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

    def node_count(self, cluster: str) -> int | None:
        """Returns the number of nodes; None if no report is in the rows, neither to this inventory nor to one before."""
        fleet, cid = self.writer.fleet, self.clusters[cluster].record.id
        reported = cid < fleet.size and bool(fleet.known[cid]) and fleet.as_of(cid) > 0
        return len(fleet.nodes_of(cid)) if reported else None

    def is_stale(self, cluster: str) -> bool:
        return bool(self.writer.fleet.cluster_flags(self.clusters[cluster].record.id) & STALE)

    def awaits_reports(self) -> bool:
        """Returns whether some cluster has not reported to this inventory yet."""
        return bool(self._awaited)

    def tick(self, now: float) -> list[FleetEvent]:
        """Marks clusters stale that missed three periods, at most `BATCH` at once, and returns their events."""
        events = []
        fleet = self.writer.fleet
        for name, cluster in self.clusters.items():
            if cluster.record.gone or now - cluster.last_report_at <= MISSED * cluster.period:
                continue
            cid = cluster.record.id
            flags = fleet.cluster_flags(cid)
            if not flags & STALE and cid < fleet.size and fleet.known[cid]:
                self.writer.set_state(cid, flags | STALE)
                events.append(FleetEvent("stale", name, {"silentFor": round(now - cluster.last_report_at, 1)}))
                if len(events) >= BATCH:
                    break
        return events

    # -- additions ----------------------------------------------------------------------------------------------------

    def add_names(self, name: str, names: AddedNames) -> list[FleetEvent]:
        """Gives a node or part, CLUSTER/ID, these traits and aggregates besides those that are reported, instead of those that
        it was given before. Returns the events."""
        provider, cluster, ident = name.split("/", 2)
        cluster, node = f"{provider}/{cluster}", ident.partition("/")[0]
        paths = self._additions.setdefault(cluster, {}).setdefault(node, {})
        paths.pop(ident[len(node) :], None)
        if names.traits or names.aggregates:
            paths[ident[len(node) :]] = names
        known, fleet = self.clusters.get(cluster), self.writer.fleet
        if known is None or not (known.record.id < fleet.size and fleet.known[known.record.id]):
            return []
        before = self.writer.row(known.record.id, node)
        if before is None or (row := with_additions(before, paths)) is before:
            return []
        inside = part_changes(fleet, known.record.id, [row], ())
        self.writer.put(known.record.id, cluster, [row])
        return _inside_events(cluster, inside)

    def set_sources(self, sources: DeviceSources) -> None:
        """Maps devices by other sources from now on. All clusters report in full for that."""
        self._sources = sources
        for cluster in self.clusters.values():
            for session in (cluster.owner, *cluster.overlays.sources.values()):
                if session is not None:
                    session.mark_incomplete()

    def _completed(self, cluster: ClusterReports, reported: Iterable[NodeRow]) -> list[NodeRow]:
        """Returns the rows with their devices, and with what clients of the Placement interface added."""
        rows = [with_devices(row, self._sources) for row in reported]
        added = self._additions.get(cluster.name)
        return [with_additions(row, added.get(row.name, {})) for row in rows] if added else rows

    # -- reports ------------------------------------------------------------------------------------------------------

    def report(self, cluster: str, source: str, report: Report, now: float, size: int = 0) -> ReportOutcome:
        """Applies a report of a registered cluster. `size` is the message's bytes."""
        known = self.clusters[cluster]
        node_agent = source.startswith(NODE_SOURCE)
        session = known.overlays.sources.get(source) if node_agent else known.owner
        if session is None or session.session != report.session or session.name != source:
            refused = self._refusal(known, session, report, now)
            if refused:
                return self._answer(refused=refused)
            if report.kind != "full":
                return self._answer(resync=True)
            if node_agent and session is None and (refused := self._no_room(known, source, now)):
                return self._answer(refused=refused)
            if session is not None:
                known.retired = [*known.retired[-15:], session.session]
            session = ReportSession(source, report.session, now, self.period)
            if node_agent:
                known.overlays.sources[source] = session
            else:
                known.owner = session
        max_bytes = MAX_BYTES
        if node_agent and report.part[1] > 1:
            max_bytes = MAX_BUFFERED_BYTES - known.overlays.buffered_bytes + session.buffered_bytes
        verdict, complete = session.accept(report, size, max_bytes)
        if verdict is Verdict.RESYNC:
            return self._answer(resync=True)
        if verdict is Verdict.TOO_LARGE:
            return self._answer(refused=f"a report of more than {max_bytes} bytes is not kept")
        if verdict is Verdict.OLD:
            return self._answer()
        session.last_report_at, session.period = now, self.period
        if not node_agent:
            known.last_report_at, known.period = now, self.period
        if complete is None:
            return self._answer()
        if node_agent:
            return self._apply_node_fields(known, source, complete)
        if complete.leaving:
            return self._leave(known, complete)
        return self._apply_rows(known, complete)

    def _answer(self, *, resync: bool = False, refused: str = "") -> ReportOutcome:
        reply = ReportReply(
            period_ms=round(self.period * 1000), resync=resync, refused=refused, generation=self.generation
        )
        return ReportOutcome(reply, [], [])

    def _refusal(self, cluster: ClusterReports, session: ReportSession | None, report: Report, now: float) -> str:
        if report.session in cluster.retired:
            return "this session was replaced by another one"
        if session is None or now - session.last_report_at > TAKEOVER * session.period:
            return ""
        # All sessions of one process are named after its first one: a successor of one is a successor of all of them.
        if report.succeeds and f"{session.session}.".startswith(f"{report.succeeds}."):
            return ""
        return (
            f"another session reports for {cluster.name}; its last report is {now - session.last_report_at:.1f} s ago"
        )

    def _no_room(self, cluster: ClusterReports, source: str, now: float) -> str:
        """Returns why one more node agent is refused, or "". A silent one of an unknown node is removed to make room."""
        fleet, cid, sources = self.writer.fleet, cluster.record.id, cluster.overlays.sources

        def is_named(node_agent: str) -> bool:
            return cid < fleet.size and fleet.row_of(cid, node_of(node_agent)) is not None

        if is_named(source):
            return ""
        unnamed = {name: found for name, found in sources.items() if not is_named(name)}
        if len(unnamed) < MAX_UNNAMED:
            return ""
        name, oldest = min(unnamed.items(), key=lambda item: item[1].last_report_at)
        if now - oldest.last_report_at <= MISSED * oldest.period:
            return f"the agents of {MAX_UNNAMED} nodes that nobody else has named report for {cluster.name} already"
        cluster.overlays.remove_source(name)
        return ""

    def _apply_rows(self, cluster: ClusterReports, report: Report) -> ReportOutcome:
        full = report.kind == "full"
        outcome = self._answer()
        fleet, cid = self.writer.fleet, cluster.record.id
        new = not (cid < fleet.size and fleet.known[cid])
        if new:
            cluster.labels = {}
        stale = not new and bool(fleet.cluster_flags(cid) & STALE)
        if full:
            cluster.problems = {}
        normalized, problems = self._normalized_rows(cluster, report.nodes, full)
        outcome.problems.extend(problems)
        rows = {row.name: row for row in normalized}
        if report.labels is not None:
            cluster.labels = report.labels
        labels = None if cluster.labels is None else cluster.labels | cluster.record.labels
        gone = [node for node in report.nodes_gone if node not in rows]
        if full:
            gone = [] if new or not cluster.overlays else [n for n in fleet.nodes_of(cid) if n not in rows]
        cluster.overlays.drop(gone)
        for node in gone:
            cluster.problems.pop(node, None)
        touched, bound = cluster.follow_pods(report, full)
        refusals = cluster.refusals
        if full:
            refusals.inherit(fleet.pods.refused_of(cid))
        relearned = refusals.learn(report, rows, cluster.live_pods)
        for pod in report.pods if cluster.overlays else ():
            if pod.uid in cluster.pods and cluster.overlays.admission(pod.node, pod.uid) is not None:
                row = rows.get(pod.node) or (None if new else self.writer.row(cid, pod.node))
                relearned |= cluster.learn_admission(pod.uid, row)
        cluster.doubtful = {
            uid for uid in cluster.doubtful | bound if uid in cluster.pods and cluster.awaits_refusal(uid)
        }
        claims = cluster.claimed_pods(touched | relearned)
        left = (
            [n for n in fleet.nodes_of(cid) if n not in rows] if full and fleet.layout is not None and not new else gone
        )
        inside = part_changes(fleet, cid, rows.values(), left)
        changed = self.writer.put(
            cid,
            cluster.name,
            list(rows.values()),
            whole=full,
            gone=() if full else gone,
            labels=labels,
            state=_cordon(cluster.record),
            as_of=report.as_of,
            claims=claims.live,
            ending=claims.ending,
            counted=claims.counted,
            named=claims.named,
            refused={claim: refusals.nodes(claim) for claim in relearned},
            words={claim: refusals.words(claim) for claim in relearned},
            joined_at=cluster.record.joined_at,
        )
        self._awaited.discard(cluster.name)
        if new or cluster.joining:
            event = cluster.record.told
            ident = event[1] if cluster.joining and event and event[0] == "joined" else ""
            outcome.events.append(FleetEvent("joined", cluster.name, {"nodes": len(rows)}, report.id, ident))
            cluster.joining = False
        elif stale:
            outcome.events.append(FleetEvent("ready", cluster.name, {"nodes": len(fleet.nodes_of(cid))}, report.id))
        elif changed:
            outcome.events.append(FleetEvent("changed", cluster.name, {"nodes": len(rows)}, report.id))
        outcome.events.extend(_inside_events(cluster.name, inside, report.id))
        outcome.events.extend(
            _refused_event(cluster.name, found.node, found.uid, found.reason, found.message, report.id)
            for found in refusals.fresh
        )
        return outcome

    def _inside_before(self, cluster: ClusterReports, node: str) -> Inside | None:
        """Returns what the cluster's agent reported before of the inside of a node."""
        fleet, cid = self.writer.fleet, cluster.record.id
        if fleet.layout is None or not (cid < fleet.size and fleet.known[cid]):
            return None
        own = cluster.overlays.reported_inside(node)
        if own is not None:
            return decode_inside(own)
        row = fleet.row_of(cid, node)
        return None if row is None else decode_inside(fleet.inside_source(row))

    def _normalized_rows(
        self, cluster: ClusterReports, nodes: list[NodeReport], full: bool
    ) -> tuple[list[NodeRow], list[str]]:
        """Returns the rows of the nodes, and the problems that were not reported before."""
        rows: list[NodeRow] = []
        problems: list[str] = []
        for node in nodes:
            problem = name_problem(node.name)
            if problem:
                problems.append(problem)
                continue
            row, problem = normalize_node(node, None if full else self._inside_before(cluster, node.name))
            if problem and cluster.problems.get(node.name) != problem:
                problems.append(problem)
                cluster.problems[node.name] = problem
            elif not problem:
                cluster.problems.pop(node.name, None)
            rows.append(cluster.overlays.overlay(row))
        return self._completed(cluster, rows), problems

    def _apply_node_fields(self, cluster: ClusterReports, source: str, report: Report) -> ReportOutcome:
        """Applies what a node's agent reports of it. A node that the cluster's agent has not named yet gets it when it is."""
        counted = cluster.overlays.counted(node := node_of(source))
        change = cluster.overlays.apply(source, report)
        outcome = self._answer()
        problems = list(change.problems)
        if change.row is not None and (wrong := common_layout(change.row.inside).dropped):
            problems.append(f"node {node}: {wrong[0]}")
        told = "; ".join(problems[:3])
        if told and cluster.problems.get(source) != told:
            outcome.problems.append(told)
        cluster.problems[source] = told
        rows = [] if change.row is None else self._completed(cluster, [change.row])
        inside = part_changes(self.writer.fleet, cluster.record.id, rows, ())
        for uid in sorted(change.pods):
            admission = cluster.overlays.admission(node, uid)
            if admission is not None and admission.outcome == "refused":
                code, message = admission.code, admission.message
                outcome.events.append(_refused_event(cluster.name, node, uid, code, message, report.id))
        pods = {uid for uid in change.pods if uid in cluster.pods}
        if cluster.overlays.counted(node) != counted:
            pods |= {uid for uid, (_, at, _) in cluster.pods.items() if at == node}
        relearned = set[str]()
        for uid in pods:
            relearned |= cluster.learn_admission(uid, rows[0] if rows else None)
        claims = cluster.claimed_pods(relearned | {cluster.pods[uid][0] for uid in pods})
        if (rows or pods) and self.writer.put(
            cluster.record.id,
            cluster.name,
            rows,
            claims=claims.live,
            ending=claims.ending,
            counted=claims.counted,
            named=claims.named,
            refused={claim: cluster.refusals.nodes(claim) for claim in relearned},
            words={claim: cluster.refusals.words(claim) for claim in relearned},
        ):
            outcome.events.append(FleetEvent("changed", cluster.name, {"nodes": len(rows)}, report.id))
        outcome.events.extend(_inside_events(cluster.name, inside, report.id))
        return outcome

    def _leave(self, cluster: ClusterReports, report: Report) -> ReportOutcome:
        cluster.retired = [*cluster.retired[-15:], report.session]  # its late reports must not bring the cluster back
        self.forget(cluster)
        return self._answer()._replace(gone=True)

    def forget(self, cluster: ClusterReports) -> None:
        """Drops the rows of a cluster. A full report of any session brings it back."""
        cluster.owner, cluster.labels = None, None
        cluster.pods, cluster.by_claim, cluster.problems, cluster.in_parts = {}, {}, {}, {}
        cluster.pod_parts, cluster.requests = {}, {}
        cluster.overlays.clear()
        cluster.refusals, cluster.doubtful = Refusals(self.refused_pods), set()
        self.writer.drop(cluster.record.id)
        self._awaited.discard(cluster.name)


def event_data(record: ClusterRecord) -> dict[str, Any]:
    """Returns the data of the event of a record's change."""
    return {} if record.gone else {"labels": record.labels, "cordoned": record.cordoned}


def _cordon(record: ClusterRecord) -> int:
    return CORDONED if record.cordoned else 0


def _inside_events(cluster: str, inside: InsideChanges, cause: str = "") -> list[FleetEvent]:
    told = ("parts", inside.parts), ("devices", inside.devices)
    return [FleetEvent(change, cluster, data, cause) for change, data in told if data]


def _refused_event(cluster: str, node: str, pod: str, code: str, message: str, cause: str) -> FleetEvent:
    data = {"node": node, "pod": pod, "code": code, "message": message[:500]}
    return FleetEvent("refused", cluster, data, cause)
