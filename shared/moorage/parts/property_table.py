"""Keeps distinct sets of properties, and each property as a column over them, so that a selector is evaluated once per distinct
value and taken per row. A property that is unique, as a serial number is, costs selectors nothing that do not name it."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from moorage.classes import ClassIndex, Properties, Selector, identity
from moorage.collections import LruDict
from moorage.collections.blocks import grown
from moorage.model.part_reports import PropertyValue

from .interning import SetTable

Mask = NDArray[np.bool_]
#: Selectors whose answers are kept.
KEPT = 2048
_ALIKE = frozenset((bool, int, float, tuple))
#: Values up to which comparing is quicker than looking up.
FEW = 4


class PropertyColumn:
    """The distinct values of one property, and for each set the number of its value. Number 0 is a missing value."""

    __slots__ = ("_numbers", "of_set", "values")

    def __init__(self) -> None:
        self.values: list[PropertyValue | None] = [None]
        self._numbers: dict[object, int] = {}
        self.of_set: NDArray[np.int32] = np.empty(0, np.int32)

    def put(self, number: int, value: PropertyValue) -> None:
        if number >= len(self.of_set):
            self.of_set = grown(self.of_set, max(number + 1, 2 * len(self.of_set), 64))
        at = self._numbers.setdefault(value if type(value) is str else identity(value), len(self.values))
        if at == len(self.values):
            self.values.append(value)
        self.of_set[number] = at

    def take(self, held_by_value: Mask, first: int, count: int) -> Mask:
        """Returns an answer per value by set: of those from `first` to `count`."""
        stop = min(count, len(self.of_set))
        found = _taken(held_by_value, self.of_set[first:stop]) if first < stop else np.empty(0, np.bool_)
        if len(found) < count - first:
            found = np.concatenate([found, np.full(count - first - len(found), held_by_value[0])])
        return found


def _taken(held: Mask, numbers: NDArray[np.int32]) -> Mask:
    """Returns `held[numbers]`. Few values are compared, which is ten times as quick as looking them up."""
    few = np.flatnonzero(held)
    if len(few) <= FEW:
        found = np.zeros(len(numbers), np.bool_)
        for value in few.tolist():
            found |= numbers == value
        return found
    return np.take(held, numbers, mode="clip")  # numbers are in range; otherwise each is checked and converted


class PropertyTable(SetTable[tuple[str, PropertyValue]]):
    """Distinct sets of properties by number; number 0 is the empty set. Sets stay for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: dict[str, PropertyColumn] = {}
        self.diagnostics: Counter[str] = Counter()  # comparisons that could not hold, by code
        self._by_types: dict[tuple[Properties, object], int] = {(frozenset(), None): 0}
        self._selected: LruDict[Selector, Mask] = LruDict(KEPT)

    def _number(self, names: Properties) -> int:
        # `True == 1 == 1.0`, so their types are part of the key.
        alike = [(key, identity(value)) for key, value in names if type(value) in _ALIKE]
        types = frozenset(alike) if alike else None
        number = self._by_types.setdefault((names, types), len(self.sets))
        if number == len(self.sets):
            self.sets.append(names)
            for key, value in names:
                column = self.columns.get(key)
                if column is None:
                    column = self.columns[key] = PropertyColumn()
                column.put(number, value)
        return number

    def selected(self, selector: Selector) -> Mask:
        """Returns by number which sets a selector selects."""
        known = self._selected.use(selector)
        count = len(self.sets)
        if known is None or len(known) < count:
            first = 0 if known is None else len(known)
            more = self._evaluate(selector, first, count)
            known = more if known is None or not first else np.concatenate([known, more])
            known.flags.writeable = False
            self._selected[selector] = known
        return known

    def _evaluate(self, selector: Selector, first: int, count: int) -> Mask:
        index = ClassIndex({"": selector})
        answers: dict[str, list[Mask]] = {}
        for key, conditions in index.conditions.items():
            column = self.columns.get(key) or PropertyColumn()
            by_value = np.array([conditions.holding(value) for value in column.values])
            answers[key] = [column.take(held, first, count) for held in np.ascontiguousarray(by_value.T)]
        self.diagnostics += index.diagnostics
        found = np.zeros(count - first, np.bool_)
        for alternative in selector.alternatives:
            met: Mask | None = None
            for condition in alternative:
                conditions = index.conditions[condition.key]
                one = answers[condition.key][conditions.conditions.index(condition)]
                met = one if met is None else met & one
            if met is not None:
                found |= met
        return found
