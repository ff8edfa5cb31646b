"""Memory for rows: arrays that grow, and blocks of neighbouring rows.

The rows of one owner are neighbours, so a change touches few memory pages, and no index of two million names is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def grown(old: NDArray[Any], length: int, fill: Any = 0) -> NDArray[Any]:
    new = np.empty(length, old.dtype)
    new[: len(old)] = old
    new[len(old) :] = fill
    return new


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
