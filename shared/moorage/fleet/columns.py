"""Memory for rows: arrays that grow together, and blocks of neighbouring rows, one block for each cluster. Rows of a
cluster stand side by side so that a change touches a few neighbouring bytes and no index of two million names is needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


def grown(old: NDArray[Any], length: int, fill: Any = 0) -> NDArray[Any]:
    new = np.empty(length, old.dtype)
    new[: len(old)] = old
    new[len(old) :] = fill
    return new


class Resource:
    """One resource of all rows. `claimed` is made when the first claim comes; only committers ever need it."""

    __slots__ = ("allocatable", "claimed", "free")

    def __init__(self, length: int) -> None:
        self.allocatable: NDArray[np.int64] = np.zeros(length, np.int64)
        self.free: NDArray[np.int64] = np.zeros(length, np.int64)
        self.claimed: NDArray[np.int64] | None = None

    def grow(self, length: int) -> None:
        self.allocatable = grown(self.allocatable, length)
        self.free = grown(self.free, length)
        if self.claimed is not None:
            self.claimed = grown(self.claimed, length)

    def requested(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        used: NDArray[np.int64] = self.allocatable[rows] - self.free[rows]
        if self.claimed is not None:
            used -= self.claimed[rows]
        return used

    def clear(self, rows: NDArray[np.intp]) -> None:
        self.allocatable[rows] = 0
        self.free[rows] = 0
        if self.claimed is not None:
            self.claimed[rows] = 0

    def move(self, old: slice, new: slice) -> None:
        for column in (self.allocatable, self.free, self.claimed):
            if column is not None:
                column[new] = column[old]
                column[old] = 0


class Blocks:
    """Hands out runs of rows with a little slack; freed ones are used again for the next block of that length."""

    __slots__ = ("_free", "top")

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}
        self.top = 0

    @staticmethod
    def length_for(rows: int) -> int:
        """An eighth of slack, rounded so that few lengths exist and a freed block finds its next user."""
        if rows == 0:
            return 0
        wanted = rows + rows // 8 + 1
        step = max(4, (1 << wanted.bit_length()) >> 4)
        return -(-wanted // step) * step

    def take(self, length: int) -> int:
        spare = self._free.get(length)
        if spare:
            return spare.pop()
        start = self.top
        self.top += length
        return start

    def give(self, start: int, length: int) -> None:
        if length:
            self._free.setdefault(length, []).append(start)


def spread(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.intp]:
    """The numbers of all runs [start, start + length) one after the other."""
    total = int(lengths.sum())
    if total == 0:
        return np.empty(0, np.intp)
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths).astype(np.intp) + np.arange(total, dtype=np.intp)


class RowColumns(NamedTuple):
    """What a patch says of its rows, decoded."""

    flags: NDArray[np.uint8]
    labels: NDArray[np.int32]
    taints: NDArray[np.int32]
    exclusive: NDArray[np.int64]
    resources: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]

    def pick(self, rows: NDArray[np.intp]) -> RowColumns:
        resources = {name: (a[rows], r[rows]) for name, (a, r) in self.resources.items()}
        return RowColumns(self.flags[rows], self.labels[rows], self.taints[rows], self.exclusive[rows], resources)


class Sums:
    """Of one resource, over the usable nodes of each cluster, right for what was stated up to `since`."""

    __slots__ = ("allocatable", "free", "since")

    def __init__(self, since: int, free: NDArray[np.int64], allocatable: NDArray[np.int64]) -> None:
        self.since, self.free, self.allocatable = since, free, allocatable
