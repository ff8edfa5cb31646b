"""Excludes the clusters whose nodes have room for the pods of an app, but no parts that serve them; prefers those where pods stay
within one zone. Pure, except for what it caches per shape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from moorage.fit import FitCache, Unassigned, asks_parts, assign, without_parts
from moorage.fit.device_counts import lacking_devices
from moorage.sdk import (
    Allowed,
    Answer,
    Ask,
    Conflict,
    Fleet,
    Mask,
    Reason,
    Shape,
    ShapedApp,
    allow,
    answer,
    deny,
    pack,
    unpack,
)

from .explanations import PartExplanations
from .zones import OnePodOneZone

NAME = "topology"
#: Clusters per ask that are checked node by node, for shapes or apps that fit alone but not together.
MAX_EXACT = 32
SAMPLES = 5


class TopologyAnswers:
    """Answers asks over one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._fits = FitCache(fleet)
        self._zones = OnePodOneZone(fleet, self._fits)

    def answer(self, ask: Ask) -> Answer:
        asking = {app.name: [s for s in app.shapes if s.count and asks_parts(s, self._fleet)] for app in ask.apps}
        results: dict[str, Allowed] = {}
        fits: dict[str, Mask] = {}
        checks = _Checks(self._fleet)
        for app in ask.apps:
            if not asking[app.name]:
                results[app.name] = deny()
                continue
            results[app.name], fits[app.name] = self._app(ask, app, asking[app.name], checks)
        found = answer(results, ask, self._fleet, NAME)
        found.conflicts = self._conflicts(ask, fits, checks)
        return found

    def _app(self, ask: Ask, app: ShapedApp, shapes: Sequence[Shape], checks: _Checks) -> tuple[Allowed, Mask]:
        """Returns the answer for an app, and the clusters that surely fit it."""
        fleet = self._fleet
        own = fleet.clusters.mask(ask.own.get(app.name, ())) | fleet.clusters.mask(ask.held.get(app.name, ()))
        outside = self._fits_of([without_parts(shape) for shape in app.shapes])
        inside = outside & self._fits_of(shapes)
        together = checks.fail(inside & ~own, app.shapes) if len(app.shapes) > 1 else None
        # Where the app runs already it has parts of its own; the joint assignment knows them.
        excluded = outside & ~inside & ~own
        reasons: list[tuple[Reason, Mask]] = []
        if ask.explain or not (inside | own).any():
            about = excluded & self._explained(ask, app)
            for shape in shapes:
                refused = about & ~self._fits.get(shape).fits
                refused &= ~lacking_devices(fleet, shape, refused)
                if refused.any():
                    reasons += PartExplanations(fleet, app.name, shape, refused).reasons()
        if together is not None:
            reasons.append((self._packing_fails(app, together), together))
            excluded, inside = excluded | together, inside & ~together
        levels = self._zones.levels(shapes, inside & ~excluded)
        allowed = allow(
            fleet.known & ~excluded,
            levels=levels,
            reasons=[reason for reason, _ in reasons],
            excluded=[clusters for _, clusters in reasons],
        )
        return allowed, inside & ~own

    def _fits_of(self, shapes: Sequence[Shape]) -> Mask:
        fits: Mask = self._fleet.usable_clusters.copy()
        for shape in shapes:
            fits &= self._fits.get(shape).fits
        return fits

    def _explained(self, ask: Ask, app: ShapedApp) -> Mask:
        """Returns the clusters that reasons about the app should count: those that other controllers leave."""
        within = ask.explain_within.get(app.name)
        known = self._fleet.known
        return known if within is None else known & unpack(within, self._fleet.ids, self._fleet.size)

    def _packing_fails(self, app: ShapedApp, clusters: Mask) -> Reason:
        objects = ", ".join(shape.object for shape in app.shapes)
        return Reason(
            code="PackingFails",
            message=f"{objects} fit there alone, but the parts of the nodes do not serve them together",
            app=app.name,
            clusters=int(np.count_nonzero(clusters)),
            samples=self._fleet.clusters.named(clusters, SAMPLES),
        )

    def _conflicts(self, ask: Ask, fits: dict[str, Mask], checks: _Checks) -> list[Conflict]:
        """Returns the pairs of apps that fit alone but not together. A conflict that is not found shows up in the joint
        assignment."""
        found: list[Conflict] = []
        for a, b in combinations([app for app in ask.apps if app.name in fits], 2):
            failing = checks.fail(fits[a.name] & fits[b.name], [*a.shapes, *b.shapes])
            if failing is not None:
                found.append(Conflict(apps=(a.name, b.name), clusters=pack(failing)))
        return found


class _Checks:
    """The exact checks of one ask, which are bounded."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._left = fleet, MAX_EXACT

    def fail(self, clusters: Mask, shapes: Sequence[Shape]) -> Mask | None:
        """Returns those of the clusters that do not take all these shapes; None if there are none, or too many to check."""
        numbers = np.flatnonzero(clusters).tolist()
        if not numbers or len(numbers) > self._left:
            return None
        self._left -= len(numbers)
        failing = np.zeros(len(clusters), np.bool_)
        for cid in numbers:
            found = assign(self._fleet, self._fleet.rows_of(cid), shapes)
            failing[cid] = isinstance(found, Unassigned) and found.code != "SearchBound"
        return failing if failing.any() else None
