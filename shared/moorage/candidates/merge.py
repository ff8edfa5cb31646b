"""All controllers' opinions become one question: who may go where, how many, how well, and what must not meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .cluster_sets import Mask, Scores
from .decode import CountedGroup, DecodedAnswer

#: Who else says how many clusters an app wants.
DOCUMENT = "the application"


@dataclass(slots=True)
class WeightedAnswer:
    """One controller that answered, with the weight operators gave it."""

    name: str
    weight: float
    opinion: DecodedAnswer


@dataclass(slots=True)
class CountMismatch:
    """Answers that cannot all be true: `counts` says who wants how many clusters for the app."""

    app: int
    counts: dict[str, int]


@dataclass(slots=True)
class PlacementProblem:
    """Per app: the clusters all allow, how many of them, the weighted mean of scores, and for each controller that
    counts, its groups. Per pair: where both do not fit, whether they must be apart or together, and what preference says."""

    replicas: list[int]
    masks: list[Mask]
    scores: list[Scores | None]
    groups: list[list[list[CountedGroup]]]
    conflicts: dict[tuple[int, int], Mask] = field(default_factory=dict)
    apart: set[tuple[int, int]] = field(default_factory=set)
    together: set[tuple[int, int]] = field(default_factory=set)
    bonus: dict[tuple[int, int], float] = field(default_factory=dict)  # for each cluster that both share
    count_mismatches: list[CountMismatch] = field(default_factory=list)
    scored: dict[int, float] = field(default_factory=dict)  # apps with scores: what share of all weight gave them
    left_out: dict[int, int] = field(default_factory=dict)  # apps that want "all": how many others refused


def merge(replicas: Sequence[int], base: Mask, voices: Sequence[WeightedAnswer]) -> PlacementProblem:
    """`base` are the clusters that are usable at all."""
    total = sum(v.weight for v in voices) or 1.0
    merged = PlacementProblem(replicas=list(replicas), masks=[], scores=[], groups=[])
    for app, wanted in enumerate(replicas):
        heard = [(v, v.opinion.apps[app]) for v in voices if app in v.opinion.apps]
        mask = base.copy()
        for _, said in heard:
            if said.allowed is not None:
                mask &= said.allowed
        scores: Scores | None = None
        for voice, said in heard:
            if said.scores is not None and voice.weight > 0:
                part = said.scores * (voice.weight / total)
                scores = part if scores is None else scores + part
                merged.scored[app] = merged.scored.get(app, 0.0) + voice.weight / total
        counts: dict[str, int] = {}
        groups: list[list[CountedGroup]] = []
        for voice, said in heard:
            if not said.groups:
                continue
            mine: list[CountedGroup] = []
            for group in said.groups:
                inside = group.mask & mask
                count = group.wanted
                if count == 0:  # every one of them that the others allow, but at least one
                    count = max(1, int(np.count_nonzero(inside)))
                    missing = int(np.count_nonzero(group.mask & base)) - int(np.count_nonzero(inside))
                    if missing:
                        merged.left_out[app] = merged.left_out.get(app, 0) + missing
                mine.append(CountedGroup(count, inside))
            counts[voice.name] = sum(g.wanted for g in mine)
            # One group binds by its number alone: its clusters are in the mask already.
            if len(mine) > 1:
                groups.append(mine)
        if counts and wanted:  # 0: as many as are selected
            counts[DOCUMENT] = wanted
        if len(set(counts.values())) > 1:
            merged.count_mismatches.append(CountMismatch(app, counts))
        merged.replicas[app] = next(iter(counts.values()), wanted)
        merged.masks.append(mask)
        merged.scores.append(scores)
        merged.groups.append(groups)
    for voice in voices:
        for pair, where in voice.opinion.conflicts.items():
            merged.conflicts[pair] = merged.conflicts[pair] | where if pair in merged.conflicts else where
        for rule in voice.opinion.rules:
            if rule.mandatory:
                (merged.apart if rule.apart else merged.together).add(rule.apps)
            else:
                smaller = max(1, min(merged.replicas[rule.apps[0]], merged.replicas[rule.apps[1]]))
                share = voice.weight / total / smaller
                merged.bonus[rule.apps] = merged.bonus.get(rule.apps, 0.0) + (-share if rule.apart else share)
    for (a, b), where in list(merged.conflicts.items()):
        if not np.any(where & merged.masks[a] & merged.masks[b]):
            del merged.conflicts[a, b]
    return merged


def disjoint_sets(merged: PlacementProblem) -> list[Mask]:
    """The sets in the form of lists that may be combined freely: where two apps do not fit together, or must be apart,
    each cluster stays with the app that has fewer others to choose from."""
    masks = [mask.copy() for mask in merged.masks]
    everywhere = np.ones(masks[0].size, dtype=np.bool_) if masks else np.zeros(0, dtype=np.bool_)
    pairs = dict(merged.conflicts)
    pairs.update(dict.fromkeys(merged.apart, everywhere))
    for (a, b), where in sorted(pairs.items(), key=lambda item: item[0]):
        shared = np.flatnonzero(where & masks[a] & masks[b])
        spare = [int(np.count_nonzero(masks[x])) - shared.size - merged.replicas[x] for x in (a, b)]
        for cluster in shared.tolist():
            winner, loser = (0, b) if spare[0] <= spare[1] else (1, a)
            spare[winner] += 1
            masks[loser][cluster] = False
    return masks
