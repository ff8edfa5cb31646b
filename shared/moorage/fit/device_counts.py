"""Counts by cluster the devices that a need could use, and what keeps it from the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model.part_requests import DeviceAsk, PartGroup
from moorage.model.shapes import Shape
from moorage.parts.device_slots import selected_devices
from moorage.parts.device_table import tolerated

from .device_rows import entries_of, free_of
from .inner_rows import nodes_by_layout
from .inside import Asked, StaticInside
from .protocols import Mask, Rows

Counts = NDArray[np.int64]


class DeviceCounts(NamedTuple):
    """Devices by cluster. Each number counts those of the number before that meet one condition more. `most_free`: on one node.
    `incomplete`, `invalid`: nodes with pools of which no device counts, because slices are missing, or because they make no sense.
    `known`: some cluster has a DeviceClass of the name that is asked for."""

    there: Counts
    selected: Counts
    healthy: Counts
    tolerated: Counts
    free: Counts
    most_free: Counts
    incomplete: Counts
    invalid: Counts
    known: bool

    def lacks(self, ask: DeviceAsk) -> Mask:
        """Returns the clusters of which no node has enough devices free at once."""
        lacking: Mask = self.most_free < ask.count
        return lacking


def count_devices(rows: Rows, ask: DeviceAsk, about: Mask) -> DeviceCounts:
    """Counts the devices of usable nodes of these clusters."""
    ids = np.flatnonzero(rows.usable[: rows.n] & about[rows.cluster[: rows.n]])
    there, selected, healthy, untainted, free, incomplete, invalid = (np.zeros(rows.size, np.int64) for _ in range(7))
    most = np.zeros(rows.size, np.int64)
    wanted = ask.share or 1000
    known = False
    seen: set[tuple[int, str]] = set()  # clusters with the devices that several nodes reach, which count once
    if not len(ids):
        return DeviceCounts(there, selected, healthy, untainted, free, most, incomplete, invalid, known)
    asked = Asked(Shape(key="", object="", groups=[PartGroup(devices=(ask,))]))
    for layout, at, amounts in nodes_by_layout(rows, ids, asked=[asked]):
        table = StaticInside.of(layout).table
        known = known or (ask.device_class or ask.resource_class) in table.classes
        verdicts = selected_devices(table, ask)
        clusters = rows.cluster[ids[at]].astype(np.int64)
        on_node = np.zeros(len(at), np.int64)
        counting = np.zeros(len(at), np.int64)
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
                part.healthy or bool(report.taints),
                tolerated(report.taints, ask.tolerations),
            ]
            for meets, column in zip(steps, (there, selected, healthy, untainted), strict=True):
                if not meets:
                    break
                np.add.at(column, counted, number)
            else:
                if not entries:
                    continue
                whole = amounts[:, entries[0][0]] // entries[0][1]
                of_part = (free_of(entries, 0, amounts) >= wanted) if report.divisible else np.clip(whole, 0, number)
                on_node += of_part
                counting += of_part if first is None else of_part * first
        np.add.at(free, clusters, counting)
        np.maximum.at(most, clusters, on_node)
        if layout.inside.incomplete_pools:
            np.add.at(invalid if layout.inside.invalid_pools else incomplete, clusters, 1)
    return DeviceCounts(there, selected, healthy, untainted, free, most, incomplete, invalid, known)


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


def _first_of(clusters: Counts, path: str, seen: set[tuple[int, str]]) -> Mask:
    """Returns the first node of each cluster that is not among those seen with a part, which is added to them."""
    found = np.zeros(len(clusters), np.bool_)
    for cluster, at in zip(*np.unique(clusters, return_index=True), strict=True):
        key = int(cluster), path
        found[at] = key not in seen
        seen.add(key)
    return found
