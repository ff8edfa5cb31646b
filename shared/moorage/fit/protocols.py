"""Protocols of the fleet that fitting reads: columns over node rows. `moorage.fleet` implements them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint

Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]
Amounts = NDArray[np.int64]
Where = slice | Ids


class Rows(Protocol):
    """Columns with one entry per node. Entries [0, n) are in use; arrays may be longer. Cluster ids are dense and below
    `size`."""

    n: int
    size: int
    cluster: NDArray[np.int32]  # -1: a hole, which is never usable
    usable: Mask  # ready, schedulable, its cluster reports and is not cordoned
    labelset: NDArray[np.int32]
    taintset: NDArray[np.int32]  # 0: no taints
    label_sets: list[dict[str, str]]  # append only within a generation
    taint_sets: list[tuple[Taint, ...]]
    host_label: Mask  # kubernetes.io/hostname is the node's own name, and not in label_sets
    tick: int  # grows with every change

    def free(self, resource: str) -> Amounts | None:
        """Allocatable - requested - claimed per row; None: no node ever had the resource."""
        ...

    def allocatable(self, resource: str) -> Amounts | None: ...

    def node_name(self, row: int) -> str: ...

    def rows_of(self, cluster: int) -> Ids: ...

    def blocks(self) -> tuple[Ids, Ids]:
        """The clusters that have rows, in row order, and the first row of each: the rows of a cluster are contiguous."""
        ...

    def changed_since(self, tick: int) -> NDArray[np.int32] | None:
        """Clusters changed after `tick`; None: that is too long ago, and every cluster may have changed."""
        ...


@runtime_checkable
class NamedRows(Protocol):
    """Optional: a fleet with an index of node names."""

    def rows_named(self, name: str) -> Ids: ...
