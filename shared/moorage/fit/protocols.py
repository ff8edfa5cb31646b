"""What fitting needs to see of a fleet: columns over node rows. Whoever keeps a fleet satisfies this; nothing here does."""

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
    """Entries [0, n) are in use; arrays may be longer. Cluster ids are dense and below `size`."""

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
        """Allocatable - requested - claimed; None: no node ever had it."""
        ...

    def allocatable(self, resource: str) -> Amounts | None: ...

    def node_name(self, row: int) -> str: ...

    def rows_of(self, cluster: int) -> Ids: ...

    def blocks(self) -> tuple[Ids, Ids]:
        """Each cluster's rows are neighbours: clusters that have any in their order, and where they begin."""
        ...

    def changed_since(self, tick: int) -> NDArray[np.int32] | None:
        """Clusters changed after `tick`; None: too long ago, everything may have."""
        ...


@runtime_checkable
class NamedRows(Protocol):
    """A fleet that finds nodes by name without asking every row; optional."""

    def rows_named(self, name: str) -> Ids: ...
