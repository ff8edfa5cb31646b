"""Numbers what the candidates of a tree take: cells of which several groups take, and parts of other trees that serve it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .forest import Forest


class Cells:
    """The amounts of which several choices may take, by number: the room of parts, and what else is taken with it."""

    def __init__(self, forest: Forest) -> None:
        self.room: list[int] = []
        self.numbers: dict[tuple[int, str], int] = {}
        self._forest = forest

    def taken(self, row: int, amounts: Iterable[tuple[str, int]]) -> tuple[tuple[int, int], ...]:
        """Returns what is taken of each cell where amounts are taken of a part."""
        needs: dict[int, int] = {}
        for name, amount in amounts:
            own = (row, name), self._forest.room(row, name), 1
            for key, have, units in own, *self._forest.pools(row, name):
                cell = self.numbers.get(key)
                if cell is None:
                    cell = self.numbers[key] = len(self.room)
                    self.room.append(have)
                needs[cell] = needs.get(cell, 0) + amount * units
        return tuple(needs.items())


class SharedParts:
    """Numbers for the parts that serve other trees: after all rows, and in the order of their trees, whatever rows these have."""

    def __init__(self, forest: Forest, rows: Iterable[int]) -> None:
        ascending = np.array(sorted(rows), np.int64)
        ordered = ascending[np.lexsort((ascending, forest.order[forest.root[ascending]]))]
        inside = ascending.searchsorted(forest.leave[ordered]) - ascending.searchsorted(ordered)
        numbers = forest.n + np.arange(len(ordered))
        self.number = dict(zip(ordered.tolist(), numbers.tolist(), strict=True))
        self.rows = dict(zip(numbers.tolist(), ordered.tolist(), strict=True))
        self.leave = dict(zip(numbers.tolist(), (numbers + inside).tolist(), strict=True))  # by number
