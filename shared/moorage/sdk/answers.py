"""Builds the answer of a controller from what it returns per app."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moorage.candidates import pack
from moorage.model.candidates import Answer, AppAnswer, Ask, CandidateGroup, Level, WireSet
from moorage.model.reasons import Reason

if TYPE_CHECKING:
    from moorage.fleet import Fleet

#: Clusters of all reasons of an app together. Of larger fleets, an answer says only how many a reason excludes.
MAX_EXCLUDED_BITS = 1 << 21
#: A mask over the clusters of the fleet, or names.
Clusters = NDArray[np.bool_] | Iterable[str]


@dataclass(frozen=True, slots=True)
class Allowed:
    """The clusters that a controller allows for one app, or all but these if `allowed` is false."""

    clusters: Clusters
    allowed: bool = True
    count: int | None = None
    levels: Sequence[tuple[float, Clusters]] = ()
    reasons: Sequence[Reason] = ()
    partial: bool = False
    excluded: Sequence[Clusters] = ()
    preferred: Sequence[Clusters] = ()
    order: Sequence[Clusters] = ()


def allow(
    clusters: Clusters,
    *,
    count: int | None = None,
    levels: Sequence[tuple[float, Clusters]] = (),
    reasons: Sequence[Reason] = (),
    partial: bool = False,
    excluded: Sequence[Clusters] = (),
    preferred: Sequence[Clusters] = (),
    order: Sequence[Clusters] = (),
) -> Allowed:
    """Allows these clusters only; with `count=0` the app runs on every one of them, or with `partial` on those that can take
    it. `levels` are at most 16 scores from 0 to 1 with the clusters that have them. `excluded` may have, for each reason, the
    clusters that it is about: `why` then shows each reason as a step. `preferred` are at most 7 sets that decide before scores, the
    best first; `order` at most 32 sets that decide where scores are equal, the best first."""
    return Allowed(clusters, True, count, levels, reasons, partial, excluded, preferred, order)


def deny(
    clusters: Clusters = (),
    *,
    count: int | None = None,
    levels: Sequence[tuple[float, Clusters]] = (),
    reasons: Sequence[Reason] = (),
    excluded: Sequence[Clusters] = (),
    preferred: Sequence[Clusters] = (),
    order: Sequence[Clusters] = (),
) -> Allowed:
    """Allows every cluster but these; without arguments, any cluster. The rest is as for `allow`."""
    return Allowed(clusters, False, count, levels, reasons, False, excluded, preferred, order)


def answer(result: Mapping[str, Allowed] | Answer, ask: Ask, fleet: Fleet, by: str) -> Answer:
    """Returns what is sent for the result of controller `by`. A controller may call it to add conflicts, rules or warnings
    and return the answer itself. Apps that were not asked about make it an error."""
    if isinstance(result, Answer):
        result.epoch = result.epoch or str(fleet.epoch)
        return result
    asked = {app.name for app in ask.apps}
    if unknown := sorted(set(result) - asked):
        return Answer(error=f"answered for apps that were not asked about: {', '.join(unknown)}")
    apps = {name: _app_answer(allowed, fleet, by) for name, allowed in result.items()}
    return Answer(apps=apps, epoch=str(fleet.epoch))


def _app_answer(result: Allowed, fleet: Fleet, by: str) -> AppAnswer:
    clusters, allowed = result.clusters, result.allowed
    if isinstance(clusters, np.ndarray):
        count = np.count_nonzero(clusters)
        known = np.count_nonzero(fleet.known)
        if allowed and 2 * count > known:  # naming the excluded clusters is shorter
            clusters, allowed = fleet.known & ~clusters, False
    group = CandidateGroup(
        mode="allow" if allowed else "deny", clusters=_wire(clusters), count=result.count, partial=result.partial
    )
    levels = [Level(value=value, clusters=_wire(members)) for value, members in result.levels]
    for reason in result.reasons:
        reason.by = reason.by or by
    sets = result.excluded if len(result.excluded) * fleet.size <= MAX_EXCLUDED_BITS else ()
    excluded = {number: _wire(members) for number, members in enumerate(sets)}
    return AppAnswer(
        groups=[group],
        levels=levels,
        reasons=list(result.reasons),
        excluded=excluded,
        preferred=list(map(_wire, result.preferred)),
        order=list(map(_wire, result.order)),
    )


def _wire(clusters: Clusters) -> WireSet:
    if isinstance(clusters, np.ndarray):
        return pack(clusters)
    return sorted(clusters)
