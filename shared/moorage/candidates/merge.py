"""Merges the answers of all controllers into one placement problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from .cluster_sets import Mask, Ranks, Scores
from .decode import CountedGroup, DecodedAnswer, DecodedAppAnswer

#: Two apps, the lower number first.
Pair = tuple[int, int]

#: Names the application among the sources of an app's count.
APPLICATION = "the application"


@dataclass(slots=True)
class WeightedAnswer:
    """One controller's answer and the weight that operators gave the controller."""

    name: str
    weight: float
    answer: DecodedAnswer


@dataclass(slots=True)
class CountMismatch:
    """Sources that contradict each other: `counts` has the number of clusters that each wants for the app."""

    app: int
    counts: dict[str, int]


@dataclass(slots=True)
class PlacementProblem:
    """Per app: the clusters that all controllers allow, how many of them it takes, the weighted mean of its scores and,
    for each controller that counts, its groups. Per pair of apps: the clusters where both do not fit, whether they must be
    apart or together, and the bonus of sharing a cluster."""

    replicas: list[int]
    masks: list[Mask]
    scores: list[Scores | None]
    groups: list[list[list[CountedGroup]]]
    conflicts: dict[tuple[int, int], Mask] = field(default_factory=dict)
    apart: set[tuple[int, int]] = field(default_factory=set)
    together: set[tuple[int, int]] = field(default_factory=set)
    bonus: dict[tuple[int, int], float] = field(default_factory=dict)  # for each cluster that both share
    count_mismatches: list[CountMismatch] = field(default_factory=list)
    scored: dict[int, float] = field(
        default_factory=dict
    )  # per app with scores: the share of all weight that scored it
    every: dict[int, Mask] = field(default_factory=dict)  # per app: clusters of which each must take it
    left_out: dict[int, Mask] = field(default_factory=dict)  # per app: clusters that a partial set selects in vain
    partial: set[int] = field(default_factory=set)  # apps with one partial set and no other
    preferred: dict[int, Ranks] = field(default_factory=dict)  # per app: clusters by their choice of alternatives
    order: dict[int, Ranks] = field(default_factory=dict)  # per app: clusters where scores are equal

    def leave_out(self, app: int, cluster: int) -> bool:
        """Removes a cluster from the partial set of the app, but not its last one. Returns whether it did."""
        if not self.masks[app][cluster] or self.replicas[app] <= 1:
            return False
        self.masks[app][cluster] = False
        self.replicas[app] -= 1
        self.left_out[app][cluster] = True
        return True

    def only(self, apps: Sequence[int]) -> PlacementProblem:
        """Returns the problem of some of the apps, as if they were alone."""
        number = {app: at for at, app in enumerate(apps)}

        def of_pairs(pairs: Iterable[Pair]) -> dict[Pair, Pair]:
            return {(a, b): (number[a], number[b]) for a, b in pairs if a in number and b in number}

        return PlacementProblem(
            replicas=[self.replicas[app] for app in apps],
            masks=[self.masks[app] for app in apps],
            scores=[self.scores[app] for app in apps],
            groups=[self.groups[app] for app in apps],
            conflicts={new: self.conflicts[pair] for pair, new in of_pairs(self.conflicts).items()},
            apart=set(of_pairs(self.apart).values()),
            together=set(of_pairs(self.together).values()),
            bonus={new: self.bonus[pair] for pair, new in of_pairs(self.bonus).items()},
            preferred={number[app]: ranks for app, ranks in self.preferred.items() if app in number},
            order={number[app]: ranks for app, ranks in self.order.items() if app in number},
        )

    def excludes(self, apps: Collection[int], cluster: int) -> bool:
        """Returns whether two of the apps may not share the cluster."""
        pairs = list(combinations(sorted(apps), 2))
        return any(pair in self.apart or (pair in self.conflicts and self.conflicts[pair][cluster]) for pair in pairs)


def merge(
    replicas: Sequence[int], base: Mask, answers: Sequence[WeightedAnswer], known: Mask | None = None
) -> PlacementProblem:
    """Merges answers for apps with these replicas; `base` are the clusters that are usable at all, `known` those that
    exist."""
    merging = _Merging(replicas, base, base if known is None else known, answers)
    for app in range(len(replicas)):
        merging.add_app(app)
    for source in answers:
        merging.add_pairs(source)
    problem = merging.problem
    problem.conflicts = {
        (a, b): where
        for (a, b), where in problem.conflicts.items()
        if np.any(where & problem.masks[a] & problem.masks[b])
    }
    return problem


_AppAnswers = list[tuple[WeightedAnswer, DecodedAppAnswer]]


class _Merging:
    """A problem to which one app after the other is added, then what each controller says of pairs."""

    def __init__(self, replicas: Sequence[int], base: Mask, known: Mask, answers: Sequence[WeightedAnswer]) -> None:
        self.problem = PlacementProblem(replicas=list(replicas), masks=[], scores=[], groups=[])
        self._base, self._known, self._answers = base, known, answers
        self._total = sum(answer.weight for answer in answers) or 1.0

    def add_app(self, app: int) -> None:
        answers = [(a, a.answer.apps[app]) for a in self._answers if app in a.answer.apps]
        mask = self._base.copy()
        for _, answer in answers:
            if answer.allowed is not None:
                mask &= answer.allowed
            for ranks, of_app in ((answer.preferred, self.problem.preferred), (answer.order, self.problem.order)):
                if ranks is not None:
                    of_app[app] = np.maximum(ranks, of_app.get(app, 0))
        self.problem.masks.append(mask)
        self.problem.scores.append(self._scores(app, answers))
        self.problem.groups.append(self._groups(app, answers))

    def _scores(self, app: int, answers: _AppAnswers) -> Scores | None:
        """Returns the weighted mean of the app's scores; a controller without scores counts as 0."""
        problem = self.problem
        scores: Scores | None = None
        for source, answer in answers:
            if answer.scores is not None and source.weight > 0:
                share = source.weight / self._total
                scores = answer.scores * share if scores is None else scores + answer.scores * share
                problem.scored[app] = problem.scored.get(app, 0.0) + share
        return scores

    def _groups(self, app: int, answers: _AppAnswers) -> list[list[CountedGroup]]:
        """Returns the app's counted groups, and sets its replicas to the count that all sources agree on."""
        problem = self.problem
        replicas = problem.replicas[app]
        counts: dict[str, int] = {}
        groups: list[list[CountedGroup]] = []
        for source, answer in answers:
            if not answer.groups:
                continue
            counted = [self._counted(app, group) for group in answer.groups]
            counts[source.name] = sum(group.wanted for group in counted)
            # A single group binds by its number alone: its clusters are in the mask already.
            if len(counted) > 1:
                groups.append(counted)
            elif answer.groups[0].partial:
                problem.partial.add(app)
        if counts and replicas:  # 0 replicas: as many as are selected
            counts[APPLICATION] = replicas
        if len(set(counts.values())) > 1:
            problem.count_mismatches.append(CountMismatch(app, counts))
        problem.replicas[app] = next(iter(counts.values()), replicas)
        if groups or len(counts) > 1:
            problem.partial.discard(app)
        return groups

    def _counted(self, app: int, group: CountedGroup) -> CountedGroup:
        """Returns the group with the clusters that the app may use, and a number for one that means every cluster."""
        problem = self.problem
        allowed = group.mask & problem.masks[app]
        if group.wanted:
            return CountedGroup(group.wanted, allowed)
        selected, by_app = group.mask & self._known, problem.left_out if group.partial else problem.every
        vain = selected & ~allowed if group.partial else selected
        by_app[app] = by_app[app] | vain if app in by_app else vain
        return CountedGroup(max(1, int(np.count_nonzero(allowed if group.partial else selected))), allowed)

    def add_pairs(self, source: WeightedAnswer) -> None:
        """Adds one controller's conflicts and rules."""
        problem = self.problem
        for pair, where in source.answer.conflicts.items():
            problem.conflicts[pair] = problem.conflicts[pair] | where if pair in problem.conflicts else where
        for rule in source.answer.rules:
            if rule.mandatory:
                (problem.apart if rule.apart else problem.together).add(rule.apps)
            else:
                smaller = max(1, min(problem.replicas[rule.apps[0]], problem.replicas[rule.apps[1]]))
                share = source.weight / self._total / smaller
                problem.bonus[rule.apps] = problem.bonus.get(rule.apps, 0.0) + (-share if rule.apart else share)


def disjoint_sets(problem: PlacementProblem) -> list[Mask]:
    """Returns sets per app that may be combined freely: a cluster that two apps may not share, by conflict or rule, stays
    with the app that has fewer other clusters."""
    masks = [mask.copy() for mask in problem.masks]
    everywhere = np.ones(masks[0].size, dtype=np.bool_) if masks else np.zeros(0, dtype=np.bool_)
    pairs = dict(problem.conflicts)
    pairs.update(dict.fromkeys(problem.apart, everywhere))
    for (a, b), where in sorted(pairs.items(), key=lambda item: item[0]):
        shared = np.flatnonzero(where & masks[a] & masks[b])
        spare = [int(np.count_nonzero(masks[app])) - shared.size - problem.replicas[app] for app in (a, b)]
        for cluster in shared.tolist():
            winner, loser = (0, b) if spare[0] <= spare[1] else (1, a)
            spare[winner] += 1
            masks[loser][cluster] = False
    return masks
