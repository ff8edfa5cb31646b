"""The part of the ledger that belongs to the Placement interface: what its consumers hold."""

from __future__ import annotations

from typing import NamedTuple

from moorage.model.allocations import Consumer, ConsumerWrite, InventoryRecord
from moorage.model.base import Model


class Exchange(NamedTuple):
    """New inventories of a provider that may not be in its record yet. `seq` is the commit that brought them."""

    seq: int
    inventories: dict[str, InventoryRecord]


class AllocationSnapshot(Model, kw_only=True):
    generation: int = 0
    consumers: list[Consumer] = []
    writes: dict[str, int] = {}
    exchanges: dict[str, tuple[int, dict[str, InventoryRecord]]] = {}


class AllocationLedger:
    """Folded allocations. `writes` counts, by provider, the writes that named it: its generation grows with each."""

    def __init__(self) -> None:
        self.generation = 0  # of the newest lease under which a placement worker wrote
        self.consumers: dict[str, Consumer] = {}
        self.writes: dict[str, int] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.by_cluster: dict[str, set[str]] = {}  # consumers that hold something of a cluster's nodes

    def generation_of(self, consumer: str) -> int | None:
        found = self.consumers.get(consumer)
        return None if found is None else found.generation

    def apply(self, write: ConsumerWrite) -> None:
        new = write.consumer
        before = self.consumers.pop(new.uuid, None)
        for cluster in before.taken if before is not None else ():
            idents = self.by_cluster[cluster]
            idents.discard(new.uuid)
            if not idents:
                del self.by_cluster[cluster]
        if new.allocations:
            self._put(new)
        for provider in write.named:
            self.writes[provider] = self.writes.get(provider, 0) + 1

    def _put(self, consumer: Consumer) -> None:
        self.consumers[consumer.uuid] = consumer
        for cluster in consumer.taken:
            self.by_cluster.setdefault(cluster, set()).add(consumer.uuid)

    def record(self, seq: int) -> None:
        """Drops the exchanges up to a commit: they are in the providers' records."""
        self.exchanges = {provider: found for provider, found in self.exchanges.items() if found.seq > seq}

    def snapshot(self) -> AllocationSnapshot:
        return AllocationSnapshot(
            generation=self.generation,
            consumers=list(self.consumers.values()),
            writes=self.writes,
            exchanges={provider: tuple(found) for provider, found in self.exchanges.items()},  # type: ignore[misc]
        )

    @classmethod
    def of(cls, snapshot: AllocationSnapshot) -> AllocationLedger:
        found = cls()
        found.generation = snapshot.generation
        for consumer in snapshot.consumers:
            found._put(consumer)
        found.writes = dict(snapshot.writes)
        found.exchanges = {provider: Exchange(*exchange) for provider, exchange in snapshot.exchanges.items()}
        return found
