"""Describes nodes with devices as columns, what is asked of one node, and the ways in which a node can meet it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: A whole device. Shares are in thousandths.
WHOLE = 1000
#: Kinds that are compared one by one.
_FEW = 8

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class DeviceRequest(NamedTuple):
    """The request of one pod: `share` of each of so many `devices`, and amounts of the node's other resources beside them.

    `kinds` are the numbers of the kinds of devices that may serve it; None stands for all.
    """

    devices: int
    share: int = WHOLE
    beside: tuple[int, ...] = ()
    kinds: frozenset[int] | None = None

    @property
    def amount(self) -> int:
        return self.devices * self.share


@dataclass(slots=True)
class DeviceColumns:
    """Nodes as rows, in the order in which first-fit looks at them, each with its devices in their order.

    A device that a node does not have, or that must not be used, has the size 0 and nothing free.
    """

    size: Ints  # by row and device, in thousandths: WHOLE, or 0
    free: Ints  # by row and device, in thousandths
    beside_size: Ints  # by row and other resource
    beside_free: Ints  # by row and other resource
    kinds: Ints  # by row: the number of the kind of its devices
    zones: Ints | None = None  # by row and device: the number of its NUMA zone
    roots: Ints | None = None  # by row and device: the number of its PCIe root

    def __len__(self) -> int:
        return len(self.kinds)

    def rows(self, at: Ints) -> DeviceColumns:
        """Returns a copy of some rows."""
        zones, roots = (None if groups is None else groups[at] for groups in (self.zones, self.roots))
        return DeviceColumns(
            self.size[at],
            self.free[at],
            self.beside_size[at],
            self.beside_free[at],
            self.kinds[at],
            zones,
            roots,
        )

    def take(self, row: int, devices: Sequence[int], request: DeviceRequest) -> None:
        self.free[row, devices] -= request.share
        if request.beside:
            self.beside_free[row] -= request.beside

    def give_back(self, row: int, devices: Sequence[int], request: DeviceRequest) -> None:
        self.free[row, devices] += request.share
        if request.beside:
            self.beside_free[row] += request.beside


class Options(NamedTuple):
    """Ways to meet a request. Each is a row and the devices that it takes of; those of one row follow each other."""

    rows: Ints  # ascending
    devices: Ints  # by option: as many as are asked


def options(columns: DeviceColumns, request: DeviceRequest, rows: Ints, *, first: bool = False) -> Options:
    """Returns the ways to meet the request on each of the rows, without those that differ only by equal devices.

    Of several devices those are taken that are close together, or with `first` the first ones.
    """
    rows = _of_kinds(columns, request, rows)
    rows = rows[_has_room_beside(columns, request, rows)]
    if not request.devices:
        return Options(rows, np.zeros((len(rows), 0), np.int64))
    free = columns.free[rows]
    usable = free >= request.share
    if request.devices > 1:
        enough = usable.sum(axis=1) >= request.devices
        rows, usable = rows[enough], usable[enough]
        rank = np.zeros(usable.shape, np.int64) if first else _distance(columns, request, rows, usable)
        order = np.argsort(np.where(usable, rank, np.iinfo(np.int64).max), axis=1, kind="stable")
        return Options(rows, order[:, : request.devices].astype(np.int64))
    order = np.argsort(free, axis=1, kind="stable")
    ordered = np.take_along_axis(free, order, axis=1)
    at, place = (ordered[:, 1:] == ordered[:, :-1]).nonzero()
    usable[at, order[at, place + 1]] = False
    at, devices = usable.nonzero()
    return Options(rows[at], devices[:, None].astype(np.int64))


def runs(ascending: Ints) -> tuple[Ints, Ints]:
    """Returns where the runs of equal numbers begin, and the run of each."""
    differs = ascending[1:] != ascending[:-1]
    starts = np.flatnonzero(np.concatenate(([True], differs))) if len(ascending) else np.empty(0, np.int64)
    return starts, np.concatenate(([0], np.cumsum(differs)))[: len(ascending)]


def _of_kinds(columns: DeviceColumns, request: DeviceRequest, rows: Ints) -> Ints:
    """Returns the rows with devices of the kinds that may serve the request."""
    if request.kinds is None:
        return rows
    kinds = columns.kinds[rows]
    if len(request.kinds) > _FEW:
        return rows[np.isin(kinds, np.fromiter(request.kinds, np.int64))]
    allowed = np.zeros(len(rows), np.bool_)
    for kind in request.kinds:
        allowed |= kinds == kind
    return rows[allowed]


def _has_room_beside(columns: DeviceColumns, request: DeviceRequest, rows: Ints) -> NDArray[np.bool_]:
    fits = np.ones(len(rows), np.bool_)
    for resource, amount in enumerate(request.beside):
        if amount:
            fits &= columns.beside_free[rows, resource] >= amount
    return fits


def _distance(columns: DeviceColumns, request: DeviceRequest, rows: Ints, usable: NDArray[np.bool_]) -> Ints:
    """Ranks devices so that the first ones of a row are of the fewest zones, in these of the fewest roots, and the fullest."""
    rank = columns.free[rows]
    limit = WHOLE + 1
    for groups in (columns.roots, columns.zones):
        if groups is not None:
            here = groups[rows]
            alike = here[:, :, None] == here[:, None, :]
            peers = (alike & usable[:, None, :]).sum(axis=2)
            width = here.shape[1] + 1
            # A group that suffices comes before all others, the smallest such first; else the largest.
            order = np.where(peers >= request.devices, peers, 2 * width - peers)
            rank += limit * (order * (int(groups.max(initial=0)) + 2) + here + 1)
            limit = int(rank.max(initial=0)) + 1
    return rank
