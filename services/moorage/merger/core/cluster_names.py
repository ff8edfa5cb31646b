"""Orders clusters by name and names some of them in messages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moorage.candidates import Mask
from moorage.fleet import Fleet

#: Clusters that a reason names.
SAMPLES = 5


class NameOrder:
    """Ranks clusters by name. They are sorted again only when clusters joined or left."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int] = (-1, -1, -1)
        self._ranks: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def ranks(self, fleet: Fleet) -> NDArray[np.int64]:
        key = (fleet.resets, fleet.membership, len(fleet.ids))
        if key != self._key:
            order = np.array(sorted(range(fleet.size), key=fleet.names.__getitem__), dtype=np.intp)
            ranks = np.empty(fleet.size, dtype=np.int64)
            ranks[order] = np.arange(fleet.size)
            self._key, self._ranks = key, ranks
        return self._ranks


def listed(fleet: Fleet, mask: Mask) -> str:
    names = fleet.clusters.named(mask, SAMPLES)
    more = int(np.count_nonzero(mask)) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
