"""Keeps the counts of resource classes current, and publishes their changes: one merger does, the one with the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from moorage.bus import Bus, subjects
from moorage.classes import ClassCatalog
from moorage.fleet import ClassStatus, Fleet, format_units
from moorage.ledger import LedgerFollower
from moorage.model.resource_classes import RESOURCE_CLASS
from moorage.telemetry import MetricValue

#: Seconds in which changes are gathered.
GATHER = 0.1


class ClassEvents:
    """`is_active` tells whether this merger publishes."""

    def __init__(
        self, bus: Bus, fleet: Fleet, follower: LedgerFollower, catalog: ClassCatalog, is_active: Callable[[], bool]
    ) -> None:
        self._bus, self._catalog, self._is_active = bus, catalog, is_active
        self._fleet = fleet
        self._status = ClassStatus(fleet, catalog)
        self._changed = asyncio.Event()
        self._was_active = False
        fleet.on_change.append(lambda _change: self._changed.set())
        follower.on_fold.append(lambda _commit, _changes: self._changed.set())
        follower.on_reload.append(lambda _ledger: self._changed.set())
        catalog.on_change.append(lambda _key: self._changed.set())

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER)
            self._changed.clear()
            if not self._is_active() or not self._catalog.classes:
                self._was_active = False
                continue
            told = self._status.refresh()
            # What changed before is known from the one that published then.
            for name, cluster in sorted(told) if self._was_active else ():
                await self._tell(name, cluster)
            self._was_active = True

    async def _tell(self, name: str, cluster: str) -> None:
        known = self._catalog.stored_class(name, cluster)
        if known is None:
            return  # who deleted it has told
        count = self._status.total(name, cluster)
        data = {
            "kind": RESOURCE_CLASS.kind,
            "name": name,
            "cluster": cluster,
            "uid": known.uid,
            "allocatable": format_units(count.allocatable),
            "requested": format_units(count.requested),
            "free": format_units(count.free),
        }
        await self._bus.emit(subjects.class_event("changed", name), data)

    def metrics(self) -> Iterable[MetricValue]:
        """Yields the counts of the fleet's classes, and how many comparisons could not hold."""
        totals = {name: self._status.total(name) for name in self._names()}
        about = "Healthy devices that a resource class selects"
        yield MetricValue(
            "moorage_class_allocatable", about, {name: one.allocatable / 1000 for name, one in totals.items()}, "class"
        )
        about = "Devices of a resource class that are taken, through whatever class or claim"
        yield MetricValue(
            "moorage_class_requested", about, {name: one.requested / 1000 for name, one in totals.items()}, "class"
        )
        about = "Comparisons of selectors that cannot hold: of two dimensions, or of a type without an order"
        diagnostics = dict(self._fleet.parts.properties.diagnostics)
        yield MetricValue("moorage_selector_diagnostics_total", about, diagnostics, "code")

    def _names(self) -> list[str]:
        return [one.name for one in self._catalog.classes if not one.cluster] if self._is_active() else []
