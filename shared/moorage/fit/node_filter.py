"""Filters the rows that a pod may go to: usable, selected by its terms, taints tolerated, enough of each resource free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import Requirement, Shape, Toleration
from moorage.selectors import LabelIndex, TaintIndex, requirement_matches
from moorage.selectors.labels import equals_all

from .protocols import Ids, Mask, NamedRows, Rows, Where

HOSTNAME = "kubernetes.io/hostname"
_NAME = "metadata.name"
#: The names of up to this many rows are compared one by one; for more, the fleet's name index is used.
_MAX_COMPARED = 64


class _Selectors:
    """The indexes of one fleet's label sets and taint sets."""

    def __init__(self) -> None:
        self.labels = LabelIndex()
        self.taints = TaintIndex()


_selectors: WeakKeyDictionary[Rows, _Selectors] = WeakKeyDictionary()


def _selectors_of(rows: Rows) -> _Selectors:
    rows = getattr(rows, "fleet", rows)  # rows with other amounts free have the labels and taints of their fleet
    found = _selectors.get(rows)
    if found is None:
        found = _selectors[rows] = _Selectors()
    return found


def _ids(rows: Rows, where: Where) -> Ids:
    return np.arange(rows.n)[where] if isinstance(where, slice) else where


def _match_node_name(rows: Rows, requirement: Requirement, ids: Ids) -> Mask:
    """Returns per row whether the node's own name meets the requirement."""
    if len(ids) > _MAX_COMPARED and requirement.operator in ("In", "NotIn") and isinstance(rows, NamedRows):
        found = [rows.rows_named(name) for name in requirement.values]
        mask = np.isin(ids, np.concatenate(found)) if found else np.zeros(len(ids), np.bool_)
        return mask if requirement.operator == "In" else ~mask
    return np.fromiter((requirement_matches(requirement, rows.node_name(int(row))) for row in ids), np.bool_, len(ids))


def _match_hostname(rows: Rows, requirement: Requirement, ids: Ids) -> Mask:
    """Returns per row whether its hostname label meets the requirement. The label is a flag where it equals the node's
    name and an entry of the label set elsewhere."""
    flagged = rows.host_label[ids]
    mask = _selectors_of(rows).labels.mask(rows.label_sets, (requirement,))[rows.labelset[ids]]
    mask[flagged] = _match_node_name(rows, requirement, ids[flagged])
    return mask


def matching_labels(rows: Rows, term: Sequence[Requirement], where: Where) -> Mask | None:
    """Returns per row of `where` whether all requirements hold; None: on every row."""
    plain = tuple(r for r in term if r.key not in (HOSTNAME, _NAME))
    mask: Mask | None = None
    if plain or not term:
        by_set = _selectors_of(rows).labels.mask(rows.label_sets, plain)
        if not (len(by_set) and by_set.all()):
            mask = by_set.take(rows.labelset[: rows.n][where])
    if len(plain) == len(term):
        return mask
    ids = _ids(rows, where)
    for requirement in term:
        if requirement.key in (HOSTNAME, _NAME):
            named = (_match_node_name if requirement.key == _NAME else _match_hostname)(rows, requirement, ids)
            mask = named if mask is None else mask & named
    return mask


def label_numbers(rows: Rows, key: str, ids: Ids) -> NDArray[np.intp]:
    """Per row of `ids`, a number for the value of this label; -1: the node lacks it."""
    numbers = _selectors_of(rows).labels.values(rows.label_sets, key)[rows.labelset[ids]].astype(np.intp)
    if key != HOSTNAME:
        return numbers
    flagged = rows.host_label[ids]
    if flagged.all() or not (numbers[~flagged] >= 0).any():
        numbers[flagged] = np.arange(np.count_nonzero(flagged))
        return numbers
    # A node may have another node's name for its hostname.
    names = [
        rows.node_name(row) if own else other_host(rows, row) for row, own in zip(ids.tolist(), flagged, strict=True)
    ]
    known = {name: number for number, name in enumerate(dict.fromkeys(filter(None, names)))}
    return np.array([known.get(name, -1) for name in names], np.intp)


def with_rule_labels(rows: Rows, shape: Shape, where: Where) -> Mask | None:
    """Per row of `where`, whether it has the labels by which the shape's affinity and spread rules go; None: no such rules."""
    term = tuple(Requirement(key=rule.key, operator="Exists") for rule in shape.rules if rule.kind != "apart")
    return matching_labels(rows, term, where) if term else None


def selected_by_terms(rows: Rows, terms: Iterable[Sequence[Requirement]], where: Where) -> Mask | None:
    """Returns per row of `where` whether any term holds; None: on every row (also when there are no terms)."""
    selected: Mask | None = None
    for term in terms:
        mask = matching_labels(rows, term, where)
        if mask is None:
            return None
        selected = mask if selected is None else selected | mask
    return selected


def tolerated_rows(rows: Rows, tolerations: Sequence[Toleration], where: Where) -> Mask | None:
    """Returns per row of `where` whether the pod tolerates its taints; None: on every row."""
    if len(rows.taint_sets) <= 1:  # the first set is that of nodes without taints
        return None
    by_set = _selectors_of(rows).taints.mask(rows.taint_sets, tuple(tolerations))
    return None if all(by_set.tolist()) else by_set.take(rows.taintset[: rows.n][where])


def with_label(rows: Rows, label: tuple[str, str] | None, where: Where) -> Mask | None:
    """Returns per row of `where` whether it has this label; None: every row has it, or no label is required."""
    return None if label is None else matching_labels(rows, equals_all((label,)), where)


def any_with_label(rows: Rows, label: tuple[str, str], where: Ids) -> bool:
    """Returns whether any row of `where` has this label."""
    mask = with_label(rows, label, where)
    return bool(len(where)) if mask is None else bool(mask.any())


def other_host(rows: Rows, row: int) -> str:
    """Returns the hostname label of a node where it differs from the node's name; else empty."""
    return "" if rows.host_label[row] else rows.label_sets[rows.labelset[row]].get(HOSTNAME, "")


def admitted(rows: Rows, shape: Shape, mask: Mask, where: Where) -> Mask:
    """Returns the rows of `mask` (over `where`) that pass the shape's terms and tolerations."""
    if shape.terms:  # evaluated for the rows in `mask` only, because node names are compared one by one
        at = mask.nonzero()[0]
        selected = selected_by_terms(rows, shape.terms, at if isinstance(where, slice) else where[at])
        if selected is not None:
            mask = mask.copy()
            mask[at[~selected]] = False
    for passed in (tolerated_rows(rows, shape.tolerations, where), with_rule_labels(rows, shape, where)):
        if passed is not None:
            mask = mask & passed
    return mask


def eligible(rows: Rows, shape: Shape, where: Where) -> Mask:
    """Returns per row of `where` whether it passes all filters of the shape but resources."""
    mask: Mask = rows.usable[: rows.n][where]
    for passed in (
        selected_by_terms(rows, shape.terms, where),
        tolerated_rows(rows, shape.tolerations, where),
        with_rule_labels(rows, shape, where),
    ):
        if passed is not None:
            mask = mask & passed
    return mask


def with_capacity(rows: Rows, resources: Mapping[str, int], mask: Mask, where: Where) -> Mask:
    """Returns the rows of `mask` (over `where`) with that much of every resource free."""
    for resource, need in resources.items():
        if need > 0:
            free = rows.free(resource)
            if free is None:
                return np.zeros(len(mask), np.bool_)
            mask = mask & (free[: rows.n][where] >= need)
    return mask
