"""Tells for many classes at once which of them select a device, and for one class which of many devices it selects.

Each distinct value of a property is compared once with all conditions on that property: values to compare with are sorted or
hashed by dimension, so that it costs no comparison per condition. A device's answer is then a few vector operations over the
conditions, whatever the number of classes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from moorage.collections import LruDict
from moorage.model.part_reports import PropertyValue, Scalar
from moorage.model.part_requests import PropertyCondition

from .conditions import NEGATED, NOT_ORDERED, ORDERS, OTHER_DIMENSION
from .selector import Selector
from .typed_values import ORDERED, Comparable, Dimension, identity, ordered_reading, reading, readings, scalars

Mask = NDArray[np.bool_]
#: Values of a property, and sets of values, whose answers are kept.
KEPT = 4096


class _Bounds:
    """The values with which the conditions with one operator compare in one dimension, in ascending order."""

    def __init__(self, found: Iterable[tuple[Comparable, int]]) -> None:
        ordered = sorted(found, key=lambda one: one[0])
        self.values: list[Comparable] = [value for value, _ in ordered]
        self.conditions = np.array([number for _, number in ordered], np.intp)

    def holding(self, operator: str, value: Comparable) -> NDArray[np.intp]:
        """Returns the conditions that the value meets."""
        if operator in ("Gt", "LtEq"):
            at = bisect_left(self.values, value)
        else:
            at = bisect_right(self.values, value)
        return self.conditions[:at] if operator in ("Gt", "GtEq") else self.conditions[at:]


class KeyConditions:
    """All conditions on one property, by number."""

    def __init__(self, conditions: Sequence[PropertyCondition], diagnostics: Counter[str]) -> None:
        self.conditions = conditions
        self._diagnostics = diagnostics
        self._negated = np.array([condition.operator in NEGATED for condition in conditions], np.bool_)
        conditions = [replace(one, operator=NEGATED.get(one.operator, one.operator)) for one in conditions]
        operators = [condition.operator for condition in conditions]
        self._not_in = np.array([operator == "NotIn" for operator in operators], np.bool_)
        self._always = self._not_in | np.array([operator == "Exists" for operator in operators], np.bool_)
        self.absent: Mask = self._not_in | np.array([operator == "DoesNotExist" for operator in operators], np.bool_)
        self.absent |= self._negated
        self._among: dict[tuple[Dimension, Comparable], list[int]] = {}
        self._bounds: dict[tuple[str, Dimension], _Bounds] = {}
        self._ordering = sum(operator in ORDERS for operator in operators)
        self._readable: dict[Dimension, int] = {}
        self._known: LruDict[object, Mask] = LruDict(KEPT)
        bounds: dict[tuple[str, Dimension], list[tuple[Comparable, int]]] = {}
        for number, condition in enumerate(conditions):
            if condition.operator in ("In", "Eq", "NotIn"):
                for text in condition.values:
                    for read in readings(text).items():
                        self._among.setdefault(read, []).append(number)
            elif condition.operator in ORDERS and len(condition.values) == 1:
                for dimension, found in readings(condition.values[0]).items():
                    if (bound := ordered_reading(dimension, found)) is not None:
                        bounds.setdefault((condition.operator, dimension), []).append((bound, number))
                        self._readable[dimension] = self._readable.get(dimension, 0) + 1
        for key, values in bounds.items():
            self._bounds[key] = _Bounds(values)

    def holding(self, value: PropertyValue | None) -> Mask:
        """Returns by number which conditions a value meets; None is a missing property."""
        if value is None:
            return self.absent
        key = identity(value)
        found = self._known.use(key)
        if found is None:
            elements = [self._of_scalar(one) for one in scalars(value)]
            found = (elements[0] if len(elements) == 1 else self._of_list(elements)) ^ self._negated
            self._known[key] = found
        return found

    def _of_list(self, elements: Sequence[Mask]) -> Mask:
        anywhere, everywhere = self._always.copy(), self._always.copy()
        for one in elements:
            anywhere |= one
            everywhere &= one
        return np.where(self._not_in, everywhere, anywhere)

    def _of_scalar(self, value: Scalar) -> Mask:
        held = self._always.copy()
        dimension, found = reading(value)
        for number in self._among.get((dimension, found), ()) if found is not None else ():
            held[number] = not self._not_in[number]
        bound = ordered_reading(dimension, found)
        compared = 0
        if bound is not None:
            compared = self._readable.get(dimension, 0)
            for operator in ORDERS:
                if (bounds := self._bounds.get((operator, dimension))) is not None:
                    held[bounds.holding(operator, bound)] = True
        if compared < self._ordering:
            self._diagnostics[OTHER_DIMENSION if dimension in ORDERED else NOT_ORDERED] += self._ordering - compared
        return held


class ClassIndex:
    """Selectors by name. `diagnostics` counts, by code, distinct comparisons that could not hold."""

    def __init__(self, selectors: Mapping[str, Selector]) -> None:
        self.names = list(selectors)
        self.diagnostics: Counter[str] = Counter()
        by_key: dict[str, dict[PropertyCondition, int]] = {}
        for selector in selectors.values():
            for alternative in selector.alternatives:
                for condition in alternative:
                    of_key = by_key.setdefault(condition.key, {})
                    of_key.setdefault(condition, len(of_key))
        self.keys = tuple(by_key)
        self.conditions = {key: KeyConditions(list(of_key), self.diagnostics) for key, of_key in by_key.items()}
        firsts, first = {}, 0
        for key, of_key in by_key.items():
            firsts[key] = first
            first += len(of_key)
        # Conditions of all alternatives, one after the other, and alternatives of all classes.
        numbers: list[int] = []
        starts: list[int] = []
        self._of_class: list[int] = []
        for at, selector in enumerate(selectors.values()):
            for alternative in selector.alternatives:
                starts.append(len(numbers))
                self._of_class.append(at)
                numbers.extend(firsts[one.key] + by_key[one.key][one] for one in alternative)
        self._numbers, self._starts = np.array(numbers, np.intp), np.array(starts, np.intp)
        self._classes = np.array(self._of_class, np.intp)
        self._known: LruDict[Hashable, Mask] = LruDict(KEPT)

    def selecting(self, device: Mapping[str, PropertyValue]) -> Mask:
        """Returns, in the order of `names`, which classes select a device with these properties."""
        key = tuple(None if (value := device.get(name)) is None else identity(value) for name in self.keys)
        found = self._known.use(key)
        if found is None:
            found = np.zeros(len(self.names), np.bool_)
            if self.keys:
                held = np.concatenate([self.conditions[name].holding(device.get(name)) for name in self.keys])
                found[self._classes[np.logical_and.reduceat(held[self._numbers], self._starts)]] = True
            found.flags.writeable = False
            self._known[key] = found
        return found
