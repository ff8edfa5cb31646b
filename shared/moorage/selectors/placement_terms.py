"""Placement terms over clusters: by label, name or provider, with allOf and anyOf inside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moorage.model.documents import Term

Mask = NDArray[np.bool_]


class LabelMasks(Protocol):
    def where(self, label: Mapping[str, str] | None = None, provider: str | None = None) -> Mask: ...


class ClusterView(Protocol):
    """What terms are evaluated against: dense cluster ids, and masks over them."""

    @property
    def size(self) -> int: ...

    @property
    def ids(self) -> Mapping[str, int]: ...

    @property
    def clusters(self) -> LabelMasks: ...


def _term(term: Term, view: ClusterView) -> Mask:
    """All fields that are given hold; a term without any selects nothing."""
    mask: Mask | None = None

    def narrow(other: Mask) -> None:
        nonlocal mask
        mask = other.copy() if mask is None else mask & other

    if term.label or term.provider:
        narrow(view.clusters.where(label=term.label or None, provider=term.provider or None))
    if term.cluster:
        named = np.zeros(view.size, np.bool_)
        found = view.ids.get(term.cluster)
        if found is not None and found < view.size:
            named[found] = True
        narrow(named)
    if term.any_of or term.all_of:
        narrow(select_clusters(term.all_of, term.any_of, view))
    return np.zeros(view.size, np.bool_) if mask is None else mask


def select_clusters(all_of: Sequence[Term], any_of: Sequence[Term], view: ClusterView) -> Mask:
    """All of `all_of` and, where there are any, one of `any_of`; neither = every cluster."""
    mask = np.ones(view.size, np.bool_)
    for term in all_of:
        mask &= _term(term, view)
    if any_of:
        some = np.zeros(view.size, np.bool_)
        for term in any_of:
            some |= _term(term, view)
        mask &= some
    return mask
