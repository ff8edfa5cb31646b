"""Counts step by step how the requirements of an app narrow the fleet down, for `why`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moorage.candidates import Mask, WeightedAnswer
from moorage.fleet import Fleet
from moorage.fleet.delta import STALE
from moorage.model.attempts import Funnel, FunnelStep
from moorage.model.reasons import Reason

from .responses import ControllerResults, decoded_set, resized

#: Clusters that a step names.
SAMPLES = 3
_NAMES = {
    "PlacementExcludes": "placement",
    "ClusterStale": "not stale",
    "ClusterCordoned": "not cordoned",
    "NodesUnusable": "usable nodes",
    "CapacityShort": "all pods",
    "PackingFails": "packing",
    "SearchBound": "packing",
    "SurgeShort": "surge",
    "PodAntiAffinity": "anti-affinity",
    "PodAffinity": "affinity",
    "TopologySpread": "spread",
    "PodRulesFail": "pod rules",
    "ControllerExcludes": "",
}


class Shortfall(NamedTuple):
    """The merger's findings about apps that it could not place. Apps are numbers; `failed` has the clusters where the
    exact assignment of one app failed, with the reason, `short` the clusters that are left."""

    replicas: Sequence[int]
    failed: Mapping[int, Mapping[int, Reason]]
    short: Mapping[int, int]


def funnels(results: ControllerResults, fleet: Fleet, shortfall: Shortfall) -> dict[str, Funnel]:
    found: dict[str, Funnel] = {}
    for number, (app, needs) in enumerate(zip(results.replies.apps, shortfall.replicas, strict=True)):
        counter = _Counter(fleet)
        for exclusion in _exclusions(results, fleet, number, app):
            counter.exclude(*exclusion)
        for reason, mask in _failed(shortfall.failed.get(number, {}), fleet):
            counter.exclude(mask, reason, reason.by)
        left = shortfall.short.get(number)
        if left is not None and left < counter.left:
            counter.steps.append(
                FunnelStep(name="other apps", by="merger", excluded=counter.left - left, left=left, code="AppsConflict")
            )
        found[app] = Funnel(clusters=int(np.count_nonzero(fleet.known)), needs=needs, steps=counter.steps)
    return found


class _Counter:
    """The clusters that are left after each step."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._left = fleet.known.copy()
        self.steps: list[FunnelStep] = []

    @property
    def left(self) -> int:
        return int(np.count_nonzero(self._left))

    def exclude(self, mask: Mask, reason: Reason | None, by: str) -> None:
        """Adds a step, unless the steps before left none of these clusters."""
        excluded = self._left & mask
        if not (count := int(np.count_nonzero(excluded))):
            return
        self._left &= ~mask
        step = FunnelStep(
            name=_step_name(reason) if reason is not None else by,
            by=by,
            excluded=count,
            left=self.left,
            samples=self._fleet.clusters.named(excluded, SAMPLES),
            code="ControllerExcludes" if reason is None else reason.code,
        )
        if reason is not None:
            step.consumer, step.need, step.message = reason.consumer, reason.need, reason.message
            step.needed, step.free = reason.needed, reason.free
        self.steps.append(step)


def _step_name(reason: Reason) -> str:
    return _NAMES.get(reason.code, reason.need or reason.code) or reason.by or reason.code


def _exclusions(
    results: ControllerResults, fleet: Fleet, number: int, app: str
) -> Iterator[tuple[Mask, Reason | None, str]]:
    """Yields what each controller excludes, by reason where it tells the clusters of each: first the placement, then the
    clusters that take nothing at the moment, then the others."""
    steady = {controller.name for controller in results.replies.controllers if controller.steady}
    yield from _of_controllers([w for w in results.weighted if w.name in steady], results, fleet, number, app)
    stale = fleet.having_flag(STALE)
    yield stale, Reason(code="ClusterStale", by="merger"), "merger"
    yield fleet.known & ~fleet.usable_clusters, Reason(code="ClusterCordoned", by="merger"), "merger"
    yield from _of_controllers([w for w in results.weighted if w.name not in steady], results, fleet, number, app)


def _of_controllers(
    answers: Sequence[WeightedAnswer], results: ControllerResults, fleet: Fleet, number: int, app: str
) -> Iterator[tuple[Mask, Reason | None, str]]:
    refusing = [
        (weighted.name, ~resized(decoded.allowed, fleet.size))
        for weighted in answers
        if (decoded := weighted.answer.apps.get(number)) is not None and decoded.allowed is not None
    ]
    anywhere: Mask = np.zeros(fleet.size, np.bool_)
    for _, refused in refusing:
        anywhere |= refused
    rest: list[tuple[Mask, Reason | None, str]] = []
    for name, refused in refusing:
        answered = results.answers[name].apps.get(app)
        reasons = answered.reasons if answered is not None else []
        for index, wire in (answered.excluded if answered is not None else {}).items():
            if 0 <= index < len(reasons) and (mask := decoded_set(wire, fleet)) is not None:
                yield mask & anywhere, reasons[index], name
        # A single reason is about all that is refused.
        rest.append((refused, reasons[0] if len(reasons) == 1 else None, name))
    # These come last: another controller may have explained the same clusters.
    yield from rest


def _failed(failed: Mapping[int, Reason], fleet: Fleet) -> Iterator[tuple[Reason, Mask]]:
    """Yields the reasons of the merger's own assignment, each with its clusters."""
    masks: dict[tuple[str, str, str], tuple[Reason, Mask]] = {}
    for cid, reason in failed.items():
        key = (reason.code, reason.consumer, reason.need)
        _, mask = masks.setdefault(key, (reason, np.zeros(fleet.size, np.bool_)))
        mask[cid] = True
    yield from masks.values()
