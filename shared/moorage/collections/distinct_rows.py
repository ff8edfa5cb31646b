"""Finds the distinct rows of a matrix by hashes, which is much faster than sorting the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def unique_rows(matrix: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the positions of distinct rows, and for each row the number of the one that it equals."""
    first, inverse = _by_hash(matrix)
    if (matrix[first[inverse]] != matrix).any():  # equal hashes of different rows
        _, first, inverse = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def _by_hash(matrix: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    mixed = np.zeros(len(matrix), np.uint64)
    for column in matrix.T:
        mixed = (mixed ^ column.astype(np.uint64)) * _MIX
        mixed ^= mixed >> _SHIFT
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
