"""Evaluates node selector requirements as Kubernetes does, over many label sets at once.

Each key has a column of value numbers, and each requirement a small truth table over them. A fleet of millions of nodes has
few distinct label sets and fewer values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import Requirement

#: ORed terms, each a conjunction of requirements. As in Kubernetes, an empty conjunction selects nothing.
Terms = Sequence[Sequence[Requirement]]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MAX_CACHED = 4096


def _parse_integer(text: str) -> int | None:
    if _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


def requirement_matches(requirement: Requirement, value: str | None) -> bool:
    """Returns whether a label's value (None: there is no such label) meets the requirement."""
    operator = requirement.operator
    if operator == "In":
        return value is not None and value in requirement.values
    if operator == "NotIn":
        return value is None or value not in requirement.values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator in ("Gt", "Lt") and value is not None and len(requirement.values) == 1:
        have, bound = _parse_integer(value), _parse_integer(requirement.values[0])
        if have is None or bound is None:
            return False
        return have > bound if operator == "Gt" else have < bound
    return False


def term_matches(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    """Returns whether all requirements hold; an empty term matches nothing."""
    return bool(requirements) and all(requirement_matches(r, labels.get(r.key)) for r in requirements)


class _Column:
    """The values of one key over the label sets, as numbers; -1: the set lacks the key."""

    __slots__ = ("codes", "key", "seen", "values")

    def __init__(self, key: str) -> None:
        self.key = key
        self.values: dict[str, int] = {}
        self.codes: NDArray[np.int32] = np.empty(0, np.int32)
        self.seen = 0

    def extend(self, sets: Sequence[Mapping[str, str]]) -> None:
        values, key = self.values, self.key
        if self.seen == len(sets):
            return
        fresh = np.empty(len(sets) - self.seen, np.int32)
        for i, labels in enumerate(sets[self.seen :]):
            value = labels.get(key)
            fresh[i] = -1 if value is None else values.setdefault(value, len(values))
        self.codes = np.concatenate([self.codes, fresh])
        self.seen = len(sets)


class LabelIndex:
    """Evaluates requirements over a growing list of label sets. The list is append-only within a generation; another list,
    or a list that lost entries, resets the index."""

    def __init__(self) -> None:
        self._sets: Sequence[Mapping[str, str]] = ()
        self._last: Mapping[str, str] | None = None
        self._seen = 0
        self._columns: dict[str, _Column] = {}
        self._masks: dict[tuple[Requirement, ...], NDArray[np.bool_]] = {}

    def _sync(self, sets: Sequence[Mapping[str, str]]) -> None:
        seen = self._seen
        # The identity of the last known entry reveals a list that was cleared and filled again.
        if sets is not self._sets or len(sets) < seen or (seen and sets[seen - 1] is not self._last):
            self._columns.clear()
            self._masks.clear()
        elif len(sets) != seen or len(self._masks) > _MAX_CACHED:
            self._masks.clear()
        else:
            return
        if len(self._columns) > _MAX_CACHED:
            self._columns.clear()
        self._sets, self._seen = sets, len(sets)
        self._last = sets[-1] if sets else None

    def values(self, sets: Sequence[Mapping[str, str]], key: str) -> NDArray[np.int32]:
        """Per label set, a number for the value of this label; -1: the set lacks it. Read-only."""
        self._sync(sets)
        return self._column(sets, key).codes

    def _column(self, sets: Sequence[Mapping[str, str]], key: str) -> _Column:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = _Column(key)
        column.extend(sets)
        return column

    def mask(self, sets: Sequence[Mapping[str, str]], term: tuple[Requirement, ...]) -> NDArray[np.bool_]:
        """Returns per label set whether all requirements of `term` hold. Read-only."""
        self._sync(sets)
        cached = self._masks.get(term)
        if cached is not None:
            return cached
        mask = np.full(len(sets), bool(term))
        for requirement in term:
            column = self._column(sets, requirement.key)
            # The entry for a missing key is last, so that the number -1 indexes it.
            table = np.array([requirement_matches(requirement, v) for v in (*column.values, None)])
            mask &= table[column.codes]
        self._masks[term] = mask
        return mask


@lru_cache(4096)
def equals_all(items: tuple[tuple[str, str], ...]) -> tuple[Requirement, ...]:
    """Returns the requirements that each of these labels has this value."""
    return tuple(Requirement(key=key, operator="In", values=(value,)) for key, value in items)
