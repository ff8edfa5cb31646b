"""Counts which devices each project holds by its claims, and refuses decisions with which a project would hold more than a quota
allows.

A device counts for every class that selects it, through whatever class or claim it is held. A committer asks right before each
append, at the state to which it appends, so quotas are exact however many committers there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from typing import NamedTuple

from moorage.classes import CLUSTER, KIND, NAME, NODE, ClassCatalog, Selector
from moorage.classes.class_index import ClassIndex
from moorage.fleet import Fleet, FleetChange
from moorage.fleet.class_status import MILLI
from moorage.model.claims import Decision
from moorage.model.names import project_of
from moorage.model.resource_classes import QuotaItem

from .entries.handler import Dropped
from .families import Family, at_least
from .held_by_projects import ALL_DEVICES, GONE, HeldParts, PartKind, Parts, Place, parts_of
from .ledger import Changes, Ledger

QUOTA_EXCEEDED = "QuotaExceeded"


class _Bound(NamedTuple):
    quota: str
    item: QuotaItem

    @property
    def most(self) -> int:
        return self.item.count * MILLI


class DeviceQuotas:
    """Counts only for projects that quotas are for, from when they are asked about first."""

    def __init__(self, fleet: Fleet, ledger: Ledger, catalog: ClassCatalog) -> None:
        self._fleet, self._catalog = fleet, catalog
        self._version = -1  # of the catalog that is taken over
        self._selectors: dict[str, dict[str, Selector]] = {}  # of classes that quotas name, by cluster; "": elsewhere
        self._indexes: dict[str, ClassIndex] = {}
        self._bounds: dict[str, list[_Bound]] = {}  # by project
        self._stale: set[str] | None = set()  # clusters whose parts are others now; None: all
        fleet.on_change.append(self._note_change)
        self.reload(ledger)

    def reload(self, ledger: Ledger) -> None:
        """Counts all claims anew after the ledger was loaded."""
        self._ledger = ledger
        self._held: dict[str, HeldParts] = {}  # by project
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
            if (held := self._held.get(project_of(family.group))) is not None:
                held.keep(family, parts_of(self._ledger.family_of(family)))

    # -- checking -----------------------------------------------------------------------------------------------------

    def batch(self) -> QuotaBatch:
        return QuotaBatch(self)

    def check(self, decision: Decision) -> Dropped | None:
        """Returns why a decision may not be appended, or None."""
        return self.batch().check(decision)

    def held(self, project: str, class_: str = ALL_DEVICES) -> int:
        """Returns thousandths of devices that a project holds of a class that a quota names."""
        return self.held_by(project).counts[class_]

    def may_hold(self, groups: AbstractSet[str], class_: str, units: int) -> bool:
        """Returns whether groups of one project may have so many thousandths of devices of a class, instead of what they hold now."""
        bounds = [one for one in self.bounds(project_of(min(groups))) if one.item.class_ in (class_, ALL_DEVICES)]
        if not bounds:
            return True
        others = self._counts_beside(groups)
        return all(others[one.item.class_] + units <= one.most for one in bounds)

    def full(self, groups: AbstractSet[str]) -> set[str]:
        """Returns the classes of which groups of one project may have no device, for what other groups of it hold."""
        bounds = [one for one in self.bounds(project_of(min(groups))) if one.item.class_ != ALL_DEVICES]
        if not bounds:
            return set()
        others = self._counts_beside(groups)
        return {one.item.class_ for one in bounds if others[one.item.class_] >= one.most}

    def bounds(self, project: str) -> list[_Bound]:
        """Returns the bounds of all quotas for a project, in the order of the quotas' names."""
        self._take_over_catalog()
        found = self._bounds.get(project)
        if found is None:
            found = self._bounds[project] = [
                _Bound(name, item)
                for name, spec in sorted(self._catalog.quotas.items())
                if any(fnmatchcase(project, pattern) for pattern in spec.projects)
                for item in spec.devices
            ]
        return found

    def by_family(self, decision: Decision) -> dict[Family, Parts]:
        """Returns what a decision takes. A claim of an object that has one already is counted with that."""
        found: dict[Family, Parts] = {}
        for claim in decision.claims:
            if parts := parts_of((claim,)):
                family = self._ledger.family_for(decision.group, claim)
                found[family] = _larger(found.get(family, {}), parts)
        return found

    def held_by(self, project: str) -> HeldParts:
        """Returns what a project holds now."""
        self._take_over_catalog()
        if self._stale is None or self._stale:
            for held in self._held.values():
                held.renew(self._stale)
            self._stale = set()
        found = self._held.get(project)
        if found is None:
            found = self._held[project] = HeldParts(self._kind)
            for family in self._ledger.families:
                if project_of(family.group) == project:
                    found.keep(family, parts_of(self._ledger.family_of(family)))
        return found

    def _counts_beside(self, groups: AbstractSet[str]) -> Mapping[str, int]:
        """Returns what other groups of their project hold."""
        held, ledger = self.held_by(project_of(min(groups))), self._ledger
        own = {ledger.claims[ident].family for group in groups for ident in ledger.by_group.get(group, ())}
        if not own:
            return held.counts
        draft = held.draft()
        for family in own:
            if family.group in groups:
                draft.put(family, {})
        return draft.counts

    # -- classes of devices -------------------------------------------------------------------------------------------

    def _note_change(self, change: FleetChange) -> None:
        if change.reset:
            self._stale = None
        elif self._stale is not None:
            cids = (*change.part_sets.tolist(), *change.node_sets.tolist())
            self._stale.update(self._fleet.names[cid] for cid in cids)

    def _take_over_catalog(self) -> None:
        catalog = self._catalog
        if self._version == catalog.version:
            return
        self._version = catalog.version
        self._bounds.clear()
        for project in [project for project in self._held if not self.bounds(project)]:
            del self._held[project]
        names = {item.class_ for spec in catalog.quotas.values() for item in spec.devices} - {ALL_DEVICES}
        clusters = {"", *(cluster for name in names for cluster in catalog.overriding(name))}
        selectors = {
            cluster: {name: known.selector for name in sorted(names) if (known := catalog.class_in(name, cluster))}
            for cluster in clusters
        }
        if selectors != self._selectors:
            self._selectors = selectors
            self._indexes = {cluster: ClassIndex(found) for cluster, found in selectors.items()}
            self._stale = None

    def _kind(self, place: Place) -> PartKind:
        fleet = self._fleet
        cid = fleet.ids.get(place.cluster)
        row = None if cid is None else fleet.row_of(cid, place.node)
        if row is None:
            return GONE
        layout = fleet.own_layout(row)
        at = layout.at.get(fleet.path_of(row, place.part, layout))
        if at is None:
            return GONE
        part = layout.parts[at]
        properties = dict(part.properties)
        if KIND not in properties:
            return PartKind()  # a zone, or what is no device
        resource, size = part.unit
        whole = {name: max(found.capacity, 1) for name, found in part.inventories.items()}
        own = {NAME: place.part.rpartition("/")[2], NODE: place.node, CLUSTER: place.cluster}
        index = self._indexes.get(place.cluster) or self._indexes[""]
        selecting = index.selecting(properties | own).tolist()
        classes = tuple(name for name, selects in zip(index.names, selecting, strict=True) if selects)
        return PartKind(classes, {resource: size} if resource else whole)


class QuotaBatch:
    """Checks the decisions of one commit. Each that it lets pass counts for those after it."""

    def __init__(self, quotas: DeviceQuotas) -> None:
        self._quotas = quotas
        self._drafts: dict[str, HeldParts] = {}  # by project

    def check(self, decision: Decision) -> Dropped | None:
        """Returns why a decision may not be appended, or None."""
        project = project_of(decision.group)
        bounds = self._quotas.bounds(project)
        taken = self._quotas.by_family(decision) if bounds else {}
        if not taken:
            return None
        if (draft := self._drafts.get(project)) is None:
            draft = self._drafts[project] = self._quotas.held_by(project).draft()
        counts = draft.counts.copy()
        before = {family: draft.of_family(family) for family in taken}
        for family, parts in taken.items():
            draft.put(family, _larger(before[family], parts))
        for bound in bounds:
            item = bound.item
            held, wanted = counts[item.class_], draft.counts[item.class_]
            if wanted > max(bound.most, held):
                for family, parts in before.items():
                    draft.put(family, parts)
                of = "devices" if item.class_ == ALL_DEVICES else f"devices of {item.class_}"
                message = (
                    f"project {project} may hold {item.count} {of} by quota {bound.quota}; it holds {_text(held)}, "
                    f"and would hold {_text(wanted)}"
                )
                free = max(0, bound.most - held)
                return Dropped(QUOTA_EXCEEDED, message, needed=_text(wanted - held), free=_text(free))
        return None


def _larger(parts: Parts, others: Parts) -> Parts:
    found = {place: dict(amounts) for place, amounts in parts.items()}
    for place, amounts in others.items():
        at_least(found.setdefault(place, {}), amounts)
    return found


def _text(milli: int) -> str:
    return f"{milli / MILLI:g}"
