"""Numbers the distinct states of rows of columns, so that equal rows are scored once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from moorage.collections import unique_rows

from .columns import DeviceColumns, Ints

#: States that no row has any more are forgotten once there are this many more than rows.
_IDLE = 4096


class RowStates:
    """A number for each row, equal for equal rows. Only rows that changed are looked at again."""

    def __init__(self, columns: DeviceColumns) -> None:
        self._columns = columns
        self._numbers: dict[bytes, int] = {}
        self._of_row: NDArray[np.intp] = np.empty(0, np.intp)
        self._changed: set[int] = set()
        self._number_all()

    def note_change(self, rows: Iterable[int]) -> None:
        self._changed.update(rows)

    def representatives(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Returns a row of each state that rows have, and for each row the position of its state among these."""
        self._renew()
        rows = np.full(len(self._numbers), -1, np.intp)
        rows[self._of_row] = np.arange(len(self._of_row))
        there = np.flatnonzero(rows >= 0)
        position = np.empty(len(rows), np.intp)
        position[there] = np.arange(len(there))
        return rows[there], position[self._of_row]

    def _renew(self) -> None:
        if len(self._numbers) > len(self._of_row) + _IDLE or 4 * len(self._changed) > len(self._of_row):
            self._number_all()
        elif self._changed:
            changed = np.array(sorted(self._changed), np.intp)
            for row, state in zip(changed.tolist(), self._states(changed), strict=True):
                self._of_row[row] = self._numbers.setdefault(state.tobytes(), len(self._numbers))
        self._changed.clear()

    def _number_all(self) -> None:
        states = self._states(np.arange(len(self._columns)))
        first, self._of_row = unique_rows(states)
        self._numbers = {state.tobytes(): number for number, state in enumerate(states[first])}

    def _states(self, rows: NDArray[np.intp]) -> Ints:
        columns = self._columns
        groups = [groups for groups in (columns.zones, columns.roots) if groups is not None]
        told_apart = [columns.free, columns.size, columns.beside_free, columns.beside_size, *groups]
        return np.column_stack([*(one[rows] for one in told_apart), columns.kinds[rows]])
