"""Interns sets of names, so that a condition is evaluated once per distinct set and taken per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
#: Conditions whose answers are kept. Requests repeat few of them.
KEPT = 256


#: Sets that nothing has any more, and that are kept all the same: they often come back.
IDLE = 64


class SetTable(Generic[T]):
    """Distinct sets, for example of names, by number. Number 0 is the empty set.

    A number that `number` gave stays for ever. One that `acquire` gave as often as `release` took it back is given to another set
    once half of the sets are so."""

    def __init__(self) -> None:
        self.sets: list[frozenset[T]] = [frozenset()]
        self._numbers: dict[frozenset[T], int] = {frozenset(): 0}
        self._answers: dict[object, tuple[NDArray[np.bool_], Callable[[frozenset[T]], bool]]] = {}
        self._uses: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    def number(self, names: Iterable[T]) -> int:
        number = self._number(frozenset(names))
        self._uses.pop(number, None)
        self._idle.pop(number, None)
        return number

    def acquire(self, names: frozenset[T]) -> int:
        number = self._numbers.get(names)
        if number is None:
            number = self._number(names)
            self._uses[number] = 0
        if number in self._uses:
            self._uses[number] += 1
            self._idle.pop(number, None)
        return number

    def release(self, number: int) -> None:
        if number in self._uses:
            self._uses[number] -= 1
            if not self._uses[number]:
                self._idle[number] = None

    def _number(self, names: frozenset[T]) -> int:
        number = self._numbers.get(names)
        if number is not None:
            return number
        if len(self._idle) <= max(IDLE, len(self._uses) // 2):
            number = self._numbers[names] = len(self.sets)
            self.sets.append(names)
            return number
        number = next(iter(self._idle))  # the one that is idle for longest
        del self._idle[number], self._numbers[self.sets[number]]
        self._numbers[names] = number
        self.sets[number] = names
        for known, condition in self._answers.values():
            if number < len(known):
                known[number] = condition(names)
        return number

    def where(self, key: object, condition: Callable[[frozenset[T]], bool]) -> NDArray[np.bool_]:
        """Returns the condition's answer for each set. `key` names the condition; answers are kept by it."""
        kept = self._answers.pop(key, None)
        known = kept[0] if kept is not None else np.empty(0, np.bool_)
        if len(known) < len(self.sets):
            more = np.fromiter((condition(s) for s in self.sets[len(known) :]), np.bool_, len(self.sets) - len(known))
            known = np.concatenate([known, more])
        while len(self._answers) >= KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = known, condition
        return known
