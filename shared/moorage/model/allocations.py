"""Consumers of the Placement interface, what they hold, and the inventories of made providers."""

from __future__ import annotations

from .base import Value

MAX_INT = 0x7FFFFFFF
#: Stands for the node where consumers hold parts that several nodes reach: these stay theirs whichever nodes go.
IN_COMMON = ""


class InventoryRecord(Value, kw_only=True, frozen=True):
    """An amount of one class that a provider offers. `updated` is the time of its last write."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = MAX_INT
    step_size: int = 1
    allocation_ratio: float = 1.0
    updated: float = 0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.allocation_ratio)


class Consumer(Value, kw_only=True, frozen=True):
    """A consumer and all that it holds: amounts by provider and class. `generation` grows with each of its writes.

    Of the providers that are nodes and parts of clusters, `names` has the names, CLUSTER/ID, and `taken` what is held of them in
    the units of nodes: by cluster and node, what it takes of the node and of its parts (`resource_of_part`)."""

    uuid: str
    project: str
    user: str
    type: str | None = None
    generation: int
    allocations: dict[str, dict[str, int]] = {}
    updated: float = 0
    names: dict[str, str] = {}
    taken: dict[str, dict[str, dict[str, int]]] = {}


class ConsumerWrite(Value, kw_only=True, frozen=True):
    """Replaces what a consumer holds. `expected` is the generation that must stand, None for a new consumer; the generation of
    the providers in `named` grows."""

    consumer: Consumer
    expected: int | None = None
    named: tuple[str, ...] = ()
