"""Counts which devices each project holds by its claims, and refuses decisions with which a project would hold more than a quota
allows.

A device counts for every class that selects it, through whatever class or claim it is held. A committer asks right before each
append, at the state to which it appends, so quotas are exact however many committers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from typing import NamedTuple

from moorage.classes import CLUSTER, KIND, NAME, NODE, ClassCatalog
from moorage.fleet import Fleet
from moorage.fleet.class_status import MILLI
from moorage.model.claims import Claim, Decision
from moorage.model.part_reports import PropertyValue
from moorage.model.resource_classes import DeviceQuotaSpec, QuotaItem

from .entries.handler import Dropped
from .families import Family
from .ledger import Changes, Ledger

QUOTA_EXCEEDED = "QuotaExceeded"
ALL_DEVICES = "*"


class _Place(NamedTuple):
    cluster: str
    node: str
    part: str


#: What is taken of parts, by class.
_Parts = dict[_Place, dict[str, int]]


class _Device(NamedTuple):
    """A device that is held: its properties, which are empty if it is gone, and thousandths of devices."""

    cluster: str
    properties: Mapping[str, PropertyValue]
    units: int


class DeviceQuotas:
    def __init__(self, fleet: Fleet, ledger: Ledger, catalog: ClassCatalog) -> None:
        self._fleet, self._catalog = fleet, catalog
        self.reload(ledger)

    def reload(self, ledger: Ledger) -> None:
        """Counts all claims anew after the ledger was loaded."""
        self._ledger = ledger
        self._families: dict[str, dict[Family, _Parts]] = {}  # by project
        for family in {active.family for active in ledger.claims.values()}:
            self._recount(family)
        self._family_of = {ident: active.family for ident, active in ledger.claims.items()}

    def folded(self, changes: Changes) -> None:
        families: set[Family] = set()
        for ident in changes.claims | changes.released:
            if (before := self._family_of.pop(ident, None)) is not None:
                families.add(before)
            if (active := self._ledger.claims.get(ident)) is not None:
                families.add(active.family)
                self._family_of[ident] = active.family
        for family in families:
            self._recount(family)

    def _recount(self, family: Family) -> None:
        parts: _Parts = {}
        for ident in self._ledger.families.get(family, ()):
            if (active := self._ledger.claims.get(ident)) is not None:
                _at_least(parts, _parts_of(active.claim))
        of_project = self._families.setdefault(_project(family.group), {})
        if parts:
            of_project[family] = parts
        else:
            of_project.pop(family, None)

    # -- checking -----------------------------------------------------------------------------------------------------

    def check(self, decision: Decision, others: Iterable[Decision] = ()) -> Dropped | None:
        """Returns why a decision may not be appended, or None. `others` are appended with it, before it."""
        project = _project(decision.group)
        quotas = {name: spec for name, spec in self._catalog.quotas.items() if _is_for(spec, project)}
        if not quotas or not any(slot.parts for claim in decision.claims for slot in claim.slots):
            return None
        families = dict(self._families.get(project, {}))
        for other in others:
            if _project(other.group) == project:
                self._add(families, other)
        before = list(self._devices(families))
        self._add(families, decision)
        after = list(self._devices(families))
        for name, spec in sorted(quotas.items()):
            for item in spec.devices:
                held, wanted = self._count(item.class_, before), self._count(item.class_, after)
                if wanted > max(item.count * MILLI, held):
                    of = "devices" if item.class_ == ALL_DEVICES else f"devices of {item.class_}"
                    message = (
                        f"project {project} may hold {item.count} {of} by quota {name}; it holds {_text(held)}, "
                        f"and would hold {_text(wanted)}"
                    )
                    free = max(0, item.count * MILLI - held)
                    return Dropped(QUOTA_EXCEEDED, message, needed=_text(wanted - held), free=_text(free))
        return None

    def held(self, project: str, class_: str = ALL_DEVICES) -> int:
        """Returns thousandths of devices of a class that a project holds."""
        return self._count(class_, self._devices(self._families.get(project, {})))

    def may_hold(self, groups: AbstractSet[str], class_: str, units: int) -> bool:
        """Returns whether groups of one project may have so many thousandths of devices of a class, instead of what they hold now."""
        bounds = [item for item in self._bounds(groups) if item.class_ in (class_, ALL_DEVICES)]
        if not bounds:
            return True
        others = self._devices_beside(groups)
        return all(self._count(item.class_, others) + units <= item.count * MILLI for item in bounds)

    def full(self, groups: AbstractSet[str]) -> set[str]:
        """Returns the classes of which groups of one project may have no device, for what other groups of it hold."""
        bounds = [item for item in self._bounds(groups) if item.class_ != ALL_DEVICES]
        if not bounds:
            return set()
        others = self._devices_beside(groups)
        return {item.class_ for item in bounds if self._count(item.class_, others) >= item.count * MILLI}

    def _bounds(self, groups: AbstractSet[str]) -> list[QuotaItem]:
        """Returns the bounds of all quotas for the project of these groups."""
        project = _project(min(groups))
        return [item for spec in self._catalog.quotas.values() if _is_for(spec, project) for item in spec.devices]

    def _devices_beside(self, groups: AbstractSet[str]) -> list[_Device]:
        """Returns the devices that other groups of their project hold."""
        families = self._families.get(_project(min(groups)), {})
        return list(self._devices({key: parts for key, parts in families.items() if key.group not in groups}))

    def _add(self, families: dict[Family, _Parts], decision: Decision) -> None:
        """Adds what a decision takes. A claim of an object that has one already takes over what that holds."""
        for claim in decision.claims:
            family = self._ledger.family_for(decision.group, claim)
            parts = {place: dict(amounts) for place, amounts in families.get(family, {}).items()}
            _at_least(parts, _parts_of(claim))
            families[family] = parts

    def _devices(self, families: Mapping[Family, _Parts]) -> Iterator[_Device]:
        total: _Parts = {}
        for parts in families.values():
            for place, amounts in parts.items():
                here = total.setdefault(place, {})
                for name, amount in amounts.items():
                    here[name] = here.get(name, 0) + amount
        for place, amounts in total.items():
            if (device := self._device(place, amounts)) is not None:
                yield device

    def _device(self, place: _Place, amounts: Mapping[str, int]) -> _Device | None:
        fleet = self._fleet
        cid = fleet.ids.get(place.cluster)
        row = None if cid is None else fleet.row_of(cid, place.node)
        if row is None:
            return _Device(place.cluster, {}, MILLI)
        layout = fleet.own_layout(row)
        at = layout.at.get(fleet.path_of(row, place.part, layout))
        if at is None:
            return _Device(place.cluster, {}, MILLI)
        part = layout.parts[at]
        properties = dict(part.properties)
        if KIND not in properties:
            return None  # a zone, or what is no device
        name, size = part.unit
        if name:
            units = -(-amounts.get(name, 0) * MILLI // size)
        else:
            totals = {kind: max(found.capacity, 1) for kind, found in part.inventories.items()}
            units = max((-(-a * MILLI // totals[kind]) for kind, a in amounts.items() if kind in totals), default=0)
        own = {NAME: place.part.rpartition("/")[2], NODE: place.node, CLUSTER: place.cluster}
        return _Device(place.cluster, properties | own, units)

    def _count(self, class_: str, devices: Iterable[_Device]) -> int:
        if class_ == ALL_DEVICES:
            return sum(device.units for device in devices)
        count = 0
        for device in devices:
            known = self._catalog.class_in(class_, device.cluster)
            if known is not None and device.properties and known.selector.matches(device.properties):
                count += device.units
        return count


def _project(group: str) -> str:
    return group.partition("/")[0]


def _is_for(spec: DeviceQuotaSpec, project: str) -> bool:
    return any(fnmatchcase(project, pattern) for pattern in spec.projects)


def _parts_of(claim: Claim) -> _Parts:
    parts: _Parts = {}
    for slot in claim.slots:
        for part, amounts in slot.parts.items():
            here = parts.setdefault(_Place(claim.cluster, slot.node, part), {})
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + amount * slot.count
    return parts


def _at_least(parts: _Parts, others: _Parts) -> None:
    for place, amounts in others.items():
        here = parts.setdefault(place, {})
        for name, amount in amounts.items():
            here[name] = max(here.get(name, 0), amount)


def _text(milli: int) -> str:
    return f"{milli / MILLI:g}"
