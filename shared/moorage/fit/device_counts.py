"""Counts by cluster the devices that a need could use, and what keeps it from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model.part_requests import DeviceAsk, PartGroup
from moorage.model.shapes import Shape
from moorage.parsing import parse_nanos
from moorage.parts.device_parts import unit_of
from moorage.parts.device_slots import selected_devices
from moorage.parts.device_table import tolerated
from moorage.parts.layout import InnerPart, Layout, part_id

from .asked_parts import Asked
from .device_rows import entries_of
from .inner_rows import nodes_by_layout
from .protocols import Ids, Mask, Rows
from .static_inside import StaticInside

Counts = NDArray[np.int64]
_NANO = 10**9


class ShortCounter(NamedTuple):
    """A counter of which a device takes more than is left, or a capacity of a device of which less is left than is asked for. `free`
    is negative where the device has no such capacity."""

    part: str
    name: str
    needed: int
    free: int


class WholeNode(NamedTuple):
    """How many devices of a node a need for all of them selects, and how many of those are tolerated and free."""

    node: str
    selected: int
    tolerated: int
    free: int


class DeviceCounts(NamedTuple):
    """Devices by cluster. Each number counts those of the number before that meet one condition more. `most_free`: on one node.
    `starved`: devices that nobody has, but counters that they take of have too little left; `counter` is the nearest of these.
    `incomplete`, `invalid`: nodes with pools of which no device counts, because slices are missing, or because they make no sense.
    `known`: some cluster has a DeviceClass of the name that is asked for. `capacity` is the nearest of the devices that have too
    little left of a capacity. `whole`: nodes of which all selected devices are free; `nearest` is the nearest of the others."""

    there: Counts
    selected: Counts
    healthy: Counts
    tolerated: Counts
    free: Counts
    most_free: Counts
    starved: Counts
    incomplete: Counts
    invalid: Counts
    known: bool
    whole: Counts
    counter: ShortCounter | None = None
    capacity: ShortCounter | None = None
    nearest: WholeNode | None = None

    def lacks(self, ask: DeviceAsk) -> Mask:
        """Returns the clusters of which no node has enough devices free at once."""
        lacking: Mask = self.whole == 0 if ask.all else self.most_free < ask.count
        return lacking


def count_devices(rows: Rows, ask: DeviceAsk, about: Mask) -> DeviceCounts:
    """Counts the devices of usable nodes of these clusters."""
    ids = np.flatnonzero(rows.usable[: rows.n] & about[rows.cluster[: rows.n]])
    there, selected, healthy, untainted, free, most, starved, incomplete, invalid, whole = (
        np.zeros(rows.size, np.int64) for _ in range(10)
    )
    counter: ShortCounter | None = None
    capacity: ShortCounter | None = None
    nearest_whole: WholeNode | None = None
    known = False
    seen: set[tuple[int, str]] = set()  # clusters with the devices that several nodes reach, which count once
    if not len(ids):
        return DeviceCounts(there, selected, healthy, untainted, free, most, starved, incomplete, invalid, known, whole)
    asked = Asked(Shape(key="", object="", groups=[PartGroup(devices=(ask,))]))
    for layout, at, amounts in nodes_by_layout(rows, ids, asked=[asked]):
        table = StaticInside.of(layout).table
        if ask.extended_resource and ask.extended_resource not in table.serving:
            _count_of_nodes(rows, ask.extended_resource, ids[at], (there, selected, healthy, untainted), free, most)
            continue
        known = known or (ask.device_class or ask.resource_class) in table.classes
        verdicts = selected_devices(table, ask)
        clusters = rows.cluster[ids[at]].astype(np.int64)
        on_node = np.zeros(len(at), np.int64)
        counting = np.zeros(len(at), np.int64)
        chosen = usable = 0  # devices of the node that are selected, and those of them that are tolerated
        by_source: dict[int, tuple[Counts, Counts]] = {}  # entry → devices that take of it first, and the most that can
        for part in layout.parts:
            if part.device < 0:
                continue
            report, entries = table.devices[part.device], entries_of(layout, part)
            number = 1 if report.divisible else report.quantity
            first = _first_of(clusters, part.path, seen) if part.shared else None
            counted = clusters if first is None else clusters[first]
            steps = [
                True,
                bool(verdicts(part.device, part.properties)),
                part.healthy or (bool(report.taints) and report.healthy),
                tolerated(report.taints, ask.tolerations),
            ]
            chosen += number * steps[1]
            usable += number * all(steps)
            for meets, column in zip(steps, (there, selected, healthy, untainted), strict=True):
                if not meets:
                    break
                np.add.at(column, counted, number)
            else:
                if not entries:
                    continue
                wanted = table.taken(part.device, ask.capacity, ask.share)
                of_part = (
                    _gives(layout, part, wanted, amounts)
                    if report.divisible or wanted is None
                    else np.clip(amounts[:, entries[0][0]] // entries[0][1], 0, number)
                )
                if ask.capacity and not of_part.all():
                    capacity = _nearer(capacity, _short_capacity(rows, ids[at], layout, part, amounts, ask, wanted))
                sources = _sources(layout, part, amounts)
                if ask.admin:  # it takes nothing
                    of_part, sources = np.full(len(at), number), []
                for entry, each, most_of in sources:
                    short = (of_part > 0) & (most_of == 0)
                    if short.any():
                        np.add.at(starved, clusters, of_part * short * (1 if first is None else first))
                        nearest = int(np.argmax(np.where(short, amounts[:, entry], -1)))
                        left = int(amounts[nearest, entry])
                        of, name = layout.entries[entry]
                        short_of = part_id(rows.node_name(int(ids[at[nearest]])), layout.parts[of].path)
                        counter = _nearer(counter, ShortCounter(short_of, name, each, max(left, 0)))
                    of_part = np.minimum(of_part, most_of)
                if sources:
                    entry, _, most_of = sources[0]
                    others, bound = by_source.get(entry, (on_node * 0, most_of))
                    by_source[entry] = others + of_part, np.maximum(bound, most_of)
                else:
                    on_node += of_part
                counting += of_part if first is None else of_part * first
        for devices, bound in by_source.values():
            on_node += np.minimum(devices, bound)
        np.add.at(free, clusters, counting)
        np.maximum.at(most, clusters, on_node)
        if layout.inside.incomplete_pools:
            np.add.at(invalid if layout.inside.invalid_pools else incomplete, clusters, 1)
        elif ask.all and chosen:
            np.add.at(whole, clusters, on_node >= chosen)
            best = int(np.argmax(on_node))
            here = WholeNode(rows.node_name(int(ids[at[best]])), chosen, usable, int(on_node[best]))
            if nearest_whole is None or here.free * nearest_whole.selected > nearest_whole.free * here.selected:
                nearest_whole = here
    return DeviceCounts(
        there, selected, healthy, untainted, free, most, starved, incomplete, invalid, known, whole,
        counter, capacity, nearest_whole,
    )  # fmt: skip


def _count_of_nodes(rows: Rows, resource: str, ids: Ids, columns: Sequence[Counts], free: Counts, most: Counts) -> None:
    """Counts what nodes have of an extended resource themselves as devices of which no more is known."""
    clusters = rows.cluster[ids]
    total, left = rows.allocatable(resource), rows.free(resource)
    if total is None or left is None:
        return
    for column in columns:
        np.add.at(column, clusters, total[ids])
    np.add.at(free, clusters, np.maximum(left[ids], 0))
    np.maximum.at(most, clusters, left[ids])


def _gives(layout: Layout, part: InnerPart, wanted: Mapping[str, int] | None, amounts: Counts) -> Counts:
    """Returns, by node, 1 where a device that can be divided has so much left of its capacities; None of `wanted`: it never has."""
    found = np.full(len(amounts), wanted is not None, np.int64)
    for name, amount in (wanted or {}).items():
        entry = layout.entry_at.get((part.path, name))
        if entry is not None:
            found &= amounts[:, entry] >= amount
    return found


def _sources(layout: Layout, part: InnerPart, amounts: Counts) -> list[tuple[int, int, Counts]]:
    """Returns what a device takes of other parts, as counters that it shares: the entry of each, how much it takes, and how many such
    devices there is room for, by node. One that can be divided takes it once, which may have happened."""
    report = layout.inside.devices[part.device]
    return [
        (entry, amount * take.amount, np.maximum(amounts[:, entry], 0) // (amount * take.amount))
        for name, amount in ([unit_of(report)] if part.consumes and not report.divisible else ())
        for take in part.consumes.get(name, ())
        if take.part and amount * take.amount > 0
        for entry in (layout.entry_at[layout.parts[take.part].path, take.resource],)
    ]


def lacking_devices(rows: Rows, shape: Shape, about: Mask) -> Mask:
    """Returns which of these clusters have too few devices for a need of the shape, whichever of its alternatives is taken."""
    lacking: Mask = np.zeros(rows.size, np.bool_)
    for group in shape.groups if about.any() else ():
        if group.devices and not group.optional:
            without = about & ~lacking
            for ask in group.devices:
                without = without & count_devices(rows, ask, without).lacks(ask)
            lacking |= without
    return lacking


def _nearer(known: ShortCounter | None, found: ShortCounter | None) -> ShortCounter | None:
    """Returns the one of which a larger share of what is needed is left."""
    if known is None or found is None:
        return known or found
    return known if known.free * found.needed >= found.free * known.needed else found


def _short_capacity(
    rows: Rows,
    nodes: Ids,
    layout: Layout,
    part: InnerPart,
    amounts: Counts,
    ask: DeviceAsk,
    wanted: Mapping[str, int] | None,
) -> ShortCounter | None:
    """Returns the capacity of which a device has too little left, or never so much: of the nodes the nearest one."""
    for name, needed in (wanted or {}).items():
        entry = layout.entry_at.get((part.path, name))
        if entry is not None and (short := amounts[:, entry] < needed).any():
            nearest = int(np.argmax(np.where(short, amounts[:, entry], np.iinfo(np.int64).min)))
            device = part_id(rows.node_name(int(nodes[nearest])), part.path)
            return ShortCounter(device, name, needed, max(int(amounts[nearest, entry]), 0))
    device = part_id(rows.node_name(int(nodes[0])), part.path)
    has = layout.inside.devices[part.device].capacity
    for name, text in ask.capacity.items() if wanted is None else ():
        needed = -(-parse_nanos(text) // _NANO)
        total = parse_nanos(has[name]) // _NANO if name in has else -1
        if total < needed:
            return ShortCounter(device, name, needed, total)
    return None


def _first_of(clusters: Counts, path: str, seen: set[tuple[int, str]]) -> Mask:
    """Returns the first node of each cluster that is not among those seen with a part, which is added to them."""
    found = np.zeros(len(clusters), np.bool_)
    for cluster, at in zip(*np.unique(clusters, return_index=True), strict=True):
        key = int(cluster), path
        found[at] = key not in seen
        seen.add(key)
    return found
