"""Prefers the clusters that can give the first of the alternatives of needs for devices, and orders clusters by how well the algorithm
likes their best node. Pure, except for what it caches per shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product

import msgspec
import numpy as np

from moorage.device_algorithms import DEFAULT
from moorage.fit import FitCache
from moorage.fit.device_rows import DeviceRows, best_clusters_first
from moorage.model.candidates import MAX_ORDER, MAX_PREFERRED
from moorage.model.claims import Decision
from moorage.sdk import Allowed, Answer, Ask, Fleet, Mask, Shape, ShapedApp, allow, answer, deny, unpack

from .explanations import device_reasons

NAME = "resource-class"


class ClassAnswers:
    """Answers asks over one fleet. `algorithm` chooses devices for needs that name none."""

    def __init__(self, fleet: Fleet, algorithm: str = DEFAULT) -> None:
        self._fleet, self.algorithm = fleet, algorithm
        self._fits = FitCache(fleet)
        self._devices = DeviceRows(fleet)

    def learn_again(self, standing: Iterable[Decision]) -> None:
        """Learns what decisions were asked for, the newest of which come first."""
        self._devices.learn_again(standing)

    def answer(self, ask: Ask) -> Answer:
        results: dict[str, Allowed] = {}
        for app in ask.apps:
            shapes = [shape for shape in app.shapes if any(group.devices for group in shape.groups)]
            results[app.name] = self._app(ask, app, shapes) if shapes else deny()
            for shape in shapes:
                self._devices.record(shape, (ask.group, ask.revision, app.name, shape.object))
        return answer(results, ask, self._fleet, NAME)

    def _app(self, ask: Ask, app: ShapedApp, shapes: Sequence[Shape]) -> Allowed:
        fleet = self._fleet
        reasons = []
        if ask.explain:
            own = fleet.clusters.mask(ask.own.get(app.name, ())) | fleet.clusters.mask(ask.held.get(app.name, ()))
            about = self._explained(ask, app) & ~own
            reasons = [found for shape in shapes for found in device_reasons(fleet, app.name, shape, about)]
        excluded = np.zeros(fleet.size, np.bool_)
        for _, clusters in reasons:
            excluded |= clusters
        return allow(
            fleet.known & ~excluded,
            reasons=[reason for reason, _ in reasons],
            excluded=[clusters for _, clusters in reasons],
            preferred=list(self._preferred(app, shapes)),
            order=self._order(shapes),
        )

    def _explained(self, ask: Ask, app: ShapedApp) -> Mask:
        within = ask.explain_within.get(app.name)
        known = self._fleet.known
        return known if within is None else known & unpack(within, self._fleet.ids, self._fleet.size)

    def _order(self, shapes: Sequence[Shape]) -> list[Mask]:
        fleet = self._fleet
        total = np.zeros(fleet.n)
        for shape in shapes:
            scores = self._devices.by_node(shape, self.algorithm)
            if scores is not None:
                total = total + scores
        return best_clusters_first(total, fleet.cluster[: fleet.n], fleet.size, MAX_ORDER)

    def _preferred(self, app: ShapedApp, shapes: Sequence[Shape]) -> Iterator[Mask]:
        """Yields, for each combination of alternatives, the clusters that can give it and none before."""
        combinations = list(islice(alternatives(shapes), MAX_PREFERRED))
        if len(combinations) < 2:
            return
        others = [shape for shape in app.shapes if shape not in shapes]
        left = self._fleet.usable_clusters.copy()
        for shape in others:
            left &= self._fits.get(shape).fits
        for combination in combinations:
            fits = left.copy()
            for shape in combination:
                fits &= self._fits.get(shape).fits
            yield fits
            left &= ~fits


def alternatives(shapes: Sequence[Shape]) -> Iterator[list[Shape]]:
    """Yields the shapes with one alternative of each need for devices, the most preferred combinations first: those that give up
    least in all."""
    choices = [
        (n, g, len(group.devices))
        for n, shape in enumerate(shapes)
        for g, group in enumerate(shape.groups)
        if len(group.devices) > 1 and "/" not in group.suffix
    ]
    ranked = sorted(islice(product(*(range(count) for _, _, count in choices)), 256), key=lambda one: (sum(one), one))
    for combination in ranked:
        chosen = dict(zip(((n, g) for n, g, _ in choices), combination, strict=True))
        yield [
            _with_choices(shape, {g: at for (m, g), at in chosen.items() if m == n}) for n, shape in enumerate(shapes)
        ]


def _with_choices(shape: Shape, choices: dict[int, int]) -> Shape:
    if not choices:
        return shape
    groups = [
        msgspec.structs.replace(group, devices=(group.devices[choices[g]],)) if g in choices else group
        for g, group in enumerate(shape.groups)
    ]
    return msgspec.structs.replace(shape, key=f"{shape.key} {sorted(choices.items())}", groups=groups)
