"""Evaluates placement terms over clusters: by label, name or provider, with nested allOf and anyOf."""

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
    """The part of a fleet that terms are evaluated against: dense cluster ids, and masks over them."""

    @property
    def size(self) -> int: ...

    @property
    def ids(self) -> Mapping[str, int]: ...

    @property
    def clusters(self) -> LabelMasks: ...


def _select_term(term: Term, view: ClusterView) -> Mask:
    """Returns the clusters for which all given fields hold; a term without fields selects nothing."""
    masks: list[Mask] = []
    if term.label or term.provider:
        masks.append(view.clusters.where(label=term.label or None, provider=term.provider or None))
    if term.cluster:
        named = np.zeros(view.size, np.bool_)
        cluster = view.ids.get(term.cluster)
        if cluster is not None and cluster < view.size:
            named[cluster] = True
        masks.append(named)
    if term.any_of or term.all_of:
        masks.append(select_clusters(term.all_of, term.any_of, view))
    if not masks:
        return np.zeros(view.size, np.bool_)
    selected: Mask = np.logical_and.reduce(masks)
    return selected


def select_clusters(all_of: Sequence[Term], any_of: Sequence[Term], view: ClusterView) -> Mask:
    """Returns the clusters that match all of `all_of` and, if given, any of `any_of`; every cluster where neither is
    given."""
    mask = np.ones(view.size, np.bool_)
    for term in all_of:
        mask &= _select_term(term, view)
    if any_of:
        mask &= np.logical_or.reduce([_select_term(term, view) for term in any_of])
    return mask
