"""Assigns dense ids to clusters, in blocks per provider and region, so that sets like "all of eu" are runs of bits.

An id is never used again for another cluster, so old decisions and caches cannot mean the wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.model.base import Model

FIRST_BLOCK, LARGEST_BLOCK = 16, 1024


class ClusterRecord(Model, kw_only=True):
    """The KV record of a cluster. An operator sets `labels` and `cordoned`. `block` is the block of ids that `id` is from,
    `generation` that of the inventory that assigned it; `told` has the event of the last change, its id and its cause."""

    id: int
    generation: int = 0
    block: tuple[int, int] = (0, 0)
    region: str = ""
    labels: dict[str, str] = {}
    cordoned: bool = False
    gone: bool = False
    joined_at: float = 0.0  # 0: by an inventory that did not record it
    told: list[str] = []


def changed_record(
    record: ClusterRecord, ident: str, cause: str, *, quiet: bool = False, **changes: Any
) -> ClusterRecord:
    """Returns the record with these changes and their event.

    A cluster that is gone, or whose first report is still awaited (`quiet`), has events only for joining and going.
    """
    after = msgspec.structs.replace(record, **changes)
    if after.gone != record.gone:
        event = "gone" if after.gone else "joined"
    elif after == record or after.gone or quiet:
        return after
    else:
        event = "edited"
    return msgspec.structs.replace(after, told=[event, ident, cause])


def clusters_with_taken_ids(records: Mapping[str, ClusterRecord]) -> list[str]:
    """Returns the clusters whose id belongs to another cluster.

    Their records were written so late that another inventory had assigned the id already, and nothing used it yet. The
    record of the newer inventory is valid.
    """
    holders: dict[int, str] = {}
    for name, record in records.items():
        holder = holders.setdefault(record.id, name)
        if records[holder].generation < record.generation:
            holders[record.id] = name
    return [name for name, record in records.items() if holders[record.id] != name]


class _Block:
    """A run of ids of a provider's region. `at` is the first one that is not known to be assigned."""

    __slots__ = ("at", "length", "start")

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length, self.at = start, length, start


class ClusterIds:
    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str], dict[int, _Block]] = {}
        self._used: dict[int, str] = {}  # id → cluster
        self._top = 0

    def belongs_to_other(self, cluster: str, number: int) -> bool:
        """Returns whether an id is assigned to another cluster."""
        return self._used.get(number, cluster) != cluster

    def learn(self, cluster: str, record: ClusterRecord) -> None:
        """Learns an assigned id. The rest of its block is still free for its region."""
        start, length = record.block
        self._used[record.id] = cluster
        provider = cluster.partition("/")[0]
        self._top = max(self._top, record.id + 1, start + length)
        if length:
            self._blocks.setdefault((provider, record.region), {}).setdefault(start, _Block(start, length))

    def next(self, cluster: str, region: str) -> ClusterRecord:
        """Assigns an unused id from the region's blocks; when they are full, a block twice as long is begun."""
        provider = cluster.partition("/")[0]
        blocks = self._blocks.setdefault((provider, region), {})
        for block in blocks.values():
            while block.at < block.start + block.length:
                number, block.at = block.at, block.at + 1
                if number not in self._used:
                    self._used[number] = cluster
                    return ClusterRecord(id=number, block=(block.start, block.length), region=region)
        largest = max((block.length for block in blocks.values()), default=0)
        length = min(max(largest * 2, FIRST_BLOCK), LARGEST_BLOCK)
        blocks[self._top] = _Block(self._top, length)
        self._top += length
        return self.next(cluster, region)
