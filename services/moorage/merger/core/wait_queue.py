"""What waits, pure: groups that nothing took yet, and which of them something that changed may help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moorage.fit.node_filter import eligible, with_capacity
from moorage.fleet import Fleet
from moorage.model.attempts import Attempt
from moorage.model.groups import Revision
from moorage.model.shapes import Shape, ShapedApp

#: Retries after a required controller gave no answer: so long, doubled each time, at most so long.
BACK_OFF, BACK_OFF_MOST = 0.5, 30.0
_SILENT = {"ControllerTimeout", "ControllerError"}


@dataclass(slots=True)
class Waiter:
    record: Revision
    attempt: Attempt | None = None
    due: float | None = None  # decided again then, whatever changed
    failures: int = 0  # of required controllers, in a row
    untested: bool = True  # not tested yet against all that is there
    opened: bool = False  # a cluster may take an app of it that needs no room
    confined: Sequence[bytes | None] = ()  # per app, the clusters to which steady answers confine it, as far as known
    confined_among: int = 0  # of so many clusters: what came later was not known to whoever confined it

    @property
    def age(self) -> tuple[str, str]:
        return self.record.instantiated, self.record.group


def has_room(fleet: Fleet, shape: Shape, rows: NDArray[np.intp]) -> bool:
    """Whether one of the rows has room for a pod of the shape."""
    if not rows.size:
        return False
    return bool(with_capacity(fleet, shape.resources, eligible(fleet, shape, rows), rows).any())


def confined_rows(fleet: Fleet, confined: bytes | None, among: int, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of the rows those an app is not kept from."""
    if confined is None:
        return rows
    mask = np.unpackbits(np.frombuffer(confined, np.uint8), count=among).astype(np.bool_)
    clusters = fleet.cluster[rows]
    inside = clusters >= among
    inside[~inside] = mask[clusters[~inside]]
    return rows[inside]


def has_no_pods(app: ShapedApp) -> bool:
    """Whether it has no pods, so that a cluster is all it needs."""
    return not any(shape.count or shape.per_node for shape in app.shapes)


def _epoch(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


class WaitQueue:
    def __init__(self) -> None:
        self.groups: dict[str, Waiter] = {}
        self.refused_without_clusters: set[str] = set()  # refused when there was no cluster at all
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

    def refused(self, group: str, attempt: Attempt, now: float, *, fresh: bool) -> None:
        """After a try: `fresh` if it was another's, who may have seen less than we have."""
        waiter = self.groups.get(group)
        if waiter is None or waiter.record.revision != attempt.revision:
            return
        waiter.attempt, waiter.due, waiter.untested, waiter.opened = attempt, None, fresh, False
        self.refused_without_clusters.discard(group)
        if any(reason.code == "NoClusters" for reason in attempt.reasons):
            self.refused_without_clusters.add(group)
        if any(reason.code in _SILENT for reason in attempt.reasons):
            waiter.due = now + min(BACK_OFF_MOST, BACK_OFF * 2**waiter.failures)
            waiter.failures = min(waiter.failures + 1, 16)
        else:
            waiter.failures = 0
            if any(reason.code == "Overtaken" for reason in attempt.reasons):
                waiter.due = now
        if attempt.phase == "Failed":
            waiter.due, waiter.untested = None, False

    def postpone(self, groups: Iterable[str], until: float) -> None:
        for group in groups:
            if group in self.groups:
                self.groups[group].due = until

    def next_due(self) -> float | None:
        return min((w.due for w in self.groups.values() if w.due is not None), default=None)

    def due(self, now: float) -> set[str]:
        return {group for group, w in self.groups.items() if w.due is not None and w.due <= now}

    def refused_by(self, controller: str) -> set[str]:
        """Groups that a controller had a part in refusing, as far as their last try says."""
        return {
            group
            for group, w in self.groups.items()
            if w.attempt is None
            or any(r.by in (controller, "merger") for r in w.attempt.reasons)
            or any(a.name == controller and a.outcome != "answered" for a in w.attempt.controllers)
        }

    def clusters_opened(self, clusters: Iterable[int], epoch: tuple[int, ...]) -> None:
        """They came, or may be used again: at this epoch at the latest."""
        self._opened.update(clusters)
        self._opened_at = epoch

    def _opens(self, waiter: Waiter, number: int, opened: AbstractSet[int], fresh: bool) -> bool:
        """Whether an app without pods may go where others could not when it was refused."""
        if fresh and waiter.attempt is not None and _epoch(waiter.attempt.epoch) < self._opened_at:
            return True
        where = waiter.confined[number] if waiter.confined else None
        return any(
            where is None or cid >= waiter.confined_among or bool(where[cid >> 3] >> (7 - (cid & 7)) & 1)
            for cid in opened
        )

    def helped_by(self, fleet: Fleet, improved: NDArray[np.intp] | None) -> dict[str, NDArray[np.intp]]:
        """Groups with a shape that fits one of the improved rows (None: any row may be), and the rows that matter; and
        those with an app without pods that a cluster that opened may take. What only changed documents can help is not
        among them."""
        opened, self._opened = self._opened, set()
        if (
            improved is not None
            and not improved.size
            and not opened
            and not any(w.untested for w in self.groups.values())
        ):
            return {}
        everything = np.flatnonzero(fleet.cluster[: fleet.n] >= 0)
        rows = everything if improved is None else improved
        tested: dict[tuple[str, tuple[bytes | None, int, bool]], bool] = {}
        places: dict[tuple[bytes | None, int, bool], NDArray[np.intp]] = {}
        found: dict[str, NDArray[np.intp]] = {}
        for group, waiter in self.groups.items():
            if waiter.attempt is None:
                continue  # the first decision is under way; if it got lost, `due` says when to make it here
            if waiter.attempt.phase == "Failed":
                continue
            fresh, waiter.untested = waiter.untested, False
            for number, app in enumerate(waiter.record.apps):
                if has_no_pods(app):
                    waiter.opened = waiter.opened or self._opens(waiter, number, opened, fresh)
                    if waiter.opened:
                        found[group] = everything if fresh else rows
                        break
                    continue
                where = (waiter.confined[number] if waiter.confined else None, waiter.confined_among, fresh)
                if where not in places:
                    places[where] = confined_rows(fleet, where[0], where[1], everything if fresh else rows)
                for shape in app.shapes:
                    key = (shape.key, where)
                    if key not in tested:
                        tested[key] = has_room(fleet, shape, places[where])
                    if tested[key]:
                        found[group] = everything if fresh else rows
                        break
                if group in found:
                    break
        return found

    def still_helped(self, fleet: Fleet, group: str, rows: NDArray[np.intp]) -> bool:
        """Whether older ones that were decided first left room for this one."""
        waiter = self.groups.get(group)
        if waiter is None:
            return False
        if waiter.opened:
            return True
        confined = waiter.confined or [None] * len(waiter.record.apps)
        return any(
            has_room(fleet, shape, confined_rows(fleet, where, waiter.confined_among, rows))
            for app, where in zip(waiter.record.apps, confined, strict=True)
            if not has_no_pods(app)
            for shape in app.shapes
        )

    def oldest_first(self, groups: Iterable[str]) -> list[str]:
        return sorted((g for g in groups if g in self.groups), key=lambda g: self.groups[g].age)
