"""Distinct rows of matrices, found by hashes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from moorage.collections import distinct_rows, unique_rows


def check(matrix: NDArray[np.int64]) -> None:
    first, inverse = unique_rows(matrix)
    assert (matrix[first][inverse] == matrix).all()
    assert len(first) == len({tuple(row) for row in matrix.tolist()})


@pytest.mark.parametrize("columns", [0, 1, 5])
def test_distinct_rows_are_found_once(columns: int) -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        check(rng.integers(-2, 3, (int(rng.integers(0, 60)), columns)))


def test_different_rows_with_equal_hashes_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_equal(matrix: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return np.zeros(1, np.intp), np.zeros(len(matrix), np.intp)

    monkeypatch.setattr(distinct_rows, "_by_hash", all_equal)
    check(np.array([[1, 2], [1, 3], [1, 2], [0, 0]]))
