"""Nodes as sources report them become rows, once: amounts as integers, the hostname label a flag. What cannot be read
makes one node unusable and says why; the rest of the report stands."""

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
    """The row, and what is wrong with it ("" = nothing)."""
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
            amounts.pop(EXCLUSIVE, None)  # ours to say, from the CPU manager
    except ValueError as error:
        allocatable, requested, flags, problem = {}, {}, flags | REJECTED, f"node {node.name}: {name}: {error}"
    requested.setdefault(PODS, min(max(node.pod_count, 0), _MAX))
    exclusive = exclusive_cores(node.cpu_manager)
    extras = {k: v for k in ("zones", "providers", "devices", "machines") if (v := getattr(node, k))}
    packed = msgspec.json.encode(extras) if extras else b""
    return NodeRow(node.name, flags, labels, tuple(node.taints), allocatable, requested, exclusive, packed), problem


def exclusive_cores(manager: CpuManager | None) -> int:
    """-1: the node does not say. Only the static policy gives cores away whole."""
    if manager is None:
        return -1
    return min(max(manager.exclusive_free, 0), _MAX) if manager.policy == "static" else 0


def name_problem(name: str) -> str:
    """A node whose name cannot be one has no row at all."""
    if not name or len(name) > 253 or SEPARATOR in name:
        return f"{name[:60]!r} is no name of a node"
    return ""


def _bounded(resource: str, text: str, up: bool) -> int:
    value = parse_amount(resource, text, up)
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    return min(value, _MAX)
