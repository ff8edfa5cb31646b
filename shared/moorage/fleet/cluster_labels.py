"""The clusters of a fleet for authors of controllers: masks by label and provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moorage.collections import LruDict
from moorage.collections.blocks import grown

if TYPE_CHECKING:
    from .fleet import Fleet

#: Unused label sets that are tolerated before they are dropped.
FEW = 64


class Clusters:
    """The clusters by label and provider. Label sets are numbered, so a query looks at distinct sets, not at clusters."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._reset()

    def _reset(self) -> None:
        self._sets: list[dict[str, str]] = [{}]
        self._numbers: dict[tuple[tuple[str, str], ...], int] = {(): 0}
        self._labelset: NDArray[np.int32] = np.empty(0, np.int32)
        self._providers: dict[str, int] = {}
        self._provider: NDArray[np.int32] = np.empty(0, np.int32)
        self._having = LruDict[tuple[str, str | None], NDArray[np.bool_]](4096)

    def where(
        self, label: Mapping[str, str | None] | None = None, provider: str | Iterable[str] | None = None
    ) -> NDArray[np.bool_]:
        """Returns the clusters that have all these labels (None: any value) and one of the providers."""
        found = self._fleet.known.copy()
        labelset = self._labelset[: self._fleet.size]
        for key, value in (label or {}).items():
            found &= self._sets_having(key, value)[labelset]
        if provider is not None:
            wanted = {provider} if isinstance(provider, str) else set(provider)
            numbers = [self._providers[p] for p in wanted if p in self._providers]
            found &= np.isin(self._provider[: self._fleet.size], np.array(numbers, np.int32))
        return found

    def mask(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """Returns the clusters of these names; unknown names are ignored."""
        found = np.zeros(self._fleet.size, np.bool_)
        found[[self._fleet.ids[name] for name in names if name in self._fleet.ids]] = True
        return found

    def named(self, mask: NDArray[np.bool_], limit: int | None = None) -> list[str]:
        names = self._fleet.names
        return [names[cid] for cid in np.flatnonzero(mask)[:limit].tolist()]

    @property
    def usable(self) -> NDArray[np.bool_]:
        return self._fleet.usable_clusters.copy()

    @property
    def known(self) -> NDArray[np.bool_]:
        return self._fleet.known.copy()

    def labels(self, cid: int) -> dict[str, str]:
        return self._sets[int(self._labelset[cid])] if cid < len(self._labelset) else {}

    def _sets_having(self, key: str, value: str | None) -> NDArray[np.bool_]:
        known = self._having.get((key, value), np.empty(0, np.bool_))
        if len(known) < len(self._sets):
            more = [key in s if value is None else s.get(key) == value for s in self._sets[len(known) :]]
            known = np.concatenate([known, np.array(more, np.bool_)])
            self._having[key, value] = known
        return known

    # -- updated by the fleet --------------------------------------------------------------------------------------------

    def relabel(self, cid: int, name: str, labels: dict[str, str]) -> None:
        key = tuple(sorted(labels.items()))
        number = self._numbers.get(key)
        if number is None:
            if len(self._sets) > FEW + 2 * self._fleet.size:
                self._compact()
            number = self._numbers[key] = len(self._sets)
            self._sets.append(dict(labels))
        self._labelset[cid] = number
        self._provider[cid] = self._providers.setdefault(name.partition("/")[0], len(self._providers))

    def _compact(self) -> None:
        """Drops label sets that no cluster has any more; the numbers of the others change."""
        labelset = self._labelset[: self._fleet.size]
        used, numbers = np.unique(np.append(labelset, np.int32(0)), return_inverse=True)
        labelset[:] = numbers[:-1]
        self._sets = [self._sets[number] for number in used.tolist()]
        self._numbers = {tuple(sorted(one.items())): number for number, one in enumerate(self._sets)}
        self._having.clear()

    def grow(self, size: int) -> None:
        if size > len(self._labelset):
            length = max(size, len(self._labelset) * 3 // 2)
            self._labelset = grown(self._labelset, length)
            self._provider = grown(self._provider, length, -1)

    def adopt(self, other: Clusters) -> None:
        self._sets = other._sets
        self._numbers = other._numbers
        self._labelset = other._labelset
        self._providers = other._providers
        self._provider = other._provider
        self._having = other._having
