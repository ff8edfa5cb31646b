"""Leaves out of partial sets the clusters that cannot take their apps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moorage.candidates import Choice, FreeCapacity, OwnRoom, PlacementProblem, choose
from moorage.ledger import ExistingPlacement

from .assigner import Assigner


def leave_out_unfit(merged: PlacementProblem, assigner: Assigner) -> bool:
    """Leaves out of partial sets the clusters that cannot take their app. Returns whether there are any."""
    unfit = [
        (number, cid)
        for number in sorted(merged.partial)
        for cid in np.flatnonzero(merged.masks[number]).tolist()
        if not assigner.fits(cid, frozenset((number,)))
    ]
    return [merged.leave_out(number, cid) for number, cid in unfit].count(True) > 0


def choice_without_partial(
    merged: PlacementProblem,
    room: FreeCapacity,
    ranks: NDArray[np.int64],
    existing: ExistingPlacement,
    own: Sequence[OwnRoom],
    assigner: Assigner,
) -> dict[int, list[int]] | None:
    """Chooses clusters for the apps without a partial set, as if they were alone."""
    others = [app for app in range(len(merged.replicas)) if app not in merged.partial]
    if not merged.partial or not others:
        return {} if merged.partial else None
    numbers = {app: at for at, app in enumerate(others)}
    chosen = choose(
        merged.only(others),
        replace(room, needs=room.needs[others]),
        ranks,
        current=[existing.current[app] for app in others],
        own=[own[app] for app in others],
        failed=[
            (cid, frozenset(numbers[a] for a in apps)) for cid, apps in assigner.failures if apps <= numbers.keys()
        ],
    )
    return dict(zip(others, chosen.clusters, strict=True)) if isinstance(chosen, Choice) else None


def leave_room(merged: PlacementProblem, others: Mapping[int, Sequence[int]], assigner: Assigner) -> bool:
    """Leaves out of partial sets the clusters that their apps cannot share with those of this choice, or with each other.
    Returns whether there are any."""
    taken: dict[int, frozenset[int]] = {}
    for number, clusters in others.items():
        for cid in clusters:
            taken[cid] = taken.get(cid, frozenset()) | {number}
    found = False
    for number in sorted(merged.partial):
        for cid in np.flatnonzero(merged.masks[number]).tolist():
            apps = taken.get(cid, frozenset()) | {number}
            if merged.excludes(apps, cid) or not assigner.fits(cid, apps):
                # An app keeps one cluster; then another partial set leaves this one out.
                partial = (number, *sorted(apps & merged.partial - {number}))
                left = next((app for app in partial if merged.leave_out(app, cid)), None)
                found |= left is not None
                apps -= {number if left is None else left}
            taken[cid] = apps
    return found
