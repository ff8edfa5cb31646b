"""Encodes a report in parts that are small enough for the broker."""

from __future__ import annotations

import msgspec

from moorage.model.reports import parts_of

from .cluster_state import NodeRows

_encode = msgspec.json.Encoder().encode


def report_bodies(rows: NodeRows, kind: str, labels: dict[str, str], succeeds: str) -> list[bytes]:
    """Returns the parts of a report, each without its envelope."""
    more = b',"labels":%b' % _encode(labels) if kind == "full" else b""
    if succeeds:
        more += b',"succeeds":%b' % _encode(succeeds)
    lists = {
        "nodes": rows.nodes,
        "pods": rows.pods,
        "nodesGone": map(_encode, rows.nodes_gone),
        "podsGone": map(_encode, rows.pods_gone),
    }
    return [b'"kind":"%b"%b%b' % (kind.encode(), body, more) for body in parts_of(lists)]
