"""Scores clusters by the shapes whose pods stay within one zone each: those that wish it, and those that a kubelet aligns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from moorage.fit import FitCache
from moorage.sdk import Fleet, Mask, OneZone, Shape


class OnePodOneZone:
    def __init__(self, fleet: Fleet, fits: FitCache) -> None:
        self._fleet, self._fits = fleet, fits

    def levels(self, shapes: Sequence[Shape], allowed: Mask) -> list[tuple[float, Mask]]:
        """Returns the scores above 0 with the allowed clusters that have them."""
        met = np.zeros(len(allowed), np.int64)
        total = 0
        for shape in shapes:
            within = self._within_zones(shape)
            if within is not None:
                met += within
                total += 1
        met[~allowed] = 0
        return [(value / total, met == value) for value in np.unique(met[met > 0]).tolist()] if total else []

    def _within_zones(self, shape: Shape) -> Mask | None:
        """Returns the clusters where each pod stays within a zone; None if that makes no difference to the shape."""
        wish = next((relation for relation in shape.relations if isinstance(relation, OneZone)), None)
        if wish is not None and wish.required:
            return None
        if wish is not None:
            return self._fits.get(_in_one_zone(shape)).fits
        if shape.groups or shape.relations:
            return None
        aligning = self._aligning_clusters()
        return ~aligning | self._fits.get(_in_one_zone(shape)).fits if aligning.any() else None

    def _aligning_clusters(self) -> Mask:
        """Returns the clusters with a node whose kubelet aligns pods with zones."""
        fleet = self._fleet
        clusters = np.zeros(fleet.size, np.bool_)
        if fleet.layout is None or not fleet.parts.layouts.any_aligns:
            return clusters
        aligns = fleet.parts.layouts.aligns
        clusters[fleet.cluster[: fleet.n][aligns[fleet.layout[: fleet.n]]]] = True
        return clusters


def _in_one_zone(shape: Shape) -> Shape:
    relations = [relation for relation in shape.relations if not isinstance(relation, OneZone)]
    return msgspec.structs.replace(shape, key=f"{shape.key} in one zone", relations=[*relations, OneZone()])
