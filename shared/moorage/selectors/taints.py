"""Taints that keep pods away, and the tolerations that let them in, per distinct set of taints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint
from moorage.model.shapes import Toleration

_REPELS = ("NoSchedule", "NoExecute")
_KEEP = 4096


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def tolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> bool:
    """PreferNoSchedule repels nobody; every other taint needs a toleration."""
    return all(t.effect not in _REPELS or any(_tolerates(o, t) for o in tolerations) for t in taints)


class TaintIndex:
    """Answers tolerations over a growing list of taint sets, like `Labels`."""

    def __init__(self) -> None:
        self._sets: Sequence[tuple[Taint, ...]] = ()
        self._seen = 0
        self._last: tuple[Taint, ...] | None = None
        self._masks: dict[tuple[Toleration, ...], NDArray[np.bool_]] = {}

    def mask(self, sets: Sequence[tuple[Taint, ...]], tolerations: tuple[Toleration, ...]) -> NDArray[np.bool_]:
        """Per taint set, whether a pod with these tolerations may go there. Not to be written to."""
        seen = self._seen
        moved = sets is not self._sets or len(sets) < seen or (seen and sets[seen - 1] is not self._last)
        if moved or len(self._masks) > _KEEP:
            self._masks.clear()
        self._sets, self._seen, self._last = sets, len(sets), sets[-1] if sets else None
        known = self._masks.get(tolerations)
        if known is None or len(known) < len(sets):
            fresh = [tolerated(taints, tolerations) for taints in sets[0 if known is None else len(known) :]]
            known = np.array(fresh, np.bool_) if known is None else np.concatenate([known, np.array(fresh, np.bool_)])
            self._masks[tolerations] = known
        return known
