"""The columns of nodes: amounts of resources and used host ports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import grown
from moorage.podspec import node_amount, parse_host_port, port_amounts


class ResourceColumns:
    """The columns of a resource. `claimed` is allocated with the first claim; only committers need it."""

    __slots__ = ("allocatable", "claimed", "free")

    def __init__(self, length: int) -> None:
        self.allocatable: NDArray[np.int64] = np.zeros(length, np.int64)
        self.free: NDArray[np.int64] = np.zeros(length, np.int64)
        self.claimed: NDArray[np.int64] | None = None

    def grow(self, length: int) -> None:
        self.allocatable = grown(self.allocatable, length)
        self.free = grown(self.free, length)
        if self.claimed is not None:
            self.claimed = grown(self.claimed, length)

    def requested(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        used: NDArray[np.int64] = self.allocatable[rows] - self.free[rows]
        if self.claimed is not None:
            used -= self.claimed[rows]
        return used

    def clear(self, rows: NDArray[np.intp]) -> None:
        self.allocatable[rows] = 0
        self.free[rows] = 0
        if self.claimed is not None:
            self.claimed[rows] = 0

    def move(self, old: slice, new: slice) -> None:
        for column in (self.allocatable, self.free, self.claimed):
            if column is not None:
                column[new] = column[old]
                column[old] = 0


class PortUse:
    """The amounts of one port's resource that each set of host ports takes. Sets are appended only, or the list is another one."""

    __slots__ = ("_by_set", "_sets", "amount", "resource")

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.amount = node_amount(resource)
        self._sets: Sequence[tuple[str, ...]] = ()
        self._by_set: NDArray[np.int64] = np.empty(0, np.int64)

    def taken(self, sets: Sequence[tuple[str, ...]], numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """Returns what the sets of these numbers take."""
        if sets is not self._sets:
            self._sets, self._by_set = sets, np.empty(0, np.int64)
        if len(self._by_set) < len(sets):
            new = [set_amounts(ports).get(self.resource, 0) for ports in sets[len(self._by_set) :]]
            self._by_set = np.concatenate([self._by_set, np.array(new, np.int64)])
        return self._by_set[numbers]


@lru_cache(4096)
def set_amounts(ports: tuple[str, ...]) -> dict[str, int]:
    return port_amounts(map(parse_host_port, ports))


class RowColumns(NamedTuple):
    """The decoded columns of a patch's rows."""

    flags: NDArray[np.uint8]
    labels: NDArray[np.int32]
    taints: NDArray[np.int32]
    exclusive: NDArray[np.int64]
    resources: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
    ports: NDArray[np.int32]
    layouts: NDArray[np.int32]
    uses: NDArray[np.int64]  # what is used of the parts of the rows that have a layout, entry by entry
    first_use: NDArray[np.int64]  # of each row, its first place in `uses`

    def pick(self, rows: NDArray[np.intp]) -> RowColumns:
        resources = {name: (a[rows], r[rows]) for name, (a, r) in self.resources.items()}
        flags, labels, taints, exclusive = self.flags[rows], self.labels[rows], self.taints[rows], self.exclusive[rows]
        ports, layouts, first_use = self.ports[rows], self.layouts[rows], self.first_use[rows]
        return RowColumns(flags, labels, taints, exclusive, resources, ports, layouts, self.uses, first_use)
