"""Counts the devices of each class: how many units there are, and how many are taken, per cluster and in all.

A device counts for each class that selects it, whoever holds it through whatever class. Counts of a cluster are made anew from
its rows when it changes, never added to and subtracted from, so they do not depend on the order of events.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.classes import ALL_DEVICES, CLUSTER, KIND, NAME, NODE, ClassCatalog, KnownClass, Selector
from moorage.collections.blocks import grown
from moorage.model.part_reports import PropertyValue
from moorage.parts.identities import may_select, names_identity
from moorage.parts.layout import part_id

from .fleet import Fleet
from .part_class import PartClass
from .parts import FleetParts

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: Units are counted in thousandths: of a device that is divided, a part may be taken.
MILLI = 1000


class DeviceCount(NamedTuple):
    """Thousandths of devices that a class selects and that are healthy, and of those that are taken."""

    allocatable: int = 0
    requested: int = 0

    @property
    def free(self) -> int:
        return self.allocatable - self.requested


class Devices(NamedTuple):
    """Devices: their rows among the parts, their clusters, units and those taken, in thousandths."""

    rows: Rows
    clusters: Rows
    units: Rows
    taken: Rows
    healthy: Mask


def devices_in(fleet: Fleet, cids: Sequence[int]) -> Devices:
    """Returns all devices of clusters."""
    parts = fleet.parts
    runs = [parts.rows_of(cid) for cid in cids]
    rows = np.concatenate([np.empty(0, np.int64), *(np.arange(run.start, run.stop) for run in runs)])
    rows = rows[np.take(parts.properties.selected(ALL_DEVICES), parts.property_set[rows], mode="clip")]
    rows = rows[~parts.copy[rows]]
    units, taken = np.full(len(rows), MILLI, np.int64), np.zeros(len(rows), np.int64)
    numbers = parts.unit[rows]
    clusters = fleet.cluster[parts.node[rows]].astype(np.int64)
    for number in np.unique(numbers).tolist():
        at = np.flatnonzero(numbers == number)
        if number < 0:
            taken[at] = _taken_of_divided(parts, rows[at], cids)
            continue
        name = parts.class_names[number]
        columns, size = parts.classes[name], parts.unit_size[rows[at]]
        places = _entries(parts, columns, cids)[rows[at]]
        used = columns.used[places] + columns.claimed[places]
        counted = columns.of_node[places]
        if counted.any() and (allocatable := fleet.allocatable(name)) is not None:
            free = fleet.free(name)
            assert free is not None
            nodes = parts.node[rows[at]]
            used = np.where(counted, np.maximum(used, allocatable[nodes] - free[nodes]), used)
        units[at] = columns.capacity[places] // size * MILLI
        taken[at] = np.minimum(-(-used // size) * MILLI, units[at])
    return Devices(rows, clusters, units, taken, parts.healthy[rows] | parts.closed[rows])


def _entries(parts: FleetParts, columns: PartClass, cids: Sequence[int]) -> Rows:
    """Returns the entry of each row of some clusters that has a class; others are undefined."""
    place = np.empty(parts.n, np.int64)
    for run in map(columns.run, cids):
        place[columns.row[run]] = np.arange(run.start, run.stop)
    return place


def _taken_of_divided(parts: FleetParts, rows: Rows, cids: Sequence[int]) -> Rows:
    """Returns the largest share that is taken of a capacity of each device."""
    place = np.full(parts.n, -1, np.int64)
    place[rows] = np.arange(len(rows))
    taken = np.zeros(len(rows), np.int64)
    for columns in parts.classes.values():
        runs = [run for run in map(columns.run, cids) if run.stop > run.start]
        if not runs:
            continue
        entries = np.concatenate([np.arange(run.start, run.stop) for run in runs])
        entries = entries[place[columns.row[entries]] >= 0]
        used = columns.used[entries] + columns.claimed[entries]
        share = -(-used * MILLI // np.maximum(columns.capacity[entries], 1))
        np.maximum.at(taken, place[columns.row[entries]], np.clip(share, 0, MILLI))
    return taken


def selected_rows(fleet: Fleet, rows: Rows, selector: Selector) -> Mask:
    """Returns which rows of parts have devices that a selector selects."""
    parts, devices = fleet.parts, selector.of_devices
    of_identity = names_identity(selector.alternatives)
    if selector.keys.isdisjoint((CLUSTER, NODE, NAME)) and not of_identity:
        return np.take(parts.properties.selected(devices), parts.property_set[rows], mode="clip")
    possible = np.ones(len(rows), np.bool_)
    if of_identity:
        nodes, of = np.unique(parts.node[rows], return_inverse=True)
        sources = (fleet.inside_source(node) for node in nodes.tolist())
        possible = np.fromiter((may_select(selector.alternatives, s) for s in sources), np.bool_, len(nodes))[of]
    for at in np.flatnonzero(possible).tolist():
        possible[at] = devices.matches(device_properties(fleet, int(rows[at])))
    return possible


def device_properties(fleet: Fleet, row: int) -> dict[str, PropertyValue]:
    """Returns all properties of the part at a row, the built-in ones among them."""
    parts = fleet.parts
    known = dict(parts.properties.sets[int(parts.property_set[row])])
    if KIND not in known:
        return known
    node_row = int(parts.node[row])
    place = row - fleet.inside(node_row)[0]
    part = fleet.own_layout(node_row).parts[place]
    ident = part_id(node := fleet.node_name(node_row), part.path)
    own = {NAME: ident.rpartition("/")[2], NODE: node, CLUSTER: fleet.names[int(fleet.cluster[node_row])]}
    return dict(part.properties) | own


class _Counts:
    """The devices of a class in each cluster, by the cluster's number."""

    def __init__(self, size: int) -> None:
        self.allocatable = np.zeros(size, np.int64)
        self.requested = np.zeros(size, np.int64)

    def grow(self, size: int) -> None:
        if size > len(self.allocatable):
            self.allocatable = grown(self.allocatable, size)
            self.requested = grown(self.requested, size)

    def write(self, cids: Rows, allocatable: Rows, requested: Rows) -> bool:
        """Replaces the counts of some clusters. Returns whether they were others before."""
        is_same = np.array_equal(self.allocatable[cids], allocatable) and np.array_equal(
            self.requested[cids], requested
        )
        self.allocatable[cids], self.requested[cids] = allocatable, requested
        return not is_same


ClassKey = tuple[str, str]  # name, and the cluster of which it is; empty: the fleet's


class ClassStatus:
    """The counts of all classes. `refresh` makes those of changed clusters, and of changed classes, anew."""

    def __init__(self, fleet: Fleet, catalog: ClassCatalog) -> None:
        self._fleet, self._catalog = fleet, catalog
        self._tick, self._resets, self._version = 0, fleet.resets, -1
        self._classes: dict[ClassKey, KnownClass] = {}
        self._counts: dict[ClassKey, _Counts] = {}

    def refresh(self) -> set[ClassKey]:
        """Takes over what changed. Returns the classes whose counts are others than before, those that are gone among them."""
        fleet = self._fleet
        changed = fleet.changed_since(self._tick) if fleet.resets == self._resets else None
        self._tick, self._resets = fleet.tick, fleet.resets
        fresh, told = self._take_over_classes()
        kept = self._classes.keys() - fresh
        everything = np.flatnonzero(fleet.known).tolist() if fresh or changed is None else []
        if changed is None:
            fresh, kept = fresh | kept, set()
        told |= self._recount(fresh, everything)
        if changed is not None and len(changed):
            told |= self._recount(kept, changed.tolist())
        return told

    def _take_over_classes(self) -> tuple[set[ClassKey], set[ClassKey]]:
        """Returns the classes to be counted in all clusters, and those that are gone."""
        if self._version == self._catalog.version:
            return set(), set()
        self._version = self._catalog.version
        classes = {(one.name, one.cluster): one for one in self._catalog.classes}
        differing = {key for key in classes.keys() | self._classes.keys() if classes.get(key) != self._classes.get(key)}
        names = {name for name, _ in differing}  # where one of a cluster comes or goes, that of the fleet changes
        self._classes = classes
        for key in differing:
            self._counts.pop(key, None)
        fresh = {key for key in classes if key[0] in names}
        return fresh, differing - classes.keys()

    def _recount(self, keys: Collection[ClassKey], clusters: list[int]) -> set[ClassKey]:
        fleet, told = self._fleet, set[ClassKey]()
        if not keys:
            return told
        cids = np.array(clusters, np.int64)
        devices = devices_in(fleet, [cid for cid in clusters if fleet.known[cid]])
        for key in sorted(keys):
            known = self._classes[key]
            found = np.flatnonzero(selected_rows(fleet, devices.rows, known.selector) & devices.healthy)
            of = devices.clusters[found]
            amounts = []
            for column in (devices.units, devices.taken):
                amount = np.zeros(fleet.size, np.int64)
                np.add.at(amount, of, column[found])
                amounts.append(np.where(self._applies(known), amount, 0)[cids])
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = _Counts(fleet.size)
                told.add(key)
            counts.grow(fleet.size)
            if counts.write(cids, amounts[0], amounts[1]):
                told.add(key)
        return told

    def _applies(self, known: KnownClass) -> Mask:
        """Returns the clusters where the class is what its name means."""
        fleet = self._fleet
        where = np.full(fleet.size, not known.cluster)
        others = (known.cluster,) if known.cluster else self._catalog.overriding(known.name)
        where[[fleet.ids[name] for name in others if name in fleet.ids]] = bool(known.cluster)
        return where

    def total(self, name: str, cluster: str = "") -> DeviceCount:
        counts = self._counts.get((name, cluster))
        return (
            DeviceCount() if counts is None else DeviceCount(int(counts.allocatable.sum()), int(counts.requested.sum()))
        )

    def by_cluster(self, name: str, cluster: str = "") -> dict[str, DeviceCount]:
        """Returns the counts of a class by cluster: of those with healthy devices that it selects."""
        counts = self._counts.get((name, cluster))
        if counts is None:
            return {}
        return {
            self._fleet.names[cid]: DeviceCount(int(counts.allocatable[cid]), int(counts.requested[cid]))
            for cid in np.flatnonzero(counts.allocatable).tolist()
        }


def format_units(milli: int) -> str:
    """Formats thousandths of devices as a quantity: `4`, `1500m`."""
    return str(milli // MILLI) if milli % MILLI == 0 else f"{milli}m"
