"""The choice: for each app its number of clusters, by stay, score, room left and name, in this order.

Whether there is one is exact up to MAX_APPS apps on 64 classes of clusters, with any number of replicas; so is which one
is the best, wherever walking to it or counting it up is cheap, and `proven` says so. Where a bound ends the search for
any choice at all, that is said, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .branch_and_bound import BranchAndBound
from .cluster_sets import Mask
from .dynamic_program import DynamicProgram
from .feasibility import ClusterClasses
from .local_search import improve
from .lp_relaxation import Undecided
from .merge import PlacementProblem
from .objective import MAX_APPS, NEVER, FailedPlacement, FreeCapacity, Objective

__all__ = ["Choice", "FailedPlacement", "FreeCapacity", "NoChoice", "choose"]

#: The walk's length; beyond, what is found first counts.
MAX_PLACES = 64
#: Children that the walk looks at before it gives up (about a microsecond each); what else searches is bound by it, too.
STEPS = 60_000
#: One step's time is enough to add up so many states, or for this part of a pivot.
_STATES = 500
_PIVOT = 6
#: Steps of the walk before anything else is tried: where little is at odds it is there already.
_SOON = 100
#: It goes on for about as long as counting up would take, for each set at a cluster so many steps.
_MOVE = 10


@dataclass(slots=True)
class Choice:
    clusters: list[list[int]]  # per app, best first
    scores: list[float]  # per app, the mean over its clusters
    proven: bool = True  # no better one exists


@dataclass(slots=True)
class NoChoice:
    """`short`: apps with fewer clusters than replicas, and how many they have, room by sums included. `cut`: the search
    ended at its bound, there may be one."""

    short: dict[int, int] = field(default_factory=dict)
    cut: bool = False


def choose(
    merged: PlacementProblem,
    room: FreeCapacity,
    ranks: NDArray[np.int64],
    *,
    stay: Sequence[Mask | None] | None = None,
    held: Sequence[Mask | None] | None = None,
    nogoods: Iterable[FailedPlacement] = (),
    steps: int = STEPS,
) -> Choice | NoChoice:
    """`ranks` orders clusters by name; `stay` are the clusters where an app runs already, which come first; `held`
    those of them where it is unchanged and so needs no new room; `nogoods` failed the joint fit."""
    apps = len(merged.masks)
    worth = Objective(merged, room, ranks, stay or [None] * apps, held or [None] * apps, nogoods)
    if merged.count_mismatches:
        return NoChoice()
    chosen = worth.independent_optimum()
    if chosen is None:
        have = [int(np.count_nonzero(worth.values(1 << a) > NEVER)) for a in range(apps)]
        short = {a: have[a] for a in range(apps) if have[a] < merged.replicas[a]}
        if short:
            return NoChoice(short=short)
    if (
        chosen is not None
        and not merged.together
        and not any(b > 0 for b in merged.bonus.values())
        and _disjoint(chosen)
    ):
        return _choice(merged, chosen, proven=True)
    return _jointly(worth, steps)


def _jointly(worth: Objective, steps: int) -> Choice | NoChoice:
    merged = worth.merged
    sets = worth.candidate_pools()
    if worth.apps > MAX_APPS:
        return _bounded(worth, sets, steps)
    walk = BranchAndBound(worth, sets)
    walks = len(walk.steps) <= MAX_PLACES
    if walks:
        found = walk.run(min(steps, _SOON))
        if found is not None or not walk.cut:
            return _proven(merged, found)
    tally = DynamicProgram(worth, sets)
    counts = tally.moves * tally.states <= steps * _STATES
    if walks:
        found = walk.run(min(steps, tally.moves * _MOVE if counts else steps // 50))
        if found is not None or not walk.cut:
            return _proven(merged, found)
    starts: list[list[list[int]] | None]
    if counts:
        summed = tally.best()
        if summed is None or tally.exact:
            return _proven(merged, summed)
        starts = [summed]
    else:
        somewhere = ClusterClasses(worth, sets).solve(steps // _PIVOT)
        if somewhere is None:
            return NoChoice()
        starts = [walk.greedy(), None if isinstance(somewhere, Undecided) else somewhere]
    if walks:
        found = walk.run(steps)
        if found is not None or not walk.cut:
            return _proven(merged, found)
    ends = [improve(worth, sets, start, steps) for start in starts if start is not None]
    if not ends:
        return NoChoice(cut=True)
    return _choice(merged, max(ends, key=lambda end: end[0])[1], proven=False)


def _bounded(worth: Objective, sets: dict[int, NDArray[np.intp]], steps: int) -> Choice | NoChoice:
    """So many apps that only pairs of them have clusters of their own: what is found is valid, what is not may be there."""
    walk = BranchAndBound(worth, sets)
    found: list[list[int]] | None = None
    if len(walk.steps) <= MAX_PLACES:
        found = walk.run(steps)
    if found is None and (walk.cut or len(walk.steps) > MAX_PLACES):
        found = walk.greedy()
    return NoChoice(cut=True) if found is None else _choice(worth.merged, found, proven=False)


def _proven(merged: PlacementProblem, found: list[list[int]] | None) -> Choice | NoChoice:
    return NoChoice() if found is None else _choice(merged, found, proven=True)


def _disjoint(chosen: list[list[int]]) -> bool:
    if len(chosen) == 1:
        return True
    flat = [c for mine in chosen for c in mine]
    return len(set(flat)) == len(flat)


def _choice(merged: PlacementProblem, chosen: list[list[int]], *, proven: bool) -> Choice:
    means = []
    for app, clusters in enumerate(chosen):
        scores = merged.scores[app]
        means.append(float(scores[clusters].mean()) if scores is not None and clusters else 0.0)
    return Choice(chosen, means, proven)
