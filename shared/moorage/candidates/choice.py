"""Chooses clusters for the apps of a group: for each app its number of clusters, by stay, score, free share and name.

Up to MAX_APPS apps on 64 classes of clusters it is decided exactly whether a choice exists, with any number of replicas.
The choice is also proven optimal wherever branch and bound or the dynamic program is cheap, and `proven` tells. Where a
bound ends the search before any choice is found, `truncated` tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .branch_and_bound import BranchAndBound
from .cluster_sets import Mask
from .dynamic_program import DynamicProgram
from .feasibility import ClusterClasses
from .local_search import improve
from .lp_relaxation import Undecided
from .merge import PlacementProblem
from .objective import (
    INFEASIBLE,
    MAX_APPS,
    PREFERRED_BIT,
    SCORE_BIT,
    SCORE_STEPS,
    SHARE_STEPS,
    STAY_BIT,
    FailedPlacement,
    FreeCapacity,
    Objective,
    OwnRoom,
    Pools,
    Values,
    best_clusters,
)

__all__ = [
    "Choice",
    "ChoiceBasis",
    "FailedPlacement",
    "FreeCapacity",
    "NoChoice",
    "OwnRoom",
    "ValueParts",
    "basis_of",
    "choose",
    "value_parts",
]

#: Branch and bound is used up to this many replicas of all apps together; beyond, a heuristic choice is taken.
MAX_SEARCH_DEPTH = 64
#: Children that branch and bound examines before it gives up, about a microsecond each. The other searches are bounded in
#: proportion to it.
MAX_STEPS = 60_000
#: One step takes about as long as this many states of the dynamic program, or this part of a pivot.
_STATES_PER_STEP = 500
_STEPS_PER_PIVOT = 6
#: Steps of branch and bound before anything else is tried: enough where apps hardly compete.
_FIRST_STEPS = 100
#: Steps that take about as long as one transition of the dynamic program.
_STEPS_PER_TRANSITION = 10

_Clusters = list[list[int]]


@dataclass(slots=True)
class Choice:
    """`objective` and `pools` are what it was chosen by; see `basis_of`."""

    clusters: list[list[int]]  # per app, best first
    scores: list[float]  # per app, the mean over its clusters
    proven: bool = True  # no better one exists
    objective: Objective | None = field(default=None, repr=False, compare=False)
    pools: Pools = field(default_factory=dict, repr=False, compare=False)


@dataclass(slots=True)
class NoChoice:
    """`short`: apps with fewer feasible clusters than replicas, and how many they have. `truncated`: the search ended at its
    bound, so that a choice may exist."""

    short: dict[int, int] = field(default_factory=dict)
    truncated: bool = False


def choose(
    problem: PlacementProblem,
    capacity: FreeCapacity,
    name_ranks: NDArray[np.int64],
    *,
    current: Sequence[Mask | None] | None = None,
    own: Sequence[OwnRoom] | None = None,
    failed: Iterable[FailedPlacement] = (),
    steps: int = MAX_STEPS,
) -> Choice | NoChoice:
    """Chooses clusters. `name_ranks` orders clusters by name; `current`: per app, the clusters where it runs already, which
    are preferred; `own`: the room that it has where it runs; `failed`: placements that failed the joint
    fit."""
    apps = len(problem.masks)
    objective = Objective(problem, capacity, name_ranks, current or [None] * apps, own or [{}] * apps, failed)
    if problem.count_mismatches:
        return NoChoice()
    chosen = objective.independent_optimum()
    if chosen is None:
        have = [int(np.count_nonzero(objective.values(1 << a) > INFEASIBLE)) for a in range(apps)]
        short = {a: have[a] for a in range(apps) if have[a] < problem.replicas[a]}
        if short:
            return NoChoice(short=short)
    may_gain = problem.together or any(b > 0 for b in problem.bonus.values())
    if chosen is not None and not may_gain and _disjoint(chosen):
        choice = _choice(problem, chosen, proven=True)
        choice.objective = objective
        return choice
    pools = objective.candidate_pools()
    found = (_choose_jointly if apps <= MAX_APPS else _choose_bounded)(objective, pools, steps)
    if isinstance(found, Choice):
        found.objective, found.pools = objective, pools
    return found


class ChoiceBasis(NamedTuple):
    """The criteria of a choice: per app, the values of all clusters; the pools; and the ranks of the names."""

    values: list[Values]
    pools: Pools
    name_ranks: NDArray[np.int64]

    def ranked(self, app: int, count: int) -> NDArray[np.intp]:
        """Returns the app's best clusters, best first."""
        return best_clusters(self.values[app], count, self.name_ranks)


def basis_of(choice: Choice) -> ChoiceBasis:
    """Returns what `choose` made the choice by. It does not change later."""
    objective = choice.objective
    assert objective is not None, "only `choose` makes choices"
    values = [objective.values(1 << app) for app in range(objective.apps)]
    return ChoiceBasis(values, choice.pools, objective.name_ranks)


class ValueParts(NamedTuple):
    """The parts of a cluster's value for one app: whether the app runs there already, its score, and the tie value, which is
    the smallest share of a resource that stays free."""

    stays: bool
    score: float
    tie: float


def value_parts(value: int) -> ValueParts:
    stays, rest = divmod(value, 1 << STAY_BIT)
    score, tie = divmod(rest % (1 << PREFERRED_BIT), 1 << SCORE_BIT)
    return ValueParts(stays > 0, round(score / SCORE_STEPS, 6), round(tie / SHARE_STEPS, 6))


def _choose_jointly(objective: Objective, pools: Pools, steps: int) -> Choice | NoChoice:
    """Tries the exact methods, the cheapest first; where all are too expensive, improves any choice."""
    problem = objective.problem
    search = BranchAndBound(objective, pools)
    searchable = len(search.app_at) <= MAX_SEARCH_DEPTH
    if searchable:
        chosen = search.run(min(steps, _FIRST_STEPS))
        if chosen is not None or not search.truncated:
            return _proven(problem, chosen)
    program = DynamicProgram(objective, pools)
    countable = program.transitions * program.states <= steps * _STATES_PER_STEP
    if searchable:  # about as long as the dynamic program would take
        chosen = search.run(min(steps, program.transitions * _STEPS_PER_TRANSITION if countable else steps // 50))
        if chosen is not None or not search.truncated:
            return _proven(problem, chosen)
    if countable:
        best = program.best()
        if best is None or program.exact:
            return _proven(problem, best)
        starts: list[_Clusters | None] = [best]
    else:
        feasible = ClusterClasses(objective, pools).solve(steps // _STEPS_PER_PIVOT)
        if feasible is None:
            return NoChoice()
        starts = [search.greedy(), None if isinstance(feasible, Undecided) else feasible]
    if searchable:
        chosen = search.run(steps)
        if chosen is not None or not search.truncated:
            return _proven(problem, chosen)
    optima = [improve(objective, pools, start, steps) for start in starts if start is not None]
    if not optima:
        return NoChoice(truncated=True)
    return _choice(problem, max(optima, key=lambda optimum: optimum[0])[1], proven=False)


def _choose_bounded(objective: Objective, pools: Pools, steps: int) -> Choice | NoChoice:
    """Chooses for more than MAX_APPS apps, where pools exist for pairs of apps only: a choice that is found is valid, one
    that is not found may exist."""
    search = BranchAndBound(objective, pools)
    chosen: _Clusters | None = None
    searchable = len(search.app_at) <= MAX_SEARCH_DEPTH
    if searchable:
        chosen = search.run(steps)
    if chosen is None and (search.truncated or not searchable):
        chosen = search.greedy()
    return NoChoice(truncated=True) if chosen is None else _choice(objective.problem, chosen, proven=False)


def _proven(problem: PlacementProblem, chosen: _Clusters | None) -> Choice | NoChoice:
    return NoChoice() if chosen is None else _choice(problem, chosen, proven=True)


def _disjoint(chosen: _Clusters) -> bool:
    if len(chosen) == 1:
        return True
    clusters = [c for of_app in chosen for c in of_app]
    return len(set(clusters)) == len(clusters)


def _choice(problem: PlacementProblem, chosen: _Clusters, *, proven: bool) -> Choice:
    means = []
    for app, clusters in enumerate(chosen):
        scores = problem.scores[app]
        means.append(float(scores[clusters].mean()) if scores is not None and clusters else 0.0)
    return Choice(chosen, means, proven)
