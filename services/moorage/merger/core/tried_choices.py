"""Keeps the choices of clusters that a proposal tries."""

from __future__ import annotations

from typing import NamedTuple

from moorage.candidates import Choice, ChoiceBasis, basis_of

#: Clusters per app that are kept of a choice beyond those that it takes.
RANKED = 4


class TriedChoice(NamedTuple):
    """A choice of clusters per app, those where the apps did not fit, and what it was made by."""

    clusters: list[list[int]]
    failed: list[int]
    basis: ChoiceBasis

    def ranked(self, app: int) -> list[tuple[int, int]]:
        """Returns the best clusters for an app, some more than it takes, with their values."""
        best = self.basis.ranked(app, len(self.clusters[app]) + RANKED)
        return list(zip(best.tolist(), self.basis.values[app][best].tolist(), strict=True))


class TriedChoices:
    """Keeps the choices that a proposal tries, in order."""

    def __init__(self) -> None:
        self.choices: list[TriedChoice] = []

    def add(self, chosen: Choice, failed: list[int]) -> None:
        self.choices.append(TriedChoice(chosen.clusters, failed, basis_of(chosen)))
