"""Memory for rows: arrays that grow together, and blocks of neighbouring rows, one for each cluster.

The rows of a cluster are neighbours, so a change touches few memory pages, and no index of two million names is needed.
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
    """The columns of a resource. `claimed` is allocated with the first claim; only committers need it."""

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
    """Allocates runs of rows with a little slack. A freed run is used again for the next block of its length."""

    __slots__ = ("_free", "top")

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}
        self.top = 0

    @staticmethod
    def length_for(rows: int) -> int:
        """Returns a block's length with an eighth of slack, rounded so that few lengths exist and freed blocks are reused."""
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
    """Returns the numbers of all runs [start, start + length), concatenated."""
    total = int(lengths.sum())
    if total == 0:
        return np.empty(0, np.intp)
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths).astype(np.intp) + np.arange(total, dtype=np.intp)


class RowColumns(NamedTuple):
    """The decoded columns of a patch's rows."""

    flags: NDArray[np.uint8]
    labels: NDArray[np.int32]
    taints: NDArray[np.int32]
    exclusive: NDArray[np.int64]
    resources: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]

    def pick(self, rows: NDArray[np.intp]) -> RowColumns:
        resources = {name: (a[rows], r[rows]) for name, (a, r) in self.resources.items()}
        return RowColumns(self.flags[rows], self.labels[rows], self.taints[rows], self.exclusive[rows], resources)


class Sums:
    """Sums of a resource over the usable nodes of each cluster, current up to the tick `since`."""

    __slots__ = ("allocatable", "free", "since")

    def __init__(self, since: int, free: NDArray[np.int64], allocatable: NDArray[np.int64]) -> None:
        self.since, self.free, self.allocatable = since, free, allocatable
