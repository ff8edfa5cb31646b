"""What a controller says about an app: allowed or denied clusters, as a mask over the fleet or as plain names."""

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

Clusters = NDArray[np.bool_] | Iterable[str]


@dataclass(frozen=True, slots=True)
class Allowed:
    clusters: Clusters
    allowed: bool = True
    count: int | None = None
    levels: Sequence[tuple[float, Clusters]] = ()
    reasons: Sequence[Reason] = ()


def allow(
    clusters: Clusters,
    *,
    count: int | None = None,
    levels: Sequence[tuple[float, Clusters]] = (),
    reasons: Sequence[Reason] = (),
) -> Allowed:
    """Only these clusters. `levels` are scores from 0 to 1 with the clusters that have them, at most 16."""
    return Allowed(clusters, True, count, levels, reasons)


def deny(
    clusters: Clusters = (),
    *,
    count: int | None = None,
    levels: Sequence[tuple[float, Clusters]] = (),
    reasons: Sequence[Reason] = (),
) -> Allowed:
    """Every cluster but these; without arguments: no objection."""
    return Allowed(clusters, False, count, levels, reasons)


def _wire(clusters: Clusters) -> WireSet:
    if isinstance(clusters, np.ndarray):
        return pack(clusters)
    return sorted(clusters)


def _app(said: Allowed, fleet: Fleet, by: str) -> AppAnswer:
    clusters, allowed = said.clusters, said.allowed
    if isinstance(clusters, np.ndarray):
        count = np.count_nonzero(clusters)
        known = np.count_nonzero(fleet.known)
        if allowed and 2 * count > known:  # the other form is the shorter one
            clusters, allowed = fleet.known & ~clusters, False
    group = CandidateGroup(mode="allow" if allowed else "deny", clusters=_wire(clusters), count=said.count)
    levels = [Level(value=value, clusters=_wire(members)) for value, members in said.levels]
    reasons = [reason if reason.by else _signed(reason, by) for reason in said.reasons]
    return AppAnswer(groups=[group], levels=levels, reasons=reasons)


def _signed(reason: Reason, by: str) -> Reason:
    reason.by = by
    return reason


def answer(said: Mapping[str, Allowed] | Answer, ask: Ask, fleet: Fleet, by: str) -> Answer:
    """The wire form. Apps that were not asked about are a mistake of the controller's and said so."""
    if isinstance(said, Answer):
        said.epoch = said.epoch or str(fleet.epoch)
        return said
    asked = {app.name for app in ask.apps}
    if strangers := sorted(set(said) - asked):
        return Answer(error=f"answered for apps that were not asked about: {', '.join(strangers)}")
    apps = {name: _app(allowed, fleet, by) for name, allowed in said.items()}
    return Answer(apps=apps, epoch=str(fleet.epoch))
