"""Interns sets of names, so that a condition is evaluated once per distinct set and taken per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
#: Conditions whose answers are kept. Requests repeat few of them.
KEPT = 256


class SetTable(Generic[T]):
    """Distinct sets, for example of names, by number. Number 0 is the empty set."""

    def __init__(self) -> None:
        self.sets: list[frozenset[T]] = [frozenset()]
        self._numbers: dict[frozenset[T], int] = {frozenset(): 0}
        self._answers: dict[object, NDArray[np.bool_]] = {}

    def number(self, names: Iterable[T]) -> int:
        found = frozenset(names)
        number = self._numbers.get(found)
        if number is None:
            number = self._numbers[found] = len(self.sets)
            self.sets.append(found)
        return number

    def where(self, key: object, condition: Callable[[frozenset[T]], bool]) -> NDArray[np.bool_]:
        """Returns the condition's answer for each set. `key` names the condition; answers are kept by it."""
        known = self._answers.pop(key, None)
        if known is None:
            known = np.empty(0, np.bool_)
        if len(known) < len(self.sets):
            more = np.fromiter((condition(s) for s in self.sets[len(known) :]), np.bool_, len(self.sets) - len(known))
            known = np.concatenate([known, more])
        while len(self._answers) >= KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = known
        return known
