"""Protocols of the fleet that fitting reads: columns over node rows. `moorage.fleet` implements them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint
from moorage.model.shared_slots import SharedSlots
from moorage.model.slots import PodParts
from moorage.parts.layout import Layout

Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]
Amounts = NDArray[np.int64]
Where = slice | Ids


class PartEntries(Protocol):
    """Columns with one entry per part that has a class. `row` is the part's row; -1: an empty entry."""

    @property
    def n(self) -> int: ...

    row: NDArray[np.int64]
    capacity: NDArray[np.int64]
    used: NDArray[np.int64]
    claimed: NDArray[np.int64]

    def positions(self, cluster: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the entries of rows of a cluster that all have the class."""
        ...


class LayoutTable(Protocol):
    any_aligns: bool  # the kubelet of a node aligns pods with zones
    any_gives_exclusive: bool  # the agent of a node gives pods CPUs of zones for themselves

    @property
    def found(self) -> Sequence[Layout]:
        """Returns the layouts by number, without the identities of devices."""
        ...

    @property
    def common(self) -> NDArray[np.int64]:
        """Returns, by number, the first number of those that differ only in the identities of devices."""
        ...

    @property
    def sources(self) -> Sequence[bytes]:
        """Returns the sources by number, with the identities of devices."""
        ...

    def own(self, number: int) -> Layout:
        """Returns a layout with the identities of its devices."""
        ...


class PartTable(Protocol):
    """Columns with one entry per part, those of a node in preorder. `node`: its node's row; -1: an empty row."""

    @property
    def n(self) -> int: ...
    @property
    def classes(self) -> Mapping[str, PartEntries]: ...
    @property
    def layouts(self) -> LayoutTable: ...

    node: NDArray[np.int64]
    root: NDArray[np.int64]  # the row of the node itself

    @property
    def sharing_clusters(self) -> Sequence[int]:
        """Returns the clusters with parts that several nodes reach."""
        ...

    def shared_in(self, cluster: int) -> Mapping[str, NDArray[np.int64]]:
        """Returns the parts of a cluster that several nodes may reach, by id: their rows, ascending."""
        ...

    def rows_of(self, cluster: int) -> slice: ...


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
    layout: NDArray[np.int32] | None  # number of what is inside; 0: nothing. None: no node has parts
    tick: int  # grows with every change
    names: list[str]  # of clusters
    #: Cluster → node whose kubelet aligns pods → the pods that may still arrive there, by what their slots take of its parts.
    open_pods: dict[int, dict[str, Mapping[PodParts, int]]]
    #: Cluster → node with slots that several machine types share.
    shared_slots: dict[int, dict[str, tuple[SharedSlots, ...]]]

    @property
    def parts(self) -> PartTable: ...

    def row_of(self, cid: int, node: str) -> int | None: ...

    def free(self, resource: str) -> Amounts | None:
        """Allocatable - requested - claimed per row; None: no node ever had the resource."""
        ...

    def allocatable(self, resource: str) -> Amounts | None: ...

    def node_name(self, row: int) -> str: ...

    def rows_of(self, cluster: int) -> Ids: ...

    def blocks(self) -> tuple[Ids, Ids]:
        """Returns the clusters that have rows, in row order, and the first row of each: the rows of a cluster are
        contiguous."""
        ...

    def changed_since(self, tick: int) -> NDArray[np.int32] | None:
        """Returns the clusters changed after `tick`; None: that is too long ago, and every cluster may have changed."""
        ...


@runtime_checkable
class NamedRows(Protocol):
    """Optional: a fleet with an index of node names."""

    def rows_named(self, name: str) -> Ids: ...
