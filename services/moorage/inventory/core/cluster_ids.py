"""Dense numbers for clusters, handed out in blocks per provider and region, so that sets like "all of eu" are runs of
bits; never used again for another cluster, so that old decisions and caches can never mean the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.model.base import Model

FIRST_BLOCK, LARGEST_BLOCK = 16, 1024


class ClusterRecord(Model, kw_only=True):
    """What stands in KV of one cluster. `labels` and `cordoned` are an operator's; `block` is where `id` came from;
    `generation`: of the inventory that gave it; `told`: the event of the last change, its id and its cause."""

    id: int
    generation: int = 0
    block: tuple[int, int] = (0, 0)
    region: str = ""
    labels: dict[str, str] = {}
    cordoned: bool = False
    gone: bool = False
    told: list[str] = []


def changed(record: ClusterRecord, ident: str, cause: str, *, quiet: bool = False, **changes: Any) -> ClusterRecord:
    """The record with these changes and with what tells them. Of one that is gone, and of one of which nobody has heard
    yet (`quiet`), only coming and going is told."""
    after = msgspec.structs.replace(record, **changes)
    if after.gone != record.gone:
        event = "gone" if after.gone else "joined"
    elif after == record or after.gone or quiet:
        return after
    else:
        event = "edited"
    return msgspec.structs.replace(after, told=[event, ident, cause])


def later(records: Mapping[str, ClusterRecord]) -> list[str]:
    """Clusters whose number another cluster has: its record came so late that another inventory had given it away, and
    nobody ever heard it. The newer inventory's stands."""
    holders: dict[int, str] = {}
    for name, record in records.items():
        holder = holders.setdefault(record.id, name)
        if records[holder].generation < record.generation:
            holders[record.id] = name
    return [name for name, record in records.items() if holders[record.id] != name]


class _Block:
    """One run of numbers of a provider's region; `at`: the first that was never handed out, as far as is known."""

    __slots__ = ("at", "length", "start")

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length, self.at = start, length, start


class ClusterIds:
    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str], dict[int, _Block]] = {}
        self._used: dict[int, str] = {}  # to whom
        self._top = 0

    def others(self, cluster: str, number: int) -> bool:
        """Whether it was handed out to another cluster."""
        return self._used.get(number, cluster) != cluster

    def learn(self, cluster: str, record: ClusterRecord) -> None:
        """A number that was handed out before; the rest of its block is still free for its region."""
        start, length = record.block
        self._used[record.id] = cluster
        provider = cluster.partition("/")[0]
        self._top = max(self._top, record.id + 1, start + length)
        if length:
            self._blocks.setdefault((provider, record.region), {}).setdefault(start, _Block(start, length))

    def next(self, cluster: str, region: str) -> ClusterRecord:
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
