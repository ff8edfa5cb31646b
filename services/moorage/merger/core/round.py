"""Orders the groups that are decided again in one round: the oldest first, so that it gets the room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet

from .wait_queue import Waiter, WaitQueue

Rows = Mapping[str, NDArray[np.intp]]  # group → rows of the fleet that may help it


class Round:
    """`forced` groups are decided whatever changed, others only while one of their rows still has room."""

    def __init__(self, queue: WaitQueue, forced: Iterable[str], rows: Rows) -> None:
        self._queue = queue
        self.forced = set(forced)
        self.rows = dict(rows)
        self.order: list[str] = []  # the oldest last

    def add(self, rows: Rows) -> None:
        """Adds groups, or further rows of those that are there."""
        unions: dict[tuple[int, int], NDArray[np.intp]] = {}  # many groups share their arrays
        for group, more in rows.items():
            known = self.rows.get(group)
            if known is None:
                self.rows[group] = more
                continue
            arrays = (id(more), id(known))
            if arrays not in unions:
                unions[arrays] = np.union1d(more, known)
            self.rows[group] = unions[arrays]
        self.order = self._queue.oldest_first(self.forced | self.rows.keys())
        self.order.reverse()

    def pop(self, fleet: Fleet) -> Waiter | None:
        """Takes the oldest group out of the round. Returns None if there is no reason left to decide it."""
        group = self.order.pop()
        rows = self.rows.pop(group, None)
        forced = group in self.forced
        self.forced.discard(group)
        if forced or (rows is not None and self._queue.still_helped(fleet, group, rows)):
            return self._queue.groups.get(group)
        return None
