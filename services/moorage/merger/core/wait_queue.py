"""Keeps the groups that wait for a decision, and finds those that a change may help."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moorage.fit.node_filter import eligible, with_capacity
from moorage.fleet import Fleet
from moorage.model.attempts import Attempt
from moorage.model.groups import Revision
from moorage.model.shapes import Shape, ShapedApp

#: Seconds until a retry after a required controller gave no answer, or one from before the newest changes; doubled each time
#: up to the second value.
BACK_OFF, BACK_OFF_MOST = 0.25, 30.0
_SILENT = {"ControllerTimeout", "ControllerError"}


@dataclass(slots=True)
class Waiter:
    record: Revision
    attempt: Attempt | None = None
    told: Attempt | None = None  # the last that was published
    told_at: float = 0.0
    due: float | None = None  # when it is decided again, whatever changed
    failures: int = 0  # tries in a row in which a required controller gave no answer
    outdated: int = 0  # tries in a row that answers from before the newest changes refused
    untested: bool = True  # must be tested against the complete fleet, not only against changes
    opened: bool = False  # a cluster opened that may take an app without pods
    confined: Sequence[bytes | None] = ()  # per app, the `steady_confinement` as far as known
    confined_among: int = 0  # number of clusters then; later ones may take the app

    @property
    def silent(self) -> bool:
        """Returns whether a required controller gave no answer the last time, and the next try is due later."""
        return self.failures > 0 and self.due is not None

    @property
    def age(self) -> tuple[str, str]:
        return self.record.instantiated, self.record.group


def has_room(fleet: Fleet, shape: Shape, rows: NDArray[np.intp]) -> bool:
    """Returns whether one of the rows has room for a pod of the shape."""
    if not rows.size:
        return False
    return bool(with_capacity(fleet, shape.resources, eligible(fleet, shape, rows), rows).any())


def confined_rows(fleet: Fleet, confined: bytes | None, among: int, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Returns the rows on clusters to which the app is confined, or that joined later."""
    if confined is None:
        return rows
    mask = np.unpackbits(np.frombuffer(confined, np.uint8), count=among).astype(np.bool_)
    clusters = fleet.cluster[rows]
    inside = clusters >= among
    inside[~inside] = mask[clusters[~inside]]
    return rows[inside]


def has_no_pods(app: ShapedApp) -> bool:
    """Returns whether the app needs only a cluster and no room."""
    return not any(shape.count or shape.per_node for shape in app.shapes)


def _epoch(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def back_off(tries: int) -> float:
    """Returns the seconds until the next try after so many that came to nothing."""
    return min(BACK_OFF_MOST, BACK_OFF * (1 << min(tries, 16)))


#: An app's confinement, the number of clusters then, and whether it must be tested against the complete fleet.
_Where = tuple[bytes | None, int, bool]


class _RoomTests:
    """Tests shapes against improved rows. Equal tests are made once."""

    def __init__(self, fleet: Fleet, improved: NDArray[np.intp] | None) -> None:
        self._fleet = fleet
        self._all = np.flatnonzero(fleet.cluster[: fleet.n] >= 0)
        self._improved = self._all if improved is None else improved
        self._rows: dict[_Where, NDArray[np.intp]] = {}
        self._results: dict[tuple[str, _Where], bool] = {}

    def rows(self, untested: bool) -> NDArray[np.intp]:
        return self._all if untested else self._improved

    def has_room(self, shape: Shape, where: _Where) -> bool:
        key = (shape.key, where)
        if key not in self._results:
            if where not in self._rows:
                confined, among, untested = where
                self._rows[where] = confined_rows(self._fleet, confined, among, self.rows(untested))
            self._results[key] = has_room(self._fleet, shape, self._rows[where])
        return self._results[key]


def _no_clusters(_group: str) -> Collection[int]:
    return ()


def _as_it_is(app: ShapedApp) -> ShapedApp:
    return app


class WaitQueue:
    """The waiting groups. `own_clusters` returns where a group has claims already: there an update may need less than the room
    for a pod. `bind` returns an app with the selectors that its resource classes have now, and the slots that it could have."""

    def __init__(
        self,
        own_clusters: Callable[[str], Collection[int]] = _no_clusters,
        bind: Callable[[ShapedApp], ShapedApp] = _as_it_is,
    ) -> None:
        self._own_clusters, self._bind = own_clusters, bind
        self.groups: dict[str, Waiter] = {}
        self.refused_without_clusters: set[str] = set()  # groups that were refused because there was no cluster
        self._opened: set[int] = set()
        self._opened_at: tuple[int, ...] = ()

    def put(self, record: Revision, due: float | None) -> Waiter:
        known = self.groups.get(record.group)
        if known is not None and known.record.revision >= record.revision:
            return known
        waiter = self.groups[record.group] = Waiter(record, due=due)
        return waiter

    def drop(self, group: str) -> None:
        self.groups.pop(group, None)
        self.refused_without_clusters.discard(group)

    def refused(self, group: str, attempt: Attempt, now: float, *, untested: bool, outdated: bool = False) -> None:
        """Records a failed try. `untested`: another merger made it, which may have seen an older fleet. `outdated`: a
        controller had seen an older one."""
        waiter = self.groups.get(group)
        if waiter is None or waiter.record.revision != attempt.revision:
            return
        waiter.attempt, waiter.due, waiter.untested, waiter.opened = attempt, None, untested, False
        self.refused_without_clusters.discard(group)
        if any(reason.code == "NoClusters" for reason in attempt.reasons):
            self.refused_without_clusters.add(group)
        if any(reason.code in _SILENT for reason in attempt.reasons):
            waiter.due = now + back_off(waiter.failures)
            waiter.failures += 1
        else:
            waiter.failures = 0
            if outdated:
                waiter.due = now + back_off(waiter.outdated)
            waiter.outdated = waiter.outdated + 1 if outdated else 0
            if any(reason.code == "Overtaken" for reason in attempt.reasons):
                waiter.due = now
        if attempt.phase == "Failed":
            waiter.due, waiter.untested = None, False

    def told(self, group: str, attempt: Attempt, now: float) -> None:
        """Records that the reasons of a try were published."""
        waiter = self.groups.get(group)
        if waiter is not None and waiter.record.revision == attempt.revision:
            waiter.told, waiter.told_at = attempt, now

    def postpone(self, groups: Iterable[str], until: float) -> None:
        for group in groups:
            if group in self.groups:
                self.groups[group].due = until

    def bring_forward(self, now: float) -> None:
        """Lets those be tried now that were put off because a controller was silent for others."""
        for waiter in self.groups.values():
            if waiter.due is not None and not waiter.failures:
                waiter.due = min(waiter.due, now)

    def next_due(self) -> float | None:
        return min((w.due for w in self.groups.values() if w.due is not None), default=None)

    def due(self, now: float) -> set[str]:
        return {group for group, w in self.groups.items() if w.due is not None and w.due <= now}

    def refused_by(self, controller: str) -> set[str]:
        """Returns the groups that the controller, by their last try, helped to refuse."""
        return {
            group
            for group, w in self.groups.items()
            if w.attempt is None
            or any(r.by in (controller, "merger") for r in w.attempt.reasons)
            or any(a.name == controller and a.outcome != "answered" for a in w.attempt.controllers)
        }

    def clusters_opened(self, clusters: Iterable[int], epoch: tuple[int, ...]) -> None:
        """Records clusters that joined or became usable by this epoch."""
        self._opened.update(clusters)
        self._opened_at = epoch

    def _opens(self, waiter: Waiter, number: int, opened: AbstractSet[int], untested: bool) -> bool:
        """Returns whether an app without pods may use a cluster that was not usable when the app was refused."""
        if untested and waiter.attempt is not None and _epoch(waiter.attempt.epoch) < self._opened_at:
            return True
        where = waiter.confined[number] if waiter.confined else None
        return any(
            where is None or cid >= waiter.confined_among or bool(where[cid >> 3] >> (7 - (cid & 7)) & 1)
            for cid in opened
        )

    def helped_by(self, fleet: Fleet, improved: NDArray[np.intp] | None) -> dict[str, NDArray[np.intp]]:
        """Returns the groups that changes may help, with the rows to test: a shape fits one of the improved rows (None: any row
        may have improved), or a cluster opened for an app without pods. Groups that only changed documents can help are left
        out."""
        opened, self._opened = self._opened, set()
        if (
            improved is not None
            and not improved.size
            and not opened
            and not any(w.untested for w in self.groups.values())
        ):
            return {}
        tests = _RoomTests(fleet, improved)
        helped: dict[str, NDArray[np.intp]] = {}
        for group, waiter in self.groups.items():
            # Without an attempt, the first decision is under way. If its hint got lost, `due` is set.
            if waiter.attempt is None or waiter.attempt.phase == "Failed" or waiter.silent:
                continue
            untested, waiter.untested = waiter.untested, False
            rows = tests.rows(untested)
            if self._improves_own(fleet, group, rows) or any(
                self._helps_app(waiter, number, opened, tests, untested) for number in range(len(waiter.record.apps))
            ):
                helped[group] = rows
        return helped

    def _improves_own(self, fleet: Fleet, group: str, rows: NDArray[np.intp]) -> bool:
        own = self._own_clusters(group)
        return bool(own) and bool(np.isin(fleet.cluster[rows], list(own)).any())

    def _helps_app(
        self, waiter: Waiter, number: int, opened: AbstractSet[int], tests: _RoomTests, untested: bool
    ) -> bool:
        app = self._bind(waiter.record.apps[number])
        if has_no_pods(app):
            waiter.opened = waiter.opened or self._opens(waiter, number, opened, untested)
            return waiter.opened
        where = (waiter.confined[number] if waiter.confined else None, waiter.confined_among, untested)
        return any(tests.has_room(shape, where) for shape in app.shapes)

    def still_helped(self, fleet: Fleet, group: str, rows: NDArray[np.intp]) -> bool:
        """Returns whether the groups decided before left room for this one."""
        waiter = self.groups.get(group)
        if waiter is None:
            return False
        if waiter.opened or self._improves_own(fleet, group, rows):
            return True
        confined = waiter.confined or [None] * len(waiter.record.apps)
        return any(
            has_room(fleet, shape, confined_rows(fleet, where, waiter.confined_among, rows))
            for app, where in zip(map(self._bind, waiter.record.apps), confined, strict=True)
            if not has_no_pods(app)
            for shape in app.shapes
        )

    def oldest_first(self, groups: Iterable[str]) -> list[str]:
        return sorted((g for g in groups if g in self.groups), key=lambda g: self.groups[g].age)
