"""Records of made providers and custom names, and the changes that an operation makes to them."""

from __future__ import annotations

from typing import NamedTuple

from moorage.model.allocations import Consumer, ConsumerWrite, InventoryRecord
from moorage.model.base import Value
from moorage.parts import Inventory


class Provider(Value, kw_only=True, frozen=True):
    """A made provider. `generation` counts the writes of this record; those of allocations are counted by the ledger."""

    uuid: str
    name: str
    parent: str | None = None
    generation: int = 0
    inventories: dict[str, InventoryRecord] = {}
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    created: float = 0
    updated: float = 0


class Addition(Value, kw_only=True, frozen=True):
    """Traits and aggregates that clients gave to a node or part of a cluster, CLUSTER/ID, besides those that are reported.
    `generation` counts the writes of this record."""

    uuid: str
    name: str
    generation: int = 0
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    updated: float = 0


def column(record: InventoryRecord) -> Inventory:
    return Inventory(
        record.total, record.reserved, record.min_unit, record.max_unit, record.step_size, record.allocation_ratio
    )


class Change(NamedTuple):
    """The writes of an operation: provider records and custom names (None deletes), and what consumers hold. `exchanges` are
    inventories that change together with that; their records are among `providers` too. `additions` are to nodes and parts."""

    providers: dict[str, Provider | None] = {}
    classes: dict[str, float | None] = {}
    traits: dict[str, float | None] = {}
    consumers: tuple[ConsumerWrite, ...] = ()
    exchanges: dict[str, dict[str, InventoryRecord]] = {}
    additions: dict[str, Addition | None] = {}

    @property
    def has_records(self) -> bool:
        return bool(self.providers or self.classes or self.traits or self.additions)

    @property
    def has_trees(self) -> bool:
        """Returns whether the rows of the forest change, or what conditions say of them."""
        return bool(self.providers or self.additions)

    @property
    def takes_nodes(self) -> bool:
        """Returns whether consumers hold something of nodes of clusters then."""
        return any(write.consumer.taken for write in self.consumers)


__all__ = ["Addition", "Change", "Consumer", "ConsumerWrite", "InventoryRecord", "Provider", "column"]
