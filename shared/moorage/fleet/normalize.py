"""Converts reported nodes to rows: amounts become integers, the hostname label a flag.

An unreadable amount makes its node unusable, with a reason; the other nodes of the report are not affected.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from moorage.model.reports import CpuManager, NodeReport, Taint
from moorage.model.shapes import EXCLUSIVE
from moorage.parsing import CAPACITY_MAX, parse_amount

from .delta import HOST, READY, REJECTED, SEPARATOR, UNSCHEDULABLE

HOSTNAME = "kubernetes.io/hostname"
PODS = "pods"
_MAX = CAPACITY_MAX


class NodeRow(NamedTuple):
    name: str
    flags: int
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    allocatable: dict[str, int]
    requested: dict[str, int]
    exclusive: int = -1
    extras: bytes = b""


def normalize_node(node: NodeReport) -> tuple[NodeRow, str]:
    """Returns the row of a node, and what is wrong with the node ("" if nothing is)."""
    labels, flags, problem = node.labels, 0, ""
    if labels.get(HOSTNAME) == node.name:
        labels = {k: v for k, v in labels.items() if k != HOSTNAME}
        flags |= HOST
    flags |= (READY if node.ready else 0) | (UNSCHEDULABLE if node.unschedulable else 0)
    allocatable: dict[str, int] = {}
    requested: dict[str, int] = {}
    try:
        for name, text in node.allocatable.items():
            allocatable[name] = _bounded(name, text, False)
        for name, text in node.requested.items():
            requested[name] = _bounded(name, text, True)
        for amounts in (allocatable, requested):
            amounts.pop(EXCLUSIVE, None)  # derived from the CPU manager instead
    except ValueError as error:
        allocatable, requested, flags, problem = {}, {}, flags | REJECTED, f"node {node.name}: {name}: {error}"
    requested.setdefault(PODS, min(max(node.pod_count, 0), _MAX))
    exclusive = exclusive_cores(node.cpu_manager)
    extras = {k: v for k in ("zones", "providers", "devices", "machines") if (v := getattr(node, k))}
    packed = msgspec.json.encode(extras) if extras else b""
    return NodeRow(node.name, flags, labels, tuple(node.taints), allocatable, requested, exclusive, packed), problem


def exclusive_cores(manager: CpuManager | None) -> int:
    """Returns the free exclusive cores; -1 if they are not reported. Only the static policy assigns whole cores."""
    if manager is None:
        return -1
    return min(max(manager.exclusive_free, 0), _MAX) if manager.policy == "static" else 0


def name_problem(name: str) -> str:
    """Returns what is wrong with a node's name, or "". A node with an invalid name has no row."""
    if not name or len(name) > 253 or SEPARATOR in name:
        return f"{name[:60]!r} is no name of a node"
    return ""


def _bounded(resource: str, text: str, up: bool) -> int:
    value = parse_amount(resource, text, up)
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    return min(value, _MAX)
