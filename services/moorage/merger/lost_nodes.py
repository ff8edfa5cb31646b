"""Notices nodes with open slots that stay unusable for so long that nothing is expected of them any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import msgspec
import structlog

from moorage.bus import Bus, BusError, NoAnswer
from moorage.fleet import Fleet
from moorage.ledger import Capacity
from moorage.mesh import stores
from moorage.model.names import cluster_from_tokens, cluster_tokens

log = structlog.get_logger("merger")

#: Seconds for which a node may be unusable until the open slots on it move.
LOST_AFTER = 300.0
#: Seconds until times are stored again after a failure.
RETRY = 1.0
#: Changes of the bucket that are read at the start: each cluster has one key.
_MOST = 1 << 20

_encode = msgspec.json.Encoder().encode
_times = msgspec.json.Decoder(dict[str, float]).decode


class LostNodes:
    """The times are those since a merger first saw the node unusable. They are stored, so that the next merger goes on counting.
    Calls `on_lost` when a node of a cluster is lost."""

    def __init__(self, bus: Bus, fleet: Fleet, capacity: Capacity, on_lost: Callable[[Iterable[str]], None]) -> None:
        self._bucket = bus.bucket(stores.UNUSABLE_NODES)
        self._fleet, self._capacity, self._on_lost = fleet, capacity, on_lost
        self._since: dict[str, dict[str, float]] = {}  # cluster → node → seconds since 1970
        self._stored: set[str] = set()  # clusters that have a key
        self._unsaved: dict[str, None] = {}
        self._changed = asyncio.Event()

    async def load(self) -> None:
        """Reads what the merger before knew. A time that lies ahead, because a clock was set back, counts from now."""
        now = time.time()
        self._since.clear()
        for entry in await self._bucket.newest("*.*", _MOST):
            cluster = cluster_from_tokens(*entry.key.split("."))
            self._stored.add(cluster)
            try:
                self._since[cluster] = {node: min(since, now) for node, since in _times(entry.value).items()}
            except msgspec.DecodeError:
                self._save(cluster)
                continue
            self._wake_at(cluster, self._since[cluster].values())
        for cluster in list(self._since):
            self.check(cluster)

    async def run(self) -> None:
        """Stores the times for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._unsaved:
                cluster = next(iter(self._unsaved))
                del self._unsaved[cluster]
                try:
                    await self._store(cluster)
                except (NoAnswer, BusError) as error:
                    log.warning("since when nodes are unusable will be stored later", cluster=cluster, error=str(error))
                    self._unsaved[cluster] = None
                    await asyncio.sleep(RETRY)

    async def _store(self, cluster: str) -> None:
        times = self._since.get(cluster)
        if times:
            self._stored.add(cluster)
            await self._bucket.put(cluster_tokens(cluster), _encode(times))
        elif cluster in self._stored:
            await self._bucket.delete(cluster_tokens(cluster))
            self._stored.discard(cluster)

    def _save(self, cluster: str) -> None:
        self._unsaved[cluster] = None
        self._changed.set()

    def check(self, cluster: str) -> None:
        """Looks at the nodes of the cluster after a change."""
        cid = self._fleet.ids.get(cluster)
        if cid is None:
            self._forget(cluster)
            return
        if not self._fleet.usable_clusters[cid]:
            return
        rows = self._fleet.rows_of(cid)
        unusable = rows[~self._fleet.usable[rows]]
        claimed = self._capacity.open_nodes(cluster)
        names = [n for n in self._fleet.names_at(cid, unusable) if n in claimed] if unusable.size and claimed else []
        before = self._since.get(cluster, {})
        if not names:
            self._forget(cluster)
            return
        now = time.time()
        after = self._since[cluster] = {name: before.get(name, now) for name in names}
        if after.keys() != before.keys():
            self._save(cluster)
            self._wake_at(cluster, (after[name] for name in after.keys() - before.keys()))

    def _forget(self, cluster: str) -> None:
        if self._since.pop(cluster, None) is not None:
            self._save(cluster)

    def _wake_at(self, cluster: str, times: Iterable[float]) -> None:
        loop, now = asyncio.get_running_loop(), time.time()
        for since in set(times):
            loop.call_later(max(0.0, since + LOST_AFTER - now) + 0.001, self._on_lost, [cluster])

    def on(self, cluster: str) -> frozenset[str]:
        """Returns the lost nodes of the cluster."""
        limit = time.time() - LOST_AFTER
        return frozenset(node for node, since in self._since.get(cluster, {}).items() if since <= limit)
