"""Which rows a pod may go to at all: usable, selected by its terms, taints tolerated. Resources come after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from moorage.model.shapes import Requirement, Shape, Toleration
from moorage.selectors import LabelIndex, TaintIndex, requirement_matches
from moorage.selectors.labels import conjunction

from .protocols import Ids, Mask, NamedRows, Rows, Where

HOSTNAME = "kubernetes.io/hostname"
_NAME = "metadata.name"
#: So many rows are asked for their names one by one before the fleet is asked for the name.
_FEW = 64


class _Selectors:
    def __init__(self) -> None:
        self.labels = LabelIndex()
        self.taints = TaintIndex()


_selectors: WeakKeyDictionary[Rows, _Selectors] = WeakKeyDictionary()


def _of(rows: Rows) -> _Selectors:
    found = _selectors.get(rows)
    if found is None:
        found = _selectors[rows] = _Selectors()
    return found


def _ids(rows: Rows, where: Where) -> Ids:
    return np.arange(rows.n)[where] if isinstance(where, slice) else where


def _named(rows: Rows, requirement: Requirement, ids: Ids) -> Mask:
    """Per row, whether the node's own name meets the requirement."""
    if len(ids) > _FEW and requirement.operator in ("In", "NotIn") and isinstance(rows, NamedRows):
        found = [rows.rows_named(name) for name in requirement.values]
        mask = np.isin(ids, np.concatenate(found)) if found else np.zeros(len(ids), np.bool_)
        return mask if requirement.operator == "In" else ~mask
    return np.fromiter((requirement_matches(requirement, rows.node_name(int(row))) for row in ids), np.bool_, len(ids))


def _by_host(rows: Rows, requirement: Requirement, ids: Ids) -> Mask:
    """The hostname label is a flag where it equals the node's name, an entry of the label set elsewhere."""
    flagged = rows.host_label[ids]
    mask = _of(rows).labels.mask(rows.label_sets, (requirement,))[rows.labelset[ids]]
    mask[flagged] = _named(rows, requirement, ids[flagged])
    return mask


def matching_labels(rows: Rows, term: Sequence[Requirement], where: Where) -> Mask | None:
    """Per row of `where`, whether all requirements hold; None: on every row."""
    plain = tuple(r for r in term if r.key not in (HOSTNAME, _NAME))
    mask: Mask | None = None
    if plain or not term:
        by_set = _of(rows).labels.mask(rows.label_sets, plain)
        if not (len(by_set) and by_set.all()):
            mask = by_set.take(rows.labelset[: rows.n][where])
    if len(plain) == len(term):
        return mask
    ids = _ids(rows, where)
    for requirement in term:
        if requirement.key in (HOSTNAME, _NAME):
            named = (_named if requirement.key == _NAME else _by_host)(rows, requirement, ids)
            mask = named if mask is None else mask & named
    return mask


def selected_by_terms(rows: Rows, terms: Iterable[Sequence[Requirement]], where: Where) -> Mask | None:
    """Per row of `where`, whether any term holds; None: on every row (also when there are no terms)."""
    some: Mask | None = None
    for term in terms:
        mask = matching_labels(rows, term, where)
        if mask is None:
            return None
        some = mask if some is None else some | mask
    return some


def tolerated_rows(rows: Rows, tolerations: Sequence[Toleration], where: Where) -> Mask | None:
    """Per row of `where`, whether its taints let the pod in; None: on every row."""
    if len(rows.taint_sets) <= 1:  # the first is that of nodes without any
        return None
    by_set = _of(rows).taints.mask(rows.taint_sets, tuple(tolerations))
    return None if by_set.all() else by_set.take(rows.taintset[: rows.n][where])


def with_label(rows: Rows, label: tuple[str, str] | None, where: Where) -> Mask | None:
    """Per row of `where`, whether it has this label; None: every row, or no label is asked for."""
    return None if label is None else matching_labels(rows, conjunction((label,)), where)


def any_with_label(rows: Rows, label: tuple[str, str], where: Ids) -> bool:
    """Whether any row of `where` has this label."""
    mask = with_label(rows, label, where)
    return bool(len(where)) if mask is None else bool(mask.any())


def other_host(rows: Rows, row: int) -> str:
    """The hostname label of a node, where that is not its name."""
    return "" if rows.host_label[row] else rows.label_sets[rows.labelset[row]].get(HOSTNAME, "")


def admitted(rows: Rows, shape: Shape, mask: Mask, where: Where) -> Mask:
    """`mask` over `where`, narrowed in place to rows whose labels and taints let the shape's pods in."""
    if shape.terms:  # only asked of what is left: names of nodes are compared one by one
        at = mask.nonzero()[0]
        named = selected_by_terms(rows, shape.terms, at if isinstance(where, slice) else where[at])
        if named is not None:
            mask[at[~named]] = False
    kept = tolerated_rows(rows, shape.tolerations, where)
    if kept is not None:
        mask &= kept
    return mask


def eligible(rows: Rows, shape: Shape, where: Where) -> Mask:
    """Per row of `where`, whether the shape's pods may go there at all; a fresh array."""
    mask: Mask = rows.usable[: rows.n][where]
    if isinstance(where, slice):
        mask = mask.copy()
    for by in (selected_by_terms(rows, shape.terms, where), tolerated_rows(rows, shape.tolerations, where)):
        if by is not None:
            mask &= by
    return mask


def with_capacity(rows: Rows, resources: Mapping[str, int], mask: Mask, where: Where) -> Mask:
    """`mask`, narrowed in place to rows with that much of every resource free."""
    for resource, need in resources.items():
        if need > 0:
            free = rows.free(resource)
            if free is None:
                mask[:] = False
                break
            mask &= free[: rows.n][where] >= need
    return mask
