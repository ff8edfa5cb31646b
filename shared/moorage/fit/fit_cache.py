"""Caches the fit of shapes and recomputes only changed clusters, so most decisions never touch the node table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections import LruDict
from moorage.model.shapes import Shape

from .cluster_fit import Fit, changed_clusters, compute_fit, merged_fit, rows_of_clusters
from .protocols import Ids, Rows


class _Cached(NamedTuple):
    tick: int
    fit: Fit


class FitCache:
    """Fits by shape key. The least recently used entry is evicted beyond `max_entries`."""

    def __init__(self, rows: Rows, max_entries: int = 512) -> None:
        self._rows = rows
        self._entries = LruDict[str, _Cached](max_entries)
        self._changes: tuple[int, int, NDArray[np.int32] | None, Ids] = (-1, -1, None, np.empty(0, np.intp))

    def _changed(self, since: int) -> tuple[NDArray[np.int32] | None, Ids]:
        """The clusters changed since that tick, and their rows; (None, nothing) where too many changed. The last answer is
        cached, because most shapes were last computed at the same tick."""
        rows = self._rows
        if self._changes[:2] != (since, rows.tick):
            changed = changed_clusters(rows, since)
            ids = np.empty(0, np.intp) if changed is None else rows_of_clusters(rows, changed)
            self._changes = since, rows.tick, changed, ids
        return self._changes[2:]

    def get(self, shape: Shape) -> Fit:
        """Returns the fit of the shape on the rows as they are now; its masks are read-only."""
        rows, tick = self._rows, self._rows.tick
        cached = self._entries.use(shape.key)
        if cached is not None and cached.tick == tick and len(cached.fit.fits) == rows.size:
            return cached.fit
        changed, ids = (None, None) if cached is None else self._changed(cached.tick)
        if cached is None or changed is None:
            fit = compute_fit(rows, shape)
            for column in fit:
                column.setflags(write=False)
        else:
            fit = merged_fit(cached.fit, compute_fit(rows, shape, ids), changed)
        self._entries[shape.key] = _Cached(tick, fit)
        return fit
