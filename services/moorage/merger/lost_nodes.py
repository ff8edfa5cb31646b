"""Notices nodes with open slots that stay unusable for so long that nothing is expected of them any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from moorage.fleet import Fleet
from moorage.ledger import Capacity

#: Seconds for which a node may be unusable until the open slots on it move.
LOST_AFTER = 300.0


class LostNodes:
    """The times are those since this merger first saw the node unusable. Calls `on_lost` when a node of a cluster is lost."""

    def __init__(self, fleet: Fleet, capacity: Capacity, on_lost: Callable[[Iterable[str]], None]) -> None:
        self._fleet, self._capacity, self._on_lost = fleet, capacity, on_lost
        self._since: dict[str, dict[str, float]] = {}  # cluster → node → time

    def check(self, cluster: str) -> None:
        """Looks at the nodes of the cluster after a change."""
        cid = self._fleet.ids.get(cluster)
        if cid is None or not self._fleet.usable_clusters[cid]:
            return
        rows = self._fleet.rows_of(cid)
        unusable = rows[~self._fleet.usable[rows]]
        claimed = self._capacity.open_nodes(cluster)
        names = [n for n in self._fleet.names_at(cid, unusable) if n in claimed] if unusable.size and claimed else []
        if not names:
            self._since.pop(cluster, None)
            return
        loop = asyncio.get_running_loop()
        before = self._since.get(cluster, {})
        self._since[cluster] = {name: before.get(name, loop.time()) for name in names}
        if self._since[cluster].keys() - before.keys():
            loop.call_later(LOST_AFTER, self._on_lost, [cluster])

    def on(self, cluster: str) -> frozenset[str]:
        """Returns the lost nodes of the cluster."""
        limit = asyncio.get_running_loop().time() - LOST_AFTER
        return frozenset(node for node, since in self._since.get(cluster, {}).items() if since <= limit)
