"""Divides the slots of a machine type among windows, the cluster itself and everyone else."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.machine_groups.windows import Span

from .layout import NodeCounts, NodeKey


def set_aside(slots: NodeCounts, count: int, alone: NodeCounts, held: NodeCounts, promised: NodeCounts) -> NodeCounts:
    """Returns the nodes of `count` slots that clusters give out alone: those that they gave out already (`alone`), then those that are set
    aside now (`held`), then the last ones. What the mesh promised (`promised`) is not set aside."""
    found = {node: min(total, there) for node, total in slots.items() if (there := alone.get(node, 0))}
    free = {node: total - promised.get(node, 0) - found.get(node, 0) for node, total in slots.items()}
    left = count - sum(found.values())
    for most in ({node: held.get(node, 0) - found.get(node, 0) for node in slots}, free):
        for node in reversed(list(slots)):
            more = min(left, most[node], free[node])
            if more > 0:
                found[node] = found.get(node, 0) + more
                free[node] -= more
                left -= more
    return {node: found[node] for node in slots if node in found}


def less(slots: NodeCounts, taken: NodeCounts) -> NodeCounts:
    return {node: left for node, count in slots.items() if (left := count - taken.get(node, 0)) > 0}


def by_window(spans: Sequence[Span], slots: NodeCounts) -> tuple[NodeCounts, dict[str, NodeCounts]]:
    """Returns the slots that windows keep from everyone else, and those of each window. Windows that overlap have different
    ones; a slot serves one window after the other."""
    places: list[tuple[NodeKey, float]] = [(node, 0.0) for node, count in slots.items() for _ in range(count)]
    kept: set[int] = set()
    windows: dict[str, NodeCounts] = {}
    for span in sorted(spans, key=lambda span: (span.begin, span.window.name)):
        mine = windows.setdefault(span.window.name, {})
        left = span.slots
        for number, (node, until) in enumerate(places):
            if left and until <= span.begin:
                places[number] = node, span.end
                kept.add(number)
                mine[node] = mine.get(node, 0) + 1
                left -= 1
    taken: NodeCounts = {}
    for number in kept:
        node = places[number][0]
        taken[node] = taken.get(node, 0) + 1
    return taken, windows
