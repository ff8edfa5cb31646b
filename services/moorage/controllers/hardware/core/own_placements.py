"""Computes for the clusters where an app runs already whether its pods have room there, the app's own room included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moorage.fit import Fit, Unassigned, grants_of
from moorage.parsing import format_amount
from moorage.sdk import Ask, Fleet, Mask, Placed, Reason, ShapedApp, assign_beside_own, wanted_on

from .actions import NAME
from .refusals import Refusal


class OwnPlacements:
    """`all`: the usable clusters with claims of the app where these matter; `fits`: those that have room for all its pods.
    `beside`: the clusters that fit its pods without its own room. Only optional needs depend on it there."""

    def __init__(self, fleet: Fleet, ask: Ask, app: ShapedApp, beside: Mask) -> None:
        self._fleet, self._app = fleet, app
        self.all, self.fits = np.zeros(fleet.size, np.bool_), np.zeros(fleet.size, np.bool_)
        self._found: dict[int, list[Placed] | Unassigned] = {}
        for cluster, claims in ask.own.get(app.name, {}).items():
            cid = fleet.ids.get(cluster)
            if cid is None or not fleet.usable_clusters[cid]:
                continue
            if beside[cid] and not any(shape.optional for shape in app.shapes):
                self.fits[cid] = True
                continue
            wanted = [wanted_on(ask.group, app.name, shape, cluster, claims) for shape in app.shapes]
            found = self._found[cid] = assign_beside_own(fleet, cid, wanted)
            self.all[cid] = True
            # A search that gave up does not say that it does not fit; the merger searches longer.
            self.fits[cid] = not isinstance(found, Unassigned) or found.code == "SearchBound"

    def __bool__(self) -> bool:
        return bool(self._found)

    def met(self, shape_fits: Sequence[Fit]) -> list[Fit]:
        """Returns the fits with the optional needs that the app is granted where it runs already."""
        result: list[Fit] = []
        for number, fit in enumerate(shape_fits):
            grants, further = fit.grants.copy(), fit.further.copy()
            for cid, found in self._found.items():
                if not isinstance(found, Unassigned) and (granted := found[number].met) is not None:
                    grants[cid], further[cid] = grants_of(self._app.shapes[number], granted)
            result.append(Fit(fit.fits, grants, further))
        return result

    def refusals(self, within: Mask) -> list[Refusal]:
        """Returns why the app does not fit where it runs already."""
        return [
            self._refusal(cid, found)
            for cid, found in self._found.items()
            if within[cid] and isinstance(found, Unassigned) and not self.fits[cid]
        ]

    def _refusal(self, cid: int, failure: Unassigned) -> Refusal:
        shape = self._app.shapes[failure.shape]
        cluster = self._fleet.names[cid]
        numbers: dict[str, str] = {}
        if failure.needed:
            numbers["needed"] = format_amount(failure.resource, failure.needed)
            numbers["free"] = format_amount(failure.resource, max(0, failure.best))
        reason = Reason(
            code=failure.code,
            message=failure.message
            or f"{cluster} has no room for the changed {shape.object}, its own room there included",
            app=self._app.name,
            consumer=shape.object,
            need=failure.resource,
            clusters=1,
            samples=[cluster],
            by=NAME,
            **numbers,
        )
        clusters = np.zeros(self._fleet.size, np.bool_)
        clusters[cid] = True
        return Refusal(reason, clusters)
