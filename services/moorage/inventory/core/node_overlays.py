"""Overlays the fields that node agents report on the rows that the cluster's agent reports.

A node agent's fields are used as long as it reports them; fields that it leaves empty are the cluster agent's. Anyone with a
cluster's rights can invent node agents and nodes, so the number of both is bounded by what the cluster may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from moorage.fleet import NodeRow, exclusive_cores, with_parts_of
from moorage.model.reports import NodeReport, Report

from .report_sessions import ReportSession

#: Node agents, and nodes that the cluster's agent has not named yet, that are accepted even if it has named fewer.
MAX_UNNAMED = 64
#: Bytes of incomplete reports of all node agents of a cluster.
MAX_BUFFERED_BYTES = 64 << 20


class _Own(NamedTuple):
    """The fields of the cluster agent's row that a node agent's may replace."""

    exclusive: int
    extras: bytes
    inside: bytes
    in_use: tuple[int, ...]

    @classmethod
    def of(cls, row: NodeRow) -> _Own:
        return cls(row.exclusive, row.extras, row.inside, row.in_use)


class _NodeFields:
    """The fields that a node agent reports for a node. `own` has those of the cluster agent's row, once it has reported the
    node."""

    __slots__ = ("exclusive", "node", "own", "source")

    def __init__(self, source: str, node: NodeReport, own: _Own | None) -> None:
        self.source, self.own = source, own
        self.exclusive = None if node.cpu_manager is None else exclusive_cores(node.cpu_manager)
        self.node = node

    def over(self, row: NodeRow) -> NodeRow:
        exclusive = row.exclusive if self.exclusive is None else self.exclusive
        row = row._replace(exclusive=exclusive)
        if self.node.devices:
            extras: dict[str, Any] = msgspec.json.decode(row.extras) if row.extras else {}
            row = row._replace(extras=msgspec.json.encode(extras | {"devices": self.node.devices}))
        return with_parts_of(row, self.node) if self.node.zones or self.node.devices else row


class NodeOverlays:
    """The node agents of a cluster and the fields that they report. `row` returns a node's current row, if there is one."""

    def __init__(self, row: Callable[[str], NodeRow | None]) -> None:
        self.sources: dict[str, ReportSession] = {}
        self._row = row
        self._fields: dict[str, _NodeFields] = {}
        self._unnamed: set[str] = set()  # nodes that the cluster's agent has not named yet

    def __len__(self) -> int:
        return len(self._fields)

    def overlay(self, row: NodeRow) -> NodeRow:
        """Returns a row of the cluster's agent with the fields of the node's agent."""
        fields = self._fields.get(row.name)
        if fields is None:
            return row
        fields.own = _Own.of(row)
        self._unnamed.discard(row.name)
        return fields.over(row)

    def apply(self, source: str, report: Report) -> list[NodeRow] | None:
        """Returns the rows that a node agent's report changes; None if it names too many unknown nodes and is not applied."""
        bare_rows = {node.name: self._bare(node.name) for node in report.nodes}
        gone = self._fields if report.kind == "full" else dict.fromkeys(report.nodes_gone)
        left = [node for node in gone if node not in bare_rows and node in self._fields]
        left = [node for node in left if self._fields[node].source == source]
        unnamed = self._unnamed.difference(left).union(node for node, row in bare_rows.items() if row is None)
        if len(unnamed) > MAX_UNNAMED:
            self.sources[source].mark_incomplete()
            return None
        rows = {row.name: row for row in self._uncovered(left)}
        self._unnamed = unnamed
        for node in report.nodes:
            bare = bare_rows[node.name]
            before = self._fields.get(node.name)
            if node.zones is None and report.kind == "delta" and before is not None and before.source == source:
                kept = before.node
                node = msgspec.structs.replace(node, zones=kept.zones, topology_manager=kept.topology_manager)
            own = None if bare is None else _Own.of(bare)
            fields = self._fields[node.name] = _NodeFields(source, node, own)
            if bare is not None:
                rows[node.name] = fields.over(bare)
        return list(rows.values())

    def reported_inside(self, node: str) -> bytes | None:
        """Returns what the cluster's agent reported of the inside of a node; None if its row has no other fields."""
        fields = self._fields.get(node)
        return None if fields is None or fields.own is None else fields.own.inside

    def drop(self, nodes: Iterable[str]) -> None:
        """Forgets nodes that are gone. Their node agents report everything again, in case the nodes come back."""
        for node in nodes:
            fields = self._fields.pop(node, None)
            self._unnamed.discard(node)
            if fields is not None and fields.source in self.sources:
                self.sources[fields.source].mark_incomplete()

    def remove_source(self, source: str) -> list[NodeRow]:
        """Forgets a node agent, and returns the rows of its nodes as the cluster's agent reports them."""
        del self.sources[source]
        return self._uncovered([node for node, fields in self._fields.items() if fields.source == source])

    def clear(self) -> None:
        self.sources, self._fields, self._unnamed = {}, {}, set()

    @property
    def buffered_bytes(self) -> int:
        return sum(source.buffered_bytes for source in self.sources.values())

    def _bare(self, node: str) -> NodeRow | None:
        row, fields = self._row(node), self._fields.get(node)
        if row is None or fields is None or fields.own is None:
            return row
        return row._replace(**fields.own._asdict())

    def _uncovered(self, nodes: Iterable[str]) -> list[NodeRow]:
        rows = []
        for node in nodes:
            if (bare := self._bare(node)) is not None:
                rows.append(bare)
            del self._fields[node]
            self._unnamed.discard(node)
        return rows
