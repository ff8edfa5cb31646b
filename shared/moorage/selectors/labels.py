"""Node selector requirements as Kubernetes means them, over many label sets at once: a column of value numbers per key,
a small truth table per requirement. A fleet of millions of nodes has few distinct label sets and fewer values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import Requirement

#: ORed; each a conjunction. As Kubernetes has it, an empty conjunction selects nothing.
Terms = Sequence[Sequence[Requirement]]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_KEEP = 4096


def _integer(text: str) -> int | None:
    if _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


def requirement_matches(requirement: Requirement, value: str | None) -> bool:
    """Whether a label's value (None: there is no such label) meets the requirement."""
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
        have, bound = _integer(value), _integer(requirement.values[0])
        if have is None or bound is None:
            return False
        return have > bound if operator == "Gt" else have < bound
    return False


def term_matches(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    """One conjunction; empty ones hold for nothing."""
    return bool(requirements) and all(requirement_matches(r, labels.get(r.key)) for r in requirements)


def selector_matches(terms: Terms, labels: Mapping[str, str]) -> bool:
    """Any of the terms; no terms at all select everything."""
    return not terms or any(term_matches(term, labels) for term in terms)


class _Column:
    """One key's values over the label sets, as numbers; -1 = the set lacks the key."""

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
    """Answers requirements over a growing list of label sets. The list is append only within a generation; another list,
    or one that lost entries, starts anew."""

    def __init__(self) -> None:
        self._sets: Sequence[Mapping[str, str]] = ()
        self._last: Mapping[str, str] | None = None
        self._seen = 0
        self._columns: dict[str, _Column] = {}
        self._masks: dict[tuple[Requirement, ...], NDArray[np.bool_]] = {}

    def _follow(self, sets: Sequence[Mapping[str, str]]) -> None:
        seen = self._seen
        # Identity of the last known entry tells a list that was cleared and filled again.
        if sets is not self._sets or len(sets) < seen or (seen and sets[seen - 1] is not self._last):
            self._columns.clear()
            self._masks.clear()
        elif len(sets) != seen or len(self._masks) > _KEEP:
            self._masks.clear()
        else:
            return
        if len(self._columns) > _KEEP:
            self._columns.clear()
        self._sets, self._seen = sets, len(sets)
        self._last = sets[-1] if sets else None

    def mask(self, sets: Sequence[Mapping[str, str]], term: tuple[Requirement, ...]) -> NDArray[np.bool_]:
        """Per label set, whether all of `term` hold. Not to be written to."""
        self._follow(sets)
        found = self._masks.get(term)
        if found is not None:
            return found
        mask = np.full(len(sets), bool(term))
        for requirement in term:
            column = self._columns.get(requirement.key)
            if column is None:
                column = self._columns[requirement.key] = _Column(requirement.key)
            column.extend(sets)
            # The entry for "missing" is last, where the number -1 finds it.
            table = np.array([requirement_matches(requirement, v) for v in (*column.values, None)])
            mask &= table[column.codes]
        self._masks[term] = mask
        return mask


@lru_cache(4096)
def conjunction(items: tuple[tuple[str, str], ...]) -> tuple[Requirement, ...]:
    """The requirements that say these labels have these values."""
    return tuple(Requirement(key=key, operator="In", values=(value,)) for key, value in items)
