"""Computes in which clusters the hardware suffices: per app those that have room for the pods of every object, and pairs of
apps that fit there alone but not together. Pure, except for what it caches per shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, islice
from typing import NamedTuple

import msgspec
import numpy as np

from moorage.collections import LruDict
from moorage.fit import MAX_COMBINED, ConflictCache, FitCache, asks_parts, envelope, without_parts
from moorage.sdk import (
    BOUNDLESS,
    EXCLUSIVE,
    Allowed,
    Answer,
    Ask,
    Conflict,
    Fleet,
    Mask,
    Shape,
    ShapedApp,
    Warn,
    allow,
    answer,
    deny,
    pack,
    unpack,
)

from .actions import NAME
from .levels import levels
from .own_placements import OwnPlacements
from .refusals import Refusal, RefusalReasons, conflict_reason

#: Pairs of apps checked for conflicts. A conflict that is not reported shows up in the joint assignment, so checking more
#: pairs would cost more than it saves.
MAX_PAIRS = 28
#: Envelopes of the shapes of one ask that are cached.
MAX_ENVELOPES = 512
#: Clusters that are checked node by node for a conflict.
MAX_EXACT = 64

#: Fits where some node has no bound on exclusive cores, which is how nodes look that do not report them.
_UNREPORTED_CORES = Shape(key="nodes that report no CPU manager", object="", resources={EXCLUSIVE: BOUNDLESS // 2})


class _Computed(NamedTuple):
    """An answer, and per app the clusters that fit."""

    answer: Answer
    fits: list[Mask]


class HardwareAnswers:
    """Answers asks over one fleet. Fits are cached per shape, and whole answers until the fleet changes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._fits = FitCache(fleet)
        self._conflicts = ConflictCache(fleet)
        self._envelopes = LruDict[tuple[str, ...], Shape | None](MAX_ENVELOPES)  # by the keys of the shapes
        self._answered_at = (-1, -1, -1)
        self._answered: dict[tuple[tuple[str, ...], ...], _Computed] = {}

    def answer(self, ask: Ask) -> Answer:
        """Returns the cached answer to the same shapes if the fleet has not changed: of many asks at once, many are the
        same."""
        fleet = self._fleet
        if ask.explain or ask.held:
            return self._compute(ask).answer
        now = (fleet.tick, fleet.resets, fleet.size)
        if now != self._answered_at:
            self._answered_at = now
            self._answered.clear()
        # Warnings name objects, which the key of a shape leaves out.
        key = tuple((app.name, *(text for s in app.shapes for text in (s.key, s.object))) for app in ask.apps)
        cached = self._answered.get(key)
        if cached is not None and (not ask.own or self._needs_no_own_room(ask, cached)):
            return msgspec.structs.replace(cached.answer)
        computed = self._compute(ask)
        found = computed.answer
        plain = not ask.own or (len(ask.apps) == 1 and self._needs_no_own_room(ask, computed))
        # Reasons name consumers and needs, whose names may differ in another ask with the same shapes.
        if plain and not any(app.reasons for app in found.apps.values()):
            self._answered[key] = computed
        return msgspec.structs.replace(found)

    def _needs_no_own_room(self, ask: Ask, computed: _Computed) -> bool:
        """Returns whether the group's own room changes nothing: its pods fit beside those that it has."""
        if computed.answer.conflicts:
            return False
        return all(
            not any(shape.optional for shape in app.shapes)
            and all(cid is not None and fits[cid] for cid in map(self._fleet.ids.get, ask.own.get(app.name, ())))
            for app, fits in zip(ask.apps, computed.fits, strict=True)
        )

    def _compute(self, ask: Ask) -> _Computed:
        fleet = self._fleet
        if not any(app.shapes for app in ask.apps):
            found = answer({app.name: deny() for app in ask.apps}, ask, fleet, NAME)
            return _Computed(found, [fleet.known] * len(ask.apps))
        results: dict[str, Allowed] = {}
        all_fits: list[Mask] = []
        new_fits: list[Mask] = []
        warnings: list[Warn] = []
        uncertain = self._uncertain(ask)
        for app in ask.apps:
            # The controller `topology` answers for the inside of nodes. Here it only decides which optional needs are granted.
            shape_fits = [self._fits.get(without_parts(shape)) for shape in app.shapes]
            each_alone = fleet.usable_clusters
            for fit in shape_fits:
                each_alone = each_alone & fit.fits
            conflict = self._conflict(app.shapes, (), each_alone & uncertain) if len(app.shapes) > 1 else None
            fits = each_alone if conflict is None else each_alone & ~conflict
            # Where the app runs already its room is its own, however full the cluster is.
            if held := ask.held.get(app.name):
                fits = fits | (fleet.clusters.mask(held) & fleet.usable_clusters)
            own = OwnPlacements(fleet, ask, app, fits)
            if own:
                fits = (fits & ~own.all) | own.fits
                shape_fits = own.met(shape_fits)
            refusals: list[Refusal] = []
            if ask.explain or not fits.any():
                about = self._explained(ask, app)
                refusals = RefusalReasons(fleet, app, about & ~own.all).reasons(shape_fits, conflict)
                refusals += own.refusals(about)
            silent = self._fits.get(_UNREPORTED_CORES).fits if _asks_exclusive(app) else None
            inner_fits = [
                self._fits.get(shape) if shape.optional and asks_parts(shape, fleet) else fit
                for shape, fit in zip(app.shapes, shape_fits, strict=True)
            ]
            scores = levels(fleet, app, own.met(inner_fits) if own else inner_fits, fits, silent)
            results[app.name] = allow(
                fits, levels=scores, reasons=[r.reason for r in refusals], excluded=[r.clusters for r in refusals]
            )
            all_fits.append(fits)
            # On clusters where the app runs already, no other app conflicts with it.
            new_fits.append(fits & ~(fleet.clusters.mask(held or ()) | own.fits) if held or ask.own else fits)
            warnings += _not_combined(app)
        found = answer(results, ask, fleet, NAME)
        found.warnings = warnings
        for (a, fits_a), (b, fits_b) in islice(combinations(zip(ask.apps, new_fits, strict=True), 2), MAX_PAIRS):
            both = fits_a & fits_b & uncertain
            conflict = self._conflict(a.shapes, b.shapes, both) if a.shapes and b.shapes else None
            if conflict is not None:
                found.conflicts.append(Conflict(apps=(a.name, b.name), clusters=pack(conflict)))
                explained = conflict & self._explained(ask, a) & self._explained(ask, b)
                if ask.explain and explained.any():
                    found.apps[a.name].reasons.append(conflict_reason(fleet, a, b, explained))
        return _Computed(found, all_fits)

    def _explained(self, ask: Ask, app: ShapedApp) -> Mask:
        """Returns the clusters that reasons about the app should count: those that other controllers leave."""
        within = ask.explain_within.get(app.name)
        known = self._fleet.known
        return known if within is None else known & unpack(within, self._fleet.ids, self._fleet.size)

    def _uncertain(self, ask: Ask) -> Mask:
        """Returns the clusters that may be too small for all apps together. One check with the envelope of all shapes
        rules out most clusters."""
        shapes = [shape for app in ask.apps for shape in app.shapes]
        everything = self._envelope(shapes) if len(shapes) > 1 else None
        return self._fleet.usable_clusters if everything is None else ~self._fits.get(everything).fits

    def _envelope(self, shapes: Sequence[Shape]) -> Shape | None:
        key = tuple(shape.key for shape in shapes)
        if key not in self._envelopes:
            self._envelopes[key] = envelope(shapes)
        return self._envelopes.use(key)

    def _conflict(self, a: Sequence[Shape], b: Sequence[Shape], both: Mask) -> Mask | None:
        """Returns the clusters of `both` where a and b do not fit together, None if there are none. If many clusters are
        left, only those that the sums rule out: the merger then has a choice, and a missed conflict costs it one try."""
        if not both.any():
            return None
        found = self._short([*a, *b]) & both
        rest = both & ~found
        if 0 < np.count_nonzero(rest) <= MAX_EXACT:
            # The cache knows shapes only and may add clusters where this group runs already, hence the last `& rest`.
            found |= self._conflicts.get(a, b, rest) & rest
        return found if found.any() else None

    def _short(self, shapes: Sequence[Shape]) -> Mask:
        """Returns the clusters whose free sums are less than what all these pods need."""
        needs: dict[str, int] = {}
        for shape in shapes:
            for resource, need in () if shape.per_node else shape.resources.items():
                needs[resource] = needs.get(resource, 0) + need * shape.count
        short = np.zeros(self._fleet.size, np.bool_)
        for resource, need in needs.items():
            if need > 0 and resource != EXCLUSIVE:  # nodes without a bound on exclusive cores have no sum of them
                short |= self._fleet.sums(resource)[0] < need
        return short


def _not_combined(app: ShapedApp) -> Iterable[Warn]:
    needs = sum(len(shape.optional) for shape in app.shapes)
    if needs > MAX_COMBINED:
        message = (
            f"{app.name} has {needs} optional needs; the best combination of the {MAX_COMBINED} heaviest is granted, "
            "lighter ones where room is left"
        )
        yield Warn(code="OptionalNotCombined", message=message)


def _asks_exclusive(app: ShapedApp) -> bool:
    """Returns whether an object asks for exclusive cores."""
    return any(
        EXCLUSIVE in needs
        for shape in app.shapes
        for needs in (shape.resources, *(optional.resources for optional in shape.optional))
    )
