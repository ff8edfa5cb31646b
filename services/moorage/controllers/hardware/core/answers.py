"""Where the hardware suffices: per app the clusters in which every object's pods have room, pairs of apps that fit there
alone but not together, and how much of the optional weight each cluster meets. Pure but for what it keeps per shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.candidates import pack
from moorage.fit import ConflictCache, Fit, FitCache, Mask, envelope
from moorage.fleet import BOUNDLESS, Fleet
from moorage.model.candidates import Answer, Ask, Conflict
from moorage.model.reasons import Reason, Warn
from moorage.model.shapes import EXCLUSIVE, OptionalNeed, Shape, ShapedApp
from moorage.sdk import Allowed, allow, deny
from moorage.sdk.answers import answer

from .refusals import RefusalReasons, together

NAME = "hpa"
#: Scores are fifteenths, rounded down, so that an answer has at most 16 levels.
LEVELS = 15
#: Larger groups would cost more than they tell: what is not reported as a conflict shows up in the joint assignment.
PAIRS = 28
#: Clusters that are looked at node by node for a conflict.
BROAD = 64

#: Fits where some node has no bound on exclusive cores, which is how nodes look that do not report them.
_SILENT = Shape(key="nodes that report no CPU manager", object="", resources={EXCLUSIVE: BOUNDLESS // 2})


class HardwareAnswers:
    """Answers asks over one fleet; shapes seen before cost almost nothing."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._rooms = FitCache(fleet)
        self._pairs = ConflictCache(fleet)
        self._answered_at = (-1, -1, -1)
        self._answered: dict[tuple[tuple[str, ...], ...], Answer] = {}

    def answer(self, ask: Ask) -> Answer:
        """Where many ask at once, many ask the same: as long as nothing changed, it is answered the same."""
        fleet = self._fleet
        if ask.explain or ask.held:
            return self._answer(ask)
        now = (fleet.tick, fleet.resets, fleet.size)
        if now != self._answered_at:
            self._answered_at = now
            self._answered.clear()
        key = tuple((app.name, *(shape.key for shape in app.shapes)) for app in ask.apps)
        known = self._answered.get(key)
        if known is None:
            known = self._answer(ask)
            if known.warnings or any(said.reasons for said in known.apps.values()):
                return known  # these name objects and needs, which other asks call otherwise
            self._answered[key] = known
        return msgspec.structs.replace(known)

    def _answer(self, ask: Ask) -> Answer:
        fleet = self._fleet
        if not any(app.shapes for app in ask.apps):
            return answer({app.name: deny() for app in ask.apps}, ask, fleet, NAME)
        said: dict[str, Allowed] = {}
        fitting: list[Mask] = []
        warnings: list[Warn] = []
        unsure = self._unsure(ask)
        for app in ask.apps:
            rooms = [self._rooms.get(shape) for shape in app.shapes]
            alone = np.logical_and.reduce([fleet.usable_clusters, *(room.fits for room in rooms)])
            torn = self._pair(app.shapes, (), alone & unsure) if len(app.shapes) > 1 else None
            fits = alone if torn is None else alone & ~torn
            # Where it runs already, unchanged, its room is its own, however full the cluster is.
            held = fleet.clusters.mask(ask.held.get(app.name, ())) & fleet.usable_clusters
            fits = fits | held
            reasons: list[Reason] = []
            if ask.explain or not fits.any():
                reasons = RefusalReasons(fleet, app).reasons(rooms, torn)
            said[app.name] = allow(fits, levels=_levels(fleet, app, rooms, fits), reasons=reasons)
            fitting.append(fits & ~held)  # nor does it stand against another app there
            warnings += self._exclusive(app, fits)
        whole = answer(said, ask, fleet, NAME)
        whole.warnings = warnings
        for (a, fits_a), (b, fits_b) in islice(combinations(zip(ask.apps, fitting, strict=True), 2), PAIRS):
            conflict = self._pair(a.shapes, b.shapes, fits_a & fits_b & unsure) if a.shapes and b.shapes else None
            if conflict is not None:
                whole.conflicts.append(Conflict(apps=(a.name, b.name), clusters=pack(conflict)))
                if ask.explain:
                    whole.apps[a.name].reasons.append(_apart(fleet, a, b, conflict))
        return whole

    def _unsure(self, ask: Ask) -> Mask:
        """Clusters that may be too small for all apps together; most have room to spare, and one look says so."""
        shapes = [shape for app in ask.apps for shape in app.shapes]
        everything = envelope(shapes) if len(shapes) > 1 else None
        return self._fleet.usable_clusters if everything is None else ~self._rooms.get(everything).fits

    def _pair(self, a: Sequence[Shape], b: Sequence[Shape], both: Mask) -> Mask | None:
        """Where both do not fit. With many clusters in question only what sums prove: the merger then has a choice, and
        a conflict that is not seen costs it a try."""
        if not both.any():
            return None
        found = self._short([*a, *b]) & both
        rest = both & ~found
        if 0 < np.count_nonzero(rest) <= BROAD:
            # What is kept is of the shapes alone; where this group runs, nothing stands against it.
            found |= self._pairs.get(a, b, rest) & rest
        return found if found.any() else None

    def _short(self, shapes: Sequence[Shape]) -> Mask:
        """Clusters whose free sums are less than what all these pods need."""
        wanted: dict[str, int] = {}
        for shape in shapes:
            for resource, need in () if shape.per_node else shape.resources.items():
                wanted[resource] = wanted.get(resource, 0) + need * shape.count
        short = np.zeros(self._fleet.size, np.bool_)
        for resource, need in wanted.items():
            if need > 0 and resource != EXCLUSIVE:  # nodes without a bound on exclusive cores have no sum of them
                short |= self._fleet.sums(resource)[0] < need
        return short

    def _exclusive(self, app: ShapedApp, fits: Mask) -> Iterable[Warn]:
        """Whole cores where nobody reports whether they are exclusive: a warning, not a refusal."""
        asking = [
            s.object
            for s in app.shapes
            if any(EXCLUSIVE in r for r in (s.resources, *(o.resources for o in s.optional)))
        ]
        silent = int(np.count_nonzero(self._rooms.get(_SILENT).fits & fits)) if asking else 0
        if silent:
            text = f"{silent} clusters that have room for {app.name} report no CPU manager"
            yield Warn(
                code="ExclusiveCoresUnknown",
                message=f"{text}; the whole cores of {', '.join(asking)} may not be exclusive there",
            )


def _levels(fleet: Fleet, app: ShapedApp, rooms: list[Fit], fits: Mask) -> list[tuple[float, Mask]]:
    """Optional weight met of optional weight asked."""
    wishes = [
        (shape, optional, where)
        for shape, room in zip(app.shapes, rooms, strict=True)
        for optional, where in zip(shape.optional, room.met, strict=True)
    ]
    asked = sum(optional.weight for _, optional, _ in wishes)
    if not asked or not fits.any():
        return []
    if len(wishes) == 1:  # met or not, without counting
        level = wishes[0][2] & fits
        return [(1.0, level)] if level.any() else []
    met = np.zeros(len(fits), np.int64)
    left = _Left(fleet, app) if len(app.shapes) > 1 else None
    for shape, optional, where in sorted(wishes, key=lambda wish: -wish[1].weight):
        met += optional.weight * (where if left is None else left.take(shape, optional, where))
    steps = np.where(fits, LEVELS * met // asked, 0)
    present = np.flatnonzero(np.bincount(steps, minlength=LEVELS + 1)).tolist()
    return [(step / LEVELS, steps == step) for step in present if step]


class _Left:
    """Sums per cluster of what an app's objects leave free: what one of them is granted the others cannot have."""

    def __init__(self, fleet: Fleet, app: ShapedApp) -> None:
        self._fleet, self._app = fleet, app
        self._free: dict[str, NDArray[np.int64]] = {}

    def _of(self, resource: str) -> NDArray[np.int64]:
        free = self._free.get(resource)
        if free is None:
            taken = sum(s.resources.get(resource, 0) * s.count for s in self._app.shapes if not s.per_node)
            free = self._free[resource] = self._fleet.sums(resource)[0] - taken
        return free

    def take(self, shape: Shape, optional: OptionalNeed, where: Mask) -> Mask:
        """`where`, without clusters that have too little left for it; of the others it is taken."""
        # Nodes without a bound on exclusive cores have no sum of them, and pods on every node no number.
        wanted = {} if shape.per_node else {r: n * shape.count for r, n in optional.resources.items() if r != EXCLUSIVE}
        for resource, need in wanted.items():
            where = where & (self._of(resource) >= need)
        for resource, need in wanted.items():
            self._of(resource)[where] -= need
        return where


def _apart(fleet: Fleet, a: ShapedApp, b: ShapedApp, where: Mask) -> Reason:
    message = f"{a.name} and {b.name} fit there alone, but not together"
    message, more = together(fleet, message, [*a.shapes, *b.shapes], where)
    return Reason(
        code="AppsConflict",
        message=message,
        app=a.name,
        clusters=int(np.count_nonzero(where)),
        samples=fleet.clusters.named(where, 5),
        by=NAME,
        **more,
    )
