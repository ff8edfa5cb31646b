"""Divides the slots of a machine type among windows, the cluster itself and everyone else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

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


#: When those are over who have slots that no window keeps for them, by node.
Ends = Mapping[NodeKey, Sequence[float]]


def by_window(
    spans: Sequence[Span],
    slots: NodeCounts,
    held: Mapping[str, NodeCounts] = MappingProxyType({}),
    ends: Ends = MappingProxyType({}),
) -> tuple[NodeCounts, dict[str, NodeCounts]]:
    """Returns the slots that windows keep from everyone else, and those of each window. Windows that overlap have different ones; a slot
    serves one window after the other. `held`: those that windows have now. A window gets slots that nobody has when it begins, as
    far as there are any, of these those that it has now."""
    places = [(node, 0.0) for node, count in slots.items() for _ in range(count)]
    busy = [end for node, count in slots.items() for end in _of_places(count, ends.get(node, ()))]
    kept: set[int] = set()
    windows: dict[str, NodeCounts] = {}
    for span in sorted(spans, key=lambda span: (span.begin, span.window.name)):
        mine = windows.setdefault(span.window.name, {})
        stay = dict(held.get(span.window.name, {}))
        order: list[tuple[bool, bool, int]] = []
        for number, (node, until) in enumerate(places):
            if until > span.begin:
                continue
            stays = stay.get(node, 0) > 0
            if stays:
                stay[node] -= 1
            order.append((busy[number] > span.begin, not stays, number))
        for _, _, number in sorted(order)[: span.slots]:
            node = places[number][0]
            places[number] = node, span.end
            kept.add(number)
            mine[node] = mine.get(node, 0) + 1
    taken: NodeCounts = {}
    for number in kept:
        node = places[number][0]
        taken[node] = taken.get(node, 0) + 1
    return taken, windows


def slots_before(
    times: Iterable[int],
    slots: NodeCounts,
    spans: Sequence[Span],
    windows: Mapping[str, NodeCounts],
    lent: Mapping[int, NodeCounts],
    now: float,
) -> dict[int, NodeCounts]:
    """Returns by each time the slots that no window has before it. `lent`: who has some of these already; of a time that is over they keep
    what they have, which is nobody else's loss."""
    found: dict[int, NodeCounts] = {}
    for time in {*times, *lent}:
        if time <= now:
            found[time] = {node: count + lent.get(time, {}).get(node, 0) for node, count in slots.items()}
            continue
        moments = (now, *(span.begin for span in spans if now < span.begin < time))
        there = [[s.window.name for s in spans if s.begin <= moment < s.end] for moment in moments]
        found[time] = {
            node: max(0, count - max(sum(windows.get(name, {}).get(node, 0) for name in names) for names in there))
            for node, count in slots.items()
        }
    return found


def times_of(spans: Iterable[Span], now: float) -> set[int]:
    """Returns when windows begin: who is gone by then may have their slots."""
    return {int(span.begin) for span in spans if span.begin > now}


def _of_places(count: int, ends: Sequence[float]) -> list[float]:
    """Returns when the slots of a node are free, the latest last."""
    last = sorted(ends)[-count:] if count else []
    return [0.0] * (count - len(last)) + last
