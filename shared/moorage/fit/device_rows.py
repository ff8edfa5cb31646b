"""Keeps the devices of a fleet's nodes as columns for the algorithms that choose devices, and scores nodes by these.

A row is what a node has of one kind of devices: nodes with several kinds have several rows. Only rows of clusters that changed are
read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.classes import meets
from moorage.collections import LruDict
from moorage.device_algorithms import WHOLE, Chooser, DeviceColumns, DeviceRequest, RequestMix, find_algorithm
from moorage.device_algorithms.mix import REMEMBERED
from moorage.model.claims import AskedDevices, Decision
from moorage.model.part_reports import PropertyValue
from moorage.model.part_requests import DeviceAsk, PartGroup, PropertySelector
from moorage.model.shapes import Shape
from moorage.parts.device_parts import unit_of
from moorage.parts.layout import InnerPart, Layout

from .class_scope import selector_in, without_identities
from .cluster_fit import changed_clusters, rows_of_clusters
from .inner_rows import nodes_by_layout
from .protocols import Ids, Rows

#: Resources of the node that count beside devices.
BESIDE = ("cpu", "memory")
#: Properties by which kinds of devices differ, where they are known; others tell devices of one kind apart.
_OF_KIND = ("Kind", "Vendor", "Driver", "model", "productName", "type", "profile", "memory", "size", "speed")
_ZONE, _ROOT = "numa", "pcieRoot"
Floats = NDArray[np.float64]


Entries = tuple[tuple[int, int], ...]
#: Equal devices of one part that are told apart. A pod takes fewer.
_MOST = 32


class _Device(NamedTuple):
    """A device of a layout, with the entries that it is counted by, and how much of each one device is. `number`: among equal
    ones that are one part."""

    entries: Entries
    number: int
    zone: int
    root: int


class _KindOfDevices(NamedTuple):
    """The devices of one kind on nodes of a layout. `properties`: of one of these devices."""

    kind: int
    part: InnerPart
    zones: NDArray[np.int64]
    roots: NDArray[np.int64]
    entries: NDArray[np.int64]  # by device: those that it is counted by, the last one repeated where others have more
    amounts: NDArray[np.int64]  # by device and entry
    taken: NDArray[np.int64]  # by device and entry: what equal ones before it take

    @classmethod
    def of(cls, kind: int, part: InnerPart, devices: Sequence[_Device]) -> _KindOfDevices:
        most = max(len(device.entries) for device in devices)
        padded = [(*device.entries, *device.entries[-1:] * (most - len(device.entries))) for device in devices]
        entries, amounts = np.moveaxis(np.array(padded, np.int64), 2, 0)
        numbers, zones, roots = np.array([device[1:] for device in devices], np.int64).T
        return cls(kind, part, zones, roots, entries, amounts, amounts * numbers[:, None])

    def free(self, free: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns thousandths that are free of each device, by node: the least of its amounts. `free`: by node and entry."""
        shares = (free[:, self.entries] - self.taken) * WHOLE // self.amounts
        least: NDArray[np.int64] = np.clip(shares.min(axis=2), 0, WHOLE)
        return least


class DeviceRows:
    """The columns of a fleet, with one mix of requests for all algorithms."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.mix = RequestMix()
        self._kinds: dict[object, int] = {}
        self._values: dict[str, int] = {}  # of properties that say which devices are close together
        self._samples: list[list[InnerPart]] = []  # by kind: devices that differ in their properties
        self._layouts: LruDict[bytes, list[_KindOfDevices]] = LruDict(1024)
        self._selected: LruDict[tuple[int, PropertySelector], frozenset[int]] = LruDict(1024)
        self._choosers: dict[str, Chooser] = {}
        self._places: LruDict[int, _Place] = LruDict(_PLACES)  # by cluster
        self._tick = -1
        self._size = -1
        self._nodes: Ids = np.empty(0, np.intp)  # by row of the columns
        self._columns: DeviceColumns | None = None
        self._recorded: LruDict[object, bool] = LruDict(4096)
        self._past: list[tuple[object, Shape]] = []  # what is learned again once there are devices

    def record(self, shape: Shape, ident: object) -> None:
        """Lets the mix learn what a shape asks, once for each `ident`."""
        if self._past:
            self._read_kinds()
            self._learn_past()
        if ident in self._recorded:
            return
        self._recorded[ident] = True
        for _ in range(_learned_times(shape.count)):
            for group in _device_groups(shape):
                self.mix.record(self._request(shape, group.devices[0]))

    def learn_again(self, decisions: Iterable[Decision]) -> None:
        """Lets the mix learn again what decisions were asked for. They begin with the newest, and no more are read than are
        remembered."""
        requests = 0
        for decision in decisions:
            for asked in reversed(decision.asked):
                ident = (decision.group, decision.revision, asked.app, asked.object)
                self._past.append((ident, _shape_of(asked)))
                requests += _learned_times(asked.count) * len(asked.devices)
            if requests >= REMEMBERED:
                break
        self._past.reverse()
        if self._read_kinds():
            self._learn_past()

    def _learn_past(self) -> None:
        past, self._past = self._past, []
        for ident, shape in past:
            self.record(shape, ident)

    def _read_kinds(self) -> bool:
        """Learns the kinds of the devices of all nodes. Returns whether there are any."""
        ids = np.flatnonzero(self._rows.usable[: self._rows.n])
        for found in nodes_by_layout(self._rows, ids, lambda _layout: ()):
            self._of_layout(found.layout)
        return bool(self._samples)

    def by_node(self, shape: Shape, default: str) -> Floats | None:
        """Returns the score of the best choice by row of the fleet: the sum over the needs of a pod, minus infinity where one has no
        devices. None: the shape asks for none. `default` names the algorithm for needs that name none."""
        groups = _device_groups(shape)
        if not groups:
            return None
        columns = self._current()
        total = np.zeros(self._rows.n)
        for group in groups:
            best = np.full(self._rows.n, -np.inf)
            for ask in group.devices:
                scores = self._chooser(ask.algorithm or default, columns).best_by_row(self._request(shape, ask))
                np.maximum.at(best, self._nodes, scores)
                if (best > -np.inf).any():
                    break  # the first choice that some node can give
            total += best
        return total

    def choose(
        self, shapes: Sequence[Shape], where: Ids, feasible: NDArray[np.bool_], default: str
    ) -> NDArray[np.int64] | None:
        """Returns how many pods of each shape the algorithm puts on each of these rows of the fleet, one pod after the other; None if
        it finds no place for one, or there are too many."""
        if sum(shape.count for shape in shapes) > _MOST_PODS:
            return None
        place = self._place(where)
        packed = np.zeros((len(shapes), len(where)), np.int64)
        for number, shape in enumerate(shapes):
            asked = [
                (ask.algorithm or default, self._request(shape, ask))
                for group in _device_groups(shape)
                for ask in group.devices[:1]
            ]
            for _ in range(shape.count):
                found = place.take_best(asked, feasible[number])
                if found is None:
                    return None
                packed[number, found] += 1
        return packed

    def _place(self, where: Ids) -> _Place:
        """Returns the devices of one cluster's nodes as they are now."""
        nodes, columns = self._read(where[self._rows.usable[where]])
        at, cid = _positions(where, nodes), int(self._rows.cluster[where[0]]) if len(where) else -1
        found = self._places.use(cid)
        if found is None or not found.renew(columns, at):
            found = self._places[cid] = _Place(columns, at, self.mix)
        return found

    def _request(self, shape: Shape, ask: DeviceAsk) -> DeviceRequest:
        beside = tuple(shape.resources.get(name, 0) for name in BESIDE)
        return DeviceRequest(ask.count, ask.share or WHOLE, beside, self._kinds_of(ask))

    def _kinds_of(self, ask: DeviceAsk) -> frozenset[int] | None:
        """Returns the kinds of which a device is selected; None: all, or it is not known."""
        if not ask.properties:
            return None
        selector = without_identities(selector_in(ask.properties, None))
        known = sum(map(len, self._samples))
        found = self._selected.use((known, selector))
        if found is None:
            found = self._selected[known, selector] = frozenset(
                kind
                for kind, parts in enumerate(self._samples)
                if any(meets(part.properties, selector) for part in parts)
            )
        return found

    def _chooser(self, name: str, columns: DeviceColumns) -> Chooser:
        found = self._choosers.get(name)
        if found is None:
            found = self._choosers[name] = Chooser(columns, find_algorithm(name), self.mix)
        return found

    # -- columns ---------------------------------------------------------------------------------------------------------

    def _current(self) -> DeviceColumns:
        rows = self._rows
        if self._columns is not None and rows.tick == self._tick and rows.size == self._size:
            return self._columns
        changed = changed_clusters(rows, self._tick) if self._columns is not None and rows.size == self._size else None
        self._tick, self._size = rows.tick, rows.size
        if self._columns is None or changed is None or not self._refreshed(rows_of_clusters(rows, changed)):
            self._rebuild()
        assert self._columns is not None
        return self._columns

    def _rebuild(self) -> None:
        rows = self._rows
        ids = np.flatnonzero(rows.usable[: rows.n])
        self._nodes, self._columns = self._read(ids)
        self._choosers.clear()

    def _refreshed(self, ids: Ids) -> bool:
        """Reads these rows of the fleet again. Returns whether they have the same devices as before."""
        columns = self._columns
        assert columns is not None
        ids = np.sort(ids[self._rows.usable[ids]])
        first, last = np.searchsorted(self._nodes, ids), np.searchsorted(self._nodes, ids, side="right")
        at = np.array([i for a, b in zip(first.tolist(), last.tolist(), strict=True) for i in range(a, b)], np.intp)
        nodes, found = self._read(ids, columns.size.shape[1])
        if len(nodes) != len(at) or found.size.shape[1] != columns.size.shape[1]:
            return False
        same = (nodes == self._nodes[at]).all() and (found.kinds == columns.kinds[at]).all()
        if not (same and (found.size == columns.size[at]).all()):
            return False
        changed = _changed(columns.rows(at), found)
        at = at[changed]
        columns.free[at], columns.beside_free[at] = found.free[changed], found.beside_free[changed]
        columns.beside_size[at] = found.beside_size[changed]
        for chooser in self._choosers.values():
            chooser.note_change(at.tolist())
        return True

    def _read(self, ids: Ids, least: int = 1) -> tuple[Ids, DeviceColumns]:
        by_layout = nodes_by_layout(self._rows, ids) if self._rows.layout is not None and len(ids) else ()
        blocks = [(ids[at], of, of.free(free)) for layout, at, free in by_layout for of in self._of_layout(layout)]
        width = max([least, *(len(of.zones) for _, of, _ in blocks)])
        count = sum(len(there) for there, _, _ in blocks)
        nodes, kinds = np.empty(count, np.intp), np.empty(count, np.int64)
        size, free, zones, roots = (np.full((count, width), missing, np.int64) for missing in (0, 0, -1, -1))
        begin = 0
        for there, of, left in blocks:
            here, devices = slice(begin, begin + len(there)), slice(len(of.zones))
            nodes[here], kinds[here], size[here, devices], free[here, devices] = there, of.kind, WHOLE, left
            zones[here, devices], roots[here, devices] = of.zones, of.roots
            begin += len(there)
        order = np.lexsort((kinds, nodes))
        nodes = nodes[order]
        return nodes, DeviceColumns(
            size[order],
            free[order],
            self._beside(nodes, total=True),
            self._beside(nodes),
            kinds[order],
            zones[order],
            roots[order],
        )

    def _beside(self, nodes: Ids, *, total: bool = False) -> NDArray[np.int64]:
        columns = [(self._rows.allocatable if total else self._rows.free)(name) for name in BESIDE]
        zero = np.zeros(len(nodes), np.int64)
        return np.column_stack([zero if column is None else column[nodes] for column in columns])

    def _of_layout(self, layout: Layout) -> list[_KindOfDevices]:
        found = self._layouts.use(layout.source)
        if found is None:
            found = self._layouts[layout.source] = list(self._kinds_in(layout))
        return found

    def _kinds_in(self, layout: Layout) -> Iterator[_KindOfDevices]:
        by_kind: dict[int, list[_Device]] = {}
        sample: dict[int, InnerPart] = {}
        for part in layout.parts:
            if part.device < 0 or not part.healthy:
                continue
            kind = self._kind_of(part)
            if entries := entries_of(layout, part):
                report = layout.inside.devices[part.device]
                places = self._number(part, _ZONE), self._number(part, _ROOT)
                equal = 1 if report.divisible else min(report.quantity, _MOST)
                by_kind.setdefault(kind, []).extend(_Device(entries, number, *places) for number in range(equal))
                sample.setdefault(kind, part)
        for kind, devices in by_kind.items():
            yield _KindOfDevices.of(kind, sample[kind], devices)

    def _number(self, part: InnerPart, suffix: str) -> int:
        """Returns a number that is equal for equal values of the property; -1 if it is missing."""
        for name, value in part.properties:
            if name.rpartition("/")[2] == suffix:
                return self._values.setdefault(repr(value), len(self._values))
        return -1

    def _kind_of(self, part: InnerPart) -> int:
        properties = dict(part.properties)
        key = (part.kind, tuple(_plain(properties.get(name)) for name in _OF_KIND))
        kind = self._kinds.setdefault(key, len(self._kinds))
        if kind == len(self._samples):
            self._samples.append([])
        parts = self._samples[kind]
        if len(parts) < _SAMPLES and all(part.properties != other.properties for other in parts):
            parts.append(part)
        return kind


#: Pods that an algorithm places one by one, and clusters whose scores are kept.
_MOST_PODS = 256
_PLACES = 64


class _Place:
    """The devices of one cluster's nodes while pods are placed there. `node`: the node of each row of the columns."""

    def __init__(self, columns: DeviceColumns, node: NDArray[np.intp], mix: RequestMix) -> None:
        self._columns, self._node, self._mix = columns, node, mix
        self._choosers: dict[str, Chooser] = {}

    def renew(self, columns: DeviceColumns, node: NDArray[np.intp]) -> bool:
        """Takes over what is free now. Returns whether all else is as it was."""
        known = self._columns
        steady = ("size", "kinds", "zones", "roots", "beside_size")
        if not np.array_equal(node, self._node) or not all(
            np.array_equal(getattr(columns, name), getattr(known, name)) for name in steady
        ):
            return False
        rows = _changed(known, columns)
        known.free[rows], known.beside_free[rows] = columns.free[rows], columns.beside_free[rows]
        self._note_change(rows)
        return True

    def take_best(self, asked: Sequence[tuple[str, DeviceRequest]], feasible: NDArray[np.bool_]) -> int | None:
        """Takes devices for all requests of one pod on the node with the best sum of scores. Returns the node."""
        total = np.where(feasible, 0.0, -np.inf)
        for name, request in asked:
            best = np.full(len(feasible), -np.inf)
            np.maximum.at(best, self._node, self._chooser(name).best_by_row(request))
            total += best
        found = int(total.argmax())
        if total[found] == -np.inf:
            return None
        rows = np.flatnonzero(self._node == found)
        for name, request in asked:
            choice = self._chooser(name).choose_among(request, rows)
            if choice is None:
                return None  # two needs of the pod want the same devices
            self._columns.free[choice.row, list(choice.devices)] -= request.share
            self._note_change([choice.row])
        if asked:
            self._columns.beside_free[rows] -= np.array(asked[0][1].beside, np.int64)
            self._note_change(rows)
        return found

    def _chooser(self, name: str) -> Chooser:
        found = self._choosers.get(name)
        if found is None:
            found = self._choosers[name] = Chooser(self._columns, find_algorithm(name), self._mix)
        return found

    def _note_change(self, rows: Iterable[int]) -> None:
        changed = list(map(int, rows))
        for chooser in self._choosers.values():
            chooser.note_change(changed)


def _changed(before: DeviceColumns, now: DeviceColumns) -> NDArray[np.intp]:
    """Returns the rows of which something else is free, or there is something else beside devices."""
    differs = (before.free != now.free).any(axis=1)
    for name in ("beside_free", "beside_size"):
        differs |= (getattr(before, name) != getattr(now, name)).any(axis=1)
    return np.flatnonzero(differs)


def _positions(where: Ids, nodes: Ids) -> NDArray[np.intp]:
    """Returns the position of each node in `where`."""
    order = np.argsort(where, kind="stable")
    return order[np.searchsorted(where[order], nodes)]


#: Devices of a kind that are looked at to tell whether a class may select it.
_SAMPLES = 64


def _device_groups(shape: Shape) -> list[PartGroup]:
    return [group for group in shape.groups if group.devices and not group.optional]


def _learned_times(pods: int) -> int:
    """Returns how often the mix learns what each of so many equal pods asks."""
    return min(max(pods, 1), 16)


def asked_devices(app: str, shape: Shape) -> AskedDevices | None:
    """Returns what the mix learns of a shape; None if that is nothing."""
    asks = [group.devices[0] for group in _device_groups(shape)]
    if not asks:
        return None
    return AskedDevices(
        app=app,
        object=shape.object,
        count=shape.count,
        resources={name: shape.resources[name] for name in BESIDE if name in shape.resources},
        devices=[DeviceAsk(count=ask.count, share=ask.share, properties=ask.properties) for ask in asks],
    )


def _shape_of(asked: AskedDevices) -> Shape:
    groups = [PartGroup(devices=(ask,)) for ask in asked.devices]
    return Shape(key="", object=asked.object, count=asked.count, resources=asked.resources, groups=groups)


def _plain(value: PropertyValue | None) -> object:
    return value if value is None else repr(value)


def entries_of(layout: Layout, part: InnerPart) -> Entries:
    """Returns the entries that a device is counted by, and how much of each one device is; none if it cannot be had."""
    report = layout.inside.devices[part.device]
    amounts = {name: found.capacity for name, found in part.inventories.items()}
    found = amounts if report.divisible else dict([unit_of(report)])
    if not found or any(amounts.get(name, 0) < amount or amount < 1 for name, amount in found.items()):
        return ()
    return tuple((layout.entry_at[part.path, name], amount) for name, amount in found.items())


def best_clusters_first(scores: Floats, clusters: NDArray[np.integer], size: int, most: int) -> list[NDArray[np.bool_]]:
    """Returns the clusters by the best score of their nodes: few in the first sets, twice as many in each that follows."""
    best = np.full(size, -np.inf)
    there = (clusters >= 0) & (scores > -np.inf)
    np.maximum.at(best, clusters[there], scores[there])
    values = np.unique(best[best > -np.inf])[::-1]
    found: list[NDArray[np.bool_]] = []
    first, width = 0, 1
    while first < len(values) and len(found) < most:
        last = len(values) if len(found) + 1 == most else first + width
        some = values[first:last]
        found.append((best <= some[0]) & (best >= some[-1]))
        first, width = last, width if len(found) < 8 else 2 * width
    return found
