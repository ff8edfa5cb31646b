"""Dense numbers for clusters, handed out in blocks per provider and region, so that sets like "all of eu" are runs of
bits; never used again for another cluster, so that old decisions and caches can never mean the wrong one."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.model.base import Model

FIRST_BLOCK, LARGEST_BLOCK = 16, 1024


class ClusterRecord(Model, kw_only=True):
    """What stands in KV of one cluster. `labels` and `cordoned` are an operator's; `block` is where `id` came from; `told`:
    the event of the last change, its id and its cause."""

    id: int
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


class _Block:
    """One run of numbers of a provider's region; `at`: the first that was never handed out, as far as is known."""

    __slots__ = ("at", "length", "start")

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length, self.at = start, length, start


class Ids:
    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str], dict[int, _Block]] = {}
        self._used: set[int] = set()
        self._top = 0

    def learn(self, provider: str, record: ClusterRecord) -> None:
        """A number that was handed out before; the rest of its block is still free for its region."""
        start, length = record.block
        self._used.add(record.id)
        self._top = max(self._top, record.id + 1, start + length)
        if length:
            self._blocks.setdefault((provider, record.region), {}).setdefault(start, _Block(start, length))

    def next(self, provider: str, region: str) -> ClusterRecord:
        blocks = self._blocks.setdefault((provider, region), {})
        for block in blocks.values():
            while block.at < block.start + block.length:
                number, block.at = block.at, block.at + 1
                if number not in self._used:
                    self._used.add(number)
                    return ClusterRecord(id=number, block=(block.start, block.length), region=region)
        largest = max((block.length for block in blocks.values()), default=0)
        length = min(max(largest * 2, FIRST_BLOCK), LARGEST_BLOCK)
        blocks[self._top] = _Block(self._top, length)
        self._top += length
        return self.next(provider, region)
