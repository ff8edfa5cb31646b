"""Overlays the fields that node agents report on the rows that the cluster's agent reports.

A node's agent speaks for its own node only. Its fields are used as long as it reports them; fields that it leaves empty are the
cluster agent's. Anyone with a cluster's rights can invent node agents, so the number of those whose node the cluster's agent has
not named is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.fleet import NodeRow, exclusive_cores, with_parts_of
from moorage.model.names import untoken
from moorage.model.reports import AdmissionReport, NodeReport, Report
from moorage.model.slots import PartAmounts
from moorage.parsing import parse_amount
from moorage.parts.reported_amounts import class_amount

from .report_sessions import ReportSession

#: Sources with this prefix are node agents; the name of the node follows, as a token. Any other source reports for the whole
#: cluster, one at a time.
NODE_SOURCE = "node-"
#: Node agents that are accepted although the cluster's agent has not named their nodes.
MAX_UNNAMED = 64
#: Bytes of incomplete reports of all node agents of a cluster.
MAX_BUFFERED_BYTES = 64 << 20
#: Refused pods that the row of a node has.
SHOWN_REFUSALS = 20
#: Pods of which a node's agent may tell.
MAX_PODS = 4096


def node_of(source: str) -> str:
    """Returns the name of the node for which a node agent reports."""
    return untoken(source[len(NODE_SOURCE) :])


class NodeChange(NamedTuple):
    """The changes that a report of a node's agent makes. `row`: the node's row now; None if nobody has named the node yet. `pods`: the uids
    of those pods of which it tells something else than before."""

    row: NodeRow | None
    pods: frozenset[str]
    problems: list[str]


class _Own(NamedTuple):
    """The fields of the cluster agent's row that a node agent's may replace."""

    exclusive: int
    extras: bytes
    inside: bytes
    in_use: tuple[int, ...]
    allocatable: dict[str, int]

    @classmethod
    def of(cls, row: NodeRow) -> _Own:
        return cls(row.exclusive, row.extras, row.inside, row.in_use, row.allocatable)


class _NodeFields:
    """The report of a node's agent. `own` has the fields of the cluster agent's row, once it has reported the node."""

    __slots__ = ("admissions", "node", "own", "parts")

    def __init__(self, name: str) -> None:
        self.own: _Own | None = None
        self.node = NodeReport(name=name)
        self.parts: dict[str, PartAmounts] = {}  # uid → what the pod takes of which parts
        self.admissions: dict[str, AdmissionReport] = {}  # uid → the last decision about it

    @property
    def owns_zones(self) -> bool:
        return bool(self.node.zones)

    def over(self, row: NodeRow) -> NodeRow:
        node = self.node
        exclusive = row.exclusive if node.cpu_manager is None else exclusive_cores(node.cpu_manager)
        row = row._replace(exclusive=exclusive, allocatable=self._bounded(row.allocatable))
        own = {"devices": node.devices, "qos": node.qos, "admissions": self._refused()}
        if any(own.values()):
            extras: dict[str, Any] = msgspec.json.decode(row.extras) if row.extras else {}
            own["devices"] = [d for d in extras.get("devices", []) if d.get("driver")] + node.devices
            extras |= {name: value for name, value in own.items() if value}
            row = row._replace(extras=msgspec.json.encode(extras))
        if node.zones or node.devices or self.parts:
            row = with_parts_of(row, node, self.parts.values())
        return row

    def _bounded(self, allocatable: dict[str, int]) -> dict[str, int]:
        """Returns the amounts of the node, of resources of the agent's plugins no more than these have now. The cluster's agent
        hears of that later, by the node's status."""
        found = allocatable
        told = {**self.node.allocatable, **dict.fromkeys(self.node.removed, "0")}
        for name, text in told.items():
            if "/" in name and name in found:
                try:
                    least = max(0, parse_amount(name, text, False))
                except ValueError:
                    continue
                found = {**found, name: min(found[name], least)}
        return found

    def _refused(self) -> list[AdmissionReport]:
        """Returns the pods that were refused last."""
        return [found for found in self.admissions.values() if found.outcome == "refused"][-SHOWN_REFUSALS:]

    def take(self, report: Report) -> tuple[frozenset[str], list[str]]:
        """Takes in a report. Returns the pods of which it tells something else than before, and what makes no sense in it."""
        name, full, problems = self.node.name, report.kind == "full", list[str]()
        before, told = dict(self.parts), dict(self.admissions)
        if full or name in report.nodes_gone:
            self.node = NodeReport(name=name)
        if full:
            self.parts, self.admissions = {}, {}
        for node in report.nodes:
            if node.name != name:
                problems.append(f"node {node.name[:80]}: the agent of node {name} cannot speak for it")
                continue
            if node.zones is None and not full:
                kept = self.node
                node = msgspec.structs.replace(node, zones=kept.zones, topology_manager=kept.topology_manager)
            self.node = node
        for uid in report.pods_gone:
            self.parts.pop(uid, None)
            self.admissions.pop(uid, None)
        for pod in report.pods:
            self.parts.pop(pod.uid, None)
            parts, problem = part_amounts(pod.parts)
            if problem:
                problems.append(f"node {name}: pod {pod.uid[:80]}: {problem}")
            elif parts:
                self.parts[pod.uid] = parts
        for admission in report.admissions:
            self.admissions.pop(admission.pod, None)
            self.admissions[admission.pod] = admission
        for kept_of in (self.parts, self.admissions):
            if len(kept_of) > MAX_PODS:
                problems.append(f"node {name}: its agent tells of more than {MAX_PODS} pods")
                for uid in list(kept_of)[: len(kept_of) - MAX_PODS]:
                    del kept_of[uid]
        changed = {uid for uid in before.keys() | self.parts.keys() if before.get(uid) != self.parts.get(uid)}
        changed |= {uid for uid in self.admissions if told.get(uid) != self.admissions[uid]}
        return frozenset(changed), problems


class NodeOverlays:
    """The node agents of a cluster and the fields that they report. `row` returns a node's current row, if there is one."""

    def __init__(self, row: Callable[[str], NodeRow | None]) -> None:
        self.sources: dict[str, ReportSession] = {}
        self._row = row
        self._fields: dict[str, _NodeFields] = {}

    def __len__(self) -> int:
        return len(self._fields)

    def overlay(self, row: NodeRow) -> NodeRow:
        """Returns a row of the cluster's agent with the fields of the node's agent."""
        fields = self._fields.get(row.name)
        if fields is None:
            return row
        fields.own = _Own.of(row)
        return fields.over(row)

    def apply(self, source: str, report: Report) -> NodeChange:
        """Takes in a report of a node's agent."""
        name = node_of(source)
        fields = self._fields.get(name)
        if fields is None:
            fields = self._fields[name] = _NodeFields(name)
        bare = self._bare(name)
        fields.own = None if bare is None else _Own.of(bare)
        pods, problems = fields.take(report)
        return NodeChange(None if bare is None else fields.over(bare), pods, problems)

    def parts_of(self, node: str, uid: str) -> PartAmounts:
        """Returns what a pod takes of which parts, as its node's agent tells."""
        fields = self._fields.get(node)
        return {} if fields is None else fields.parts.get(uid, {})

    def admission(self, node: str, uid: str) -> AdmissionReport | None:
        """Returns what the node's agent decided about a pod."""
        fields = self._fields.get(node)
        return None if fields is None else fields.admissions.get(uid)

    def counted(self, node: str) -> Iterable[str] | None:
        """Returns the pods that the node's agent says its zones count; None if the zones are not its own."""
        fields = self._fields.get(node)
        return fields.node.counted if fields is not None and fields.owns_zones else None

    def reported_inside(self, node: str) -> bytes | None:
        """Returns what the cluster's agent reported of the inside of a node; None if its row has no other fields."""
        fields = self._fields.get(node)
        return None if fields is None or fields.own is None else fields.own.inside

    def drop(self, nodes: Iterable[str]) -> None:
        """Forgets nodes that are gone. Their agents report everything again, in case the nodes come back."""
        gone = {node for node in nodes if self._fields.pop(node, None) is not None}
        for source in [source for source in self.sources if node_of(source) in gone] if gone else ():
            del self.sources[source]

    def remove_source(self, source: str) -> NodeRow | None:
        """Forgets a node agent, and returns the row of its node as the cluster's agent reports it."""
        del self.sources[source]
        bare = self._bare(node_of(source))
        self._fields.pop(node_of(source), None)
        return bare

    def clear(self) -> None:
        self.sources, self._fields = {}, {}

    @property
    def buffered_bytes(self) -> int:
        return sum(source.buffered_bytes for source in self.sources.values())

    def _bare(self, node: str) -> NodeRow | None:
        row, fields = self._row(node), self._fields.get(node)
        if row is None or fields is None or fields.own is None:
            return row
        return row._replace(**fields.own._asdict())


def part_amounts(parts: Mapping[str, Mapping[str, str]]) -> tuple[PartAmounts, str]:
    """Returns what a pod takes of parts in the units in which it is kept, and what is wrong with it ("" if nothing is)."""
    found: PartAmounts = {}
    for part, amounts in parts.items():
        for name, text in amounts.items():
            try:
                resource, amount = class_amount(name, text, up=True)
                if amount < 0:
                    raise ValueError(f"{text!r} is negative")
            except ValueError as error:
                return {}, f"part {part[:80]!r}: {name[:80]}: {error}"
            if amount:
                here = found.setdefault(part, {})
                here[resource] = here.get(resource, 0) + amount
    return found, ""
