"""Adds up what is taken of each node, and takes it from the free capacity of the fleet."""

from __future__ import annotations

from moorage.fit.static_inside import StaticInside
from moorage.fleet import Fleet
from moorage.model.allocations import IN_COMMON
from moorage.model.slots import part_and_class

from .families import Amounts, NodeAmounts
from .machine_room import ClusterAmounts
from .open_pods import OpenPods
from .room import free_of
from .shared_room import SharedRoom, taken_with


class TakenRoom:
    """The amounts that open slots, consumers, reservations, guests and entries in flight take together, by cluster and node. The fleet is
    brought to it by `flush`; nothing else calls `fleet.take`."""

    def __init__(self, fleet: Fleet, open_pods: OpenPods, shared: SharedRoom) -> None:
        self._fleet, self._open_pods, self._shared = fleet, open_pods, shared
        self._totals: dict[str, NodeAmounts] = {}  # by cluster
        self._absent: dict[str, set[str]] = {}  # cluster → nodes with totals that are not there
        # Nodes whose totals changed since the last flush, with the amounts of that flush. None: the fleet's row is new.
        self._dirty: dict[str, dict[str, Amounts | None]] = {}

    def on(self, cluster: str) -> NodeAmounts:
        """Returns what is taken of the nodes of a cluster."""
        return self._totals.get(cluster, {})

    def may_lack_room(self, cluster: str) -> bool:
        """Returns whether a node with open slots is gone, refuses pods, or has less room than these need."""
        if cluster in self._absent:
            return True
        totals, cid = self._totals.get(cluster), self._fleet.ids.get(cluster)
        if not totals or cid is None:
            return False
        if self._fleet.pods.refused_of(cid):
            return True
        rows = self._fleet.rows_of(cid)
        for name in {name for amounts in totals.values() for name in amounts}:
            if part_and_class(name) is not None:
                if self._part_is_short(cid, totals, name):
                    return True
                continue
            free = self._fleet.free(name)
            if free is None:
                return True
            short = rows[free[rows] < 0]
            if short.size and any(totals.get(node, {}).get(name) for node in self._fleet.names_at(cid, short)):
                return True
        return False

    def _part_is_short(self, cid: int, totals: NodeAmounts, name: str) -> bool:
        """Returns whether more is taken of a part than it has. A part that is gone is not short: its claims stay."""
        for node, amounts in totals.items():
            row = self._fleet.row_of(cid, node) if amounts.get(name) else None
            if row is not None and (free_of(self._fleet, row, name) or 0) < 0:
                return True
        return False

    def shift_all(self, before: ClusterAmounts, after: ClusterAmounts) -> None:
        for cluster in {**before, **after}:
            self.shift(cluster, before.get(cluster, {}), after.get(cluster, {}))

    def shift(self, cluster: str, before: NodeAmounts, after: NodeAmounts) -> None:
        totals = self._totals.setdefault(cluster, {})
        dirty = self._dirty.setdefault(cluster, {})
        for sign, by_node in ((-1, before), (1, after)):
            for node, amounts in by_node.items():
                total = totals.setdefault(node, {})
                if node not in dirty:
                    dirty[node] = total.copy()
                for name, amount in amounts.items():
                    total[name] = total.get(name, 0) + sign * amount

    def mark_node(self, cluster: str, node: str) -> None:
        """Lets the next flush write a node again, whatever its row in the fleet has taken."""
        self._dirty.setdefault(cluster, {})[node] = None

    def mark_cluster(self, cluster: str) -> None:
        """Lets the next flush write all nodes of a cluster again: their rows are new."""
        if cluster in self._totals:
            self._dirty.setdefault(cluster, {}).update(dict.fromkeys(self._totals[cluster]))

    def mark_all(self) -> None:
        for cluster in self._totals:
            self.mark_cluster(cluster)

    def flush(self) -> None:
        """Brings the fleet up to date, once per change: room that is given back and taken again in one step never looks free
        in between."""
        dirty, self._dirty = self._dirty, {}
        for cluster, nodes in dirty.items():
            cid = self._fleet.ids.get(cluster)
            totals = self._totals.get(cluster, {})
            for node, before in nodes.items():
                after = {name: amount for name, amount in totals.get(node, {}).items() if amount}
                if after:
                    totals[node] = after
                else:
                    totals.pop(node, None)
                shared = self._shared.on(cluster, node, after)
                if cid is not None and (shared or node in self._fleet.shared_slots.get(cid, ())):
                    self._fleet.set_shared_slots(cid, node, shared)
                    self._take(cid, node, None, taken_with(after, shared))
                elif cid is not None and after != before:
                    self._take(cid, node, before, after)
            if not totals:
                self._totals.pop(cluster, None)
        changed = set(self._open_pods.take_changed())
        if self._fleet.layout is None and not self._fleet.open_pods:
            return  # no kubelet aligns anything
        for cluster, nodes in dirty.items():
            open_pods = self._open_pods.of(cluster)
            if open_pods or self._fleet.ids.get(cluster) in self._fleet.open_pods:
                changed.update((cluster, node) for node in nodes)
        for cluster, node in changed:
            self._tell_open_pods(cluster, node)

    def _tell_open_pods(self, cluster: str, node: str) -> None:
        """Tells the fleet which pods may still arrive at a node whose kubelet aligns them."""
        cid = self._fleet.ids.get(cluster)
        if cid is None:
            return
        row = self._fleet.row_of(cid, node)
        aligns = row is not None and StaticInside.of(self._fleet.inside(row)[1]).manager.rejects
        self._fleet.set_open_pods(cid, node, self._open_pods.on(cluster, node) if aligns else {})

    def _take(self, cid: int, node: str, before: Amounts | None, after: Amounts) -> None:
        """Takes the difference from the fleet's row. `before` None: from what the row has taken itself."""
        if node == IN_COMMON:
            self._take_in_common(cid, before, after)
            return
        row = self._fleet.row_of(cid, node)
        if row is None or after:
            self._mark_absent(cid, node, absent=row is None and bool(after))
        if row is None:
            return
        more, less = _changes(self._fleet.taken(row) if before is None else before, after)
        if more:
            self._fleet.take(row, more, 1)
        if less:
            self._fleet.take(row, less, -1)

    def _take_in_common(self, cid: int, before: Amounts | None, after: Amounts) -> None:
        more, less = _changes(self._fleet.taken_in_common(cid) if before is None else before, after)
        if more:
            self._fleet.take_in_common(cid, more)
        if less:
            self._fleet.take_in_common(cid, less, -1)

    def _mark_absent(self, cid: int, node: str, *, absent: bool) -> None:
        cluster = self._fleet.names[cid]
        nodes = self._absent.get(cluster)
        if absent:
            self._absent.setdefault(cluster, set()).add(node)
        elif nodes is not None:
            nodes.discard(node)
            if not nodes:
                del self._absent[cluster]


def _changes(taken: Amounts, after: Amounts) -> tuple[Amounts, Amounts]:
    """Returns what is to be taken more, and what less, so that it is `after` instead of `taken`."""
    if not taken:
        change = after
    elif not after:
        change = {n: -a for n, a in taken.items()}
    else:
        change = {n: after.get(n, 0) - taken.get(n, 0) for n in {**after, **taken}}
    # Slots that are offered are taken amounts below zero.
    return {n: a for n, a in change.items() if a > 0}, {n: -a for n, a in change.items() if a < 0}
