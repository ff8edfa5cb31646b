"""Evaluates taints and tolerations, once per distinct set of taints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint
from moorage.model.shapes import Toleration

_REPELLING = ("NoSchedule", "NoExecute")
_MAX_CACHED = 4096


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Prefix":  # ours: all taints of one domain, which are added where pods are created
        return taint.key.startswith(toleration.key) and toleration.value in ("", taint.value)
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def tolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Returns whether every taint that repels pods is tolerated; PreferNoSchedule never repels."""
    return all(
        taint.effect not in _REPELLING or any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


class TaintIndex:
    """Evaluates tolerations over a growing list of taint sets, like `LabelIndex`."""

    def __init__(self) -> None:
        self._sets: Sequence[tuple[Taint, ...]] = ()
        self._seen = 0
        self._last: tuple[Taint, ...] | None = None
        self._masks: dict[tuple[Toleration, ...], NDArray[np.bool_]] = {}

    def mask(self, sets: Sequence[tuple[Taint, ...]], tolerations: tuple[Toleration, ...]) -> NDArray[np.bool_]:
        """Returns per taint set whether a pod with these tolerations may go there. Read-only."""
        seen = self._seen
        replaced = sets is not self._sets or len(sets) < seen or (seen and sets[seen - 1] is not self._last)
        if replaced or len(self._masks) > _MAX_CACHED:
            self._masks.clear()
        self._sets, self._seen, self._last = sets, len(sets), sets[-1] if sets else None
        mask = self._masks.get(tolerations, np.zeros(0, np.bool_))
        if len(mask) < len(sets) or tolerations not in self._masks:
            new = [tolerated(taints, tolerations) for taints in sets[len(mask) :]]
            mask = self._masks[tolerations] = np.concatenate([mask, np.array(new, np.bool_)])
        return mask
