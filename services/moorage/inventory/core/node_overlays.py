"""What node agents say of single nodes, over what the cluster's agent says of them: their fields stand as long as they say
them, and what they leave empty is as the cluster's agent has it. Anyone with a cluster's rights can invent node agents and
nodes, so of both only as many are kept as the cluster may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from moorage.fleet import NodeRow, exclusive_cores
from moorage.model.reports import NodeReport, Report

from .report_sessions import ReportSession

#: So many node agents, and nodes that the cluster's agent has not named yet, even where it has named fewer.
AHEAD = 64
#: What may be gathered of unfinished reports of all node agents of a cluster.
GATHERED = 64 << 20
_FIELDS = ("zones", "devices")


class _Fields:
    """Of one node; `own`: exclusive cores and extras as the cluster's agent says, once it has."""

    __slots__ = ("exclusive", "extras", "own", "source")

    def __init__(self, source: str, node: NodeReport, own: tuple[int, bytes] | None) -> None:
        self.source, self.own = source, own
        self.exclusive = None if node.cpu_manager is None else exclusive_cores(node.cpu_manager)
        self.extras: dict[str, Any] = {name: said for name in _FIELDS if (said := getattr(node, name))}

    def over(self, row: NodeRow) -> NodeRow:
        extras: dict[str, Any] = msgspec.json.decode(row.extras) if row.extras else {}
        extras |= self.extras
        exclusive = row.exclusive if self.exclusive is None else self.exclusive
        return row._replace(exclusive=exclusive, extras=msgspec.json.encode(extras) if extras else b"")


class NodeOverlays:
    """`row`: a node as it stands now, if the cluster has it."""

    def __init__(self, row: Callable[[str], NodeRow | None]) -> None:
        self.sources: dict[str, ReportSession] = {}
        self._row = row
        self._fields: dict[str, _Fields] = {}
        self._ahead: set[str] = set()  # those of nodes that the cluster's agent has not named yet

    def __len__(self) -> int:
        return len(self._fields)

    def over(self, row: NodeRow) -> NodeRow:
        """A node as the cluster's agent says, with what node agents say of it."""
        fields = self._fields.get(row.name)
        if fields is None:
            return row
        fields.own = row.exclusive, row.extras
        self._ahead.discard(row.name)
        return fields.over(row)

    def take(self, source: str, report: Report) -> list[NodeRow] | None:
        """The nodes that are different by it; None: it names too many that nobody knows, and nothing of it is taken."""
        named = {node.name: self._bare(node.name) for node in report.nodes}
        gone = self._fields if report.kind == "full" else dict.fromkeys(report.nodes_gone)
        left = [node for node in gone if node not in named and node in self._fields]
        left = [node for node in left if self._fields[node].source == source]
        ahead = self._ahead.difference(left).union(node for node, row in named.items() if row is None)
        if len(ahead) > AHEAD:
            self.sources[source].lose()
            return None
        rows = {row.name: row for row in self._uncovered(left)}
        self._ahead = ahead
        for node in report.nodes:
            bare = named[node.name]
            own = None if bare is None else (bare.exclusive, bare.extras)
            fields = self._fields[node.name] = _Fields(source, node, own)
            if bare is not None:
                rows[node.name] = fields.over(bare)
        return list(rows.values())

    def drop(self, nodes: Iterable[str]) -> None:
        """Nodes that are gone. Whoever spoke for them says it all again, if they come back."""
        for node in nodes:
            fields = self._fields.pop(node, None)
            self._ahead.discard(node)
            if fields is not None and fields.source in self.sources:
                self.sources[fields.source].lose()

    def dismiss(self, source: str) -> list[NodeRow]:
        """Forgets a node agent; back with its nodes as the cluster's agent says they are."""
        del self.sources[source]
        return self._uncovered([node for node, fields in self._fields.items() if fields.source == source])

    def clear(self) -> None:
        self.sources, self._fields, self._ahead = {}, {}, set()

    @property
    def gathered(self) -> int:
        return sum(source.gathered for source in self.sources.values())

    def _bare(self, node: str) -> NodeRow | None:
        row, fields = self._row(node), self._fields.get(node)
        if row is None or fields is None or fields.own is None:
            return row
        return row._replace(exclusive=fields.own[0], extras=fields.own[1])

    def _uncovered(self, nodes: Iterable[str]) -> list[NodeRow]:
        rows = []
        for node in nodes:
            if (bare := self._bare(node)) is not None:
                rows.append(bare)
            del self._fields[node]
            self._ahead.discard(node)
        return rows
