"""Keeps all nodes of all clusters as columns, updated in place.

Decisions read only this, so a question about the whole fleet is vector arithmetic, and changes can be asked for by tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import spread
from moorage.model.machines import Allow
from moorage.model.reports import Taint
from moorage.model.shapes import EXCLUSIVE
from moorage.model.shared_slots import SharedSlots
from moorage.model.slots import PodParts, part_and_class, part_resources
from moorage.podspec import is_host_port

from . import delta
from .change import FleetChange
from .claimed_pods import ClaimedPods
from .cluster_labels import Clusters
from .cluster_sums import ClusterSums
from .columns import PortUse, ResourceColumns, RowColumns
from .delta import (
    GONE,
    HOST,
    READY,
    REJECTED,
    UNSCHEDULABLE,
    Epoch,
    FleetDelta,
    Malformed,
)
from .node_parts import NodeParts

#: The exclusive cores of a node in a cluster where no node reports a CPU manager.
BOUNDLESS = 1 << 40
#: Columns of host ports that nobody claims are dropped beyond this number.
MAX_PORT_COLUMNS = 64
_NO_ROWS: NDArray[np.intp] = np.empty(0, np.intp)
_USABLE = READY | UNSCHEDULABLE | REJECTED


class Fleet(NodeParts):
    """The columns of the fleet.

    Arrays are replaced when they grow, so read them from here each time. After a reset (`changed_since` returns None) label
    and taint numbers mean other sets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_change: list[Callable[[FleetChange], None]] = []
        self.pods = ClaimedPods()
        self.open_pods: dict[int, dict[str, Mapping[PodParts, int]]] = {}  # cluster → node whose kubelet aligns pods
        self.shared_slots: dict[
            int, dict[str, tuple[SharedSlots, ...]]
        ] = {}  # cluster → node with slots for several types
        #: Slots of a machine that not everyone may use → cluster → who may: who meets all of these.
        self.slot_users: dict[str, dict[str, tuple[Allow, ...]]] = {}
        #: By machine type: times by which pods may be gone that take slots which windows keep for later, see `slot_resource`.
        self.slot_times: dict[str, tuple[int, ...]] = {}
        self._sums = ClusterSums(self)
        # The dictionary. Entry 0 of each is the empty set.
        self.label_sets: list[dict[str, str]] = [{}]
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.port_sets: list[tuple[str, ...]] = [()]
        self.clusters = Clusters(self)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def resources(self) -> list[str]:
        return sorted(self._resources)

    def free(self, resource: str) -> NDArray[np.int64] | None:
        """Returns allocatable minus requested minus claimed of each row; None if no node ever had the resource."""
        found = self._resource(resource)
        return None if found is None else found.free

    def allocatable(self, resource: str) -> NDArray[np.int64] | None:
        found = self._resource(resource)
        return None if found is None else found.allocatable

    def requested(self, resource: str, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Returns what pods on these rows request, without claims."""
        found = self._resource(resource)
        return np.zeros(len(rows), np.int64) if found is None else found.requested(rows)

    def cluster_labels(self, cid: int) -> dict[str, str]:
        return self.clusters.labels(cid)

    def extras(self, row: int) -> dict[str, Any]:
        """Returns the reported zones, providers, devices and machines of a node."""
        found = self._extras.get(int(self.cluster[row]), {}).get(self.node_name(row))
        return dict(msgspec.json.decode(found, type=dict[str, Any])) if found else {}

    def extras_of(self, cid: int) -> dict[str, bytes]:
        return self._extras.get(cid, {})

    def sums(self, resource: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns free and allocatable amounts per cluster, over usable nodes; read-only, and current until the next
        change."""
        found = self._resource(resource)
        if found is None:
            return np.zeros(self.size, np.int64), np.zeros(self.size, np.int64)
        return self._sums.read(resource, found)

    # -- changes -------------------------------------------------------------------------------------------------

    def take(self, row: int, resources: Mapping[str, int], sign: int = 1) -> None:
        """Claims resources of a row, also those of its parts (`resource_of_part`), or releases them (sign -1), in place."""
        cid = int(self.cluster[row])
        if cid < 0:
            raise IndexError(f"row {row} has no node")
        usable = bool(self.usable[row])
        for name, amount in resources.items():
            if (part := part_and_class(name)) is not None:
                self.take_parts(row, {part[0]: {part[1]: amount}}, sign)
                continue
            found = self._resource(name) or self._new_resource(name)
            if found.claimed is None:
                found.claimed = np.zeros(len(found.free), np.int64)
            before = found.free.item(row)  # much cheaper than an index and a conversion
            after = before - sign * amount
            found.claimed[row] = found.claimed.item(row) + sign * amount
            found.free[row] = after
            if usable:
                self._sums.claim(cid, name, before, after)
        self.tick += 1
        self._changed[cid] = self.tick
        if sign < 0:
            self._improved[row] = self._improved_cluster[cid] = self.tick

    def set_shared_slots(self, cid: int, node: str, slots: tuple[SharedSlots, ...]) -> None:
        """Sets which slots of a node types of machines share. What is free of each type is a column."""
        if slots:
            self.shared_slots.setdefault(cid, {})[node] = slots
        elif (nodes := self.shared_slots.get(cid)) is not None and nodes.pop(node, None) is not None and not nodes:
            del self.shared_slots[cid]

    def set_open_pods(self, cid: int, node: str, pods: Mapping[PodParts, int]) -> None:
        """Sets which pods may still arrive at a node, by what their slots take of its parts."""
        before = self.open_pods.get(cid, {}).get(node, {})
        if before == pods:
            return
        if pods:
            self.open_pods.setdefault(cid, {})[node] = dict(pods)
        else:
            del self.open_pods[cid][node]
            if not self.open_pods[cid]:
                del self.open_pods[cid]
        self.tick += 1
        self._changed[cid] = self.tick
        row = self.row_of(cid, node)
        if row is not None and any(pods.get(parts, 0) < count for parts, count in before.items()):
            self._improved[row] = self._improved_cluster[cid] = self.tick

    def taken(self, row: int) -> dict[str, int]:
        """Returns what is claimed of a row and of its parts."""
        of_row = {
            n: int(r.claimed[row]) for n, r in self._resources.items() if r.claimed is not None and r.claimed[row]
        }
        return of_row if self.layout is None else of_row | part_resources(self.parts_taken(row))

    # -- writing -------------------------------------------------------------------------------------------------------

    def apply(self, patch: FleetDelta) -> FleetChange:
        """Applies a patch that `decode` has checked. Parts that are not newer than the rows here are skipped."""
        self._learn(patch)
        parts = patch.clusters
        total = patch.rows
        columns = self._columns_of(patch, total)
        if parts:
            self._ensure_clusters(max(part.id for part in parts) + 1)
        self.tick += 1
        targets: list[NDArray[np.intp]] = []
        fresh: list[NDArray[np.bool_]] = []
        sources: list[tuple[int, int]] = []
        changed: list[int] = []
        node_sets: list[int] = []
        restated: list[int] = []
        claims: set[str] = set()
        admitted: set[tuple[int, str]] = set()
        offset = 0
        for part in parts:
            begin, offset = offset, offset + part.rows
            cid = part.id
            if part.version and part.version <= self._version[cid]:
                continue
            self._version[cid] = max(part.version, int(self._version[cid]))
            changed.append(cid)
            if self._restate(part, patch.counter):
                restated.append(cid)
            if part.labels is not None or part.state & GONE:
                self.clusters.relabel(cid, part.name, part.labels or {})
            refused = self.pods.refusals(cid)
            claims.update(self.pods.restate(part))
            admitted.update((cid, node) for _, node in refused - self.pods.refusals(cid))
            if part.rows or part.whole or part.gone:
                rows, new, moved = self._place(part)
                targets.append(rows)
                fresh.append(new)
                sources.append((begin, offset))
                if moved:
                    node_sets.append(cid)
        if targets:
            rows = np.concatenate(targets)
            if len(rows) != total:  # some parts were skipped
                pick = np.concatenate([np.arange(a, b) for a, b in sources])
                columns = columns.pick(pick)
            self._write(rows, np.concatenate(fresh), columns)
        else:
            rows, columns = _NO_ROWS, columns.pick(_NO_ROWS)
        part_sets = self._write_parts(rows, columns, node_sets)
        if restated:
            self._requalify(self.rows_in(np.array(restated)))
        cids = np.array(changed, np.int32)
        self._changed[cids] = self.tick
        for cid, node in admitted:
            self.note_improved(cid, node)
        self._sums.restate(cids)
        if changed and EXCLUSIVE in self._resources:  # derived only once it was asked for
            self._derive_exclusive(cids)
        heard = self._hear(patch)
        if patch.counter or patch.generation:
            self.epoch = max(self.epoch, Epoch(patch.generation, patch.counter))
        sets = np.array(node_sets, np.int32), np.array(part_sets, np.int32)
        change = FleetChange(cids, sets[0], frozenset(claims), False, heard, sets[1])
        self._announce(change)
        return change

    def adopt(self, other: Fleet) -> None:
        """Takes over the content of `other`, which must not be used any more, in one step. Ticks continue; claims are
        dropped. Who may use slots is in the ledger, not in reports, and stays."""
        tick = max(self.tick, other.tick) + 1
        self._inherit_joined(other)
        self._take_rows(other)
        self._take_clusters(other)
        self._take_contents(other)
        self._reset_ticks(tick)
        self._sums.reset(len(self._start))
        self.clusters.adopt(other.clusters)
        self._announce(FleetChange(np.flatnonzero(self.known).astype(np.int32), reset=True))

    def _take_contents(self, other: Fleet) -> None:
        self.open_pods, self.shared_slots = other.open_pods, other.shared_slots
        self._changed = other._changed
        self._improved_cluster = other._improved_cluster
        self.pods = other.pods
        self.label_sets = other.label_sets
        self.taint_sets = other.taint_sets
        self.port_sets = other.port_sets
        self.layout_sets = other.layout_sets
        self.parts = other.parts

    def _announce(self, change: FleetChange) -> None:
        for callback in self.on_change:
            callback(change)

    def _learn(self, patch: FleetDelta) -> None:
        known = len(self.label_sets), len(self.taint_sets), len(self.port_sets), len(self.layout_sets)
        firsts = patch.labels_from, patch.taints_from, patch.ports_from, patch.layouts_from
        for first, count in zip(firsts, known, strict=True):
            if first > count:
                raise Malformed("dictionary entries are missing")
        if patch.label_sets:
            self.label_sets[patch.labels_from : patch.labels_from + len(patch.label_sets)] = [
                {intern(k): intern(v) for k, v in entry.items()} for entry in patch.label_sets
            ]
        if patch.taint_sets:
            sets = [tuple(entry) for entry in patch.taint_sets]
            self.taint_sets[patch.taints_from : patch.taints_from + len(sets)] = sets
        if patch.port_sets:
            ports = [tuple(entry) for entry in patch.port_sets]
            self.port_sets[patch.ports_from : patch.ports_from + len(ports)] = ports
        if patch.layout_sets:
            self._learn_layouts(patch.layouts_from, patch.layout_sets)

    def _learn_layouts(self, first: int, sources: list[bytes]) -> None:
        known = len(self.layout_sets) - first
        if known > 0 and self.layout_sets[first:] != sources[:known]:
            raise Malformed("a layout has another number")  # rows that have it would have other parts
        try:
            self.parts.learn(sources[max(known, 0) :])
        except msgspec.DecodeError as error:
            raise Malformed(f"a layout: {error}") from error
        self.layout_sets += sources[max(known, 0) :]

    def _columns_of(self, patch: FleetDelta, rows: int) -> RowColumns:
        layouts = delta.column(patch.layout_numbers, delta.NUMBERS, rows)
        uses = np.frombuffer(patch.uses, delta.AMOUNTS)
        found = RowColumns(
            delta.column(patch.flags, delta.FLAGS, rows),
            delta.column(patch.label_numbers, delta.NUMBERS, rows),
            delta.column(patch.taint_numbers, delta.NUMBERS, rows),
            delta.column(patch.exclusive, delta.AMOUNTS, rows),
            {
                name: (delta.column(a, delta.AMOUNTS, rows), delta.column(r, delta.AMOUNTS, rows))
                for name, (a, r) in patch.resources.items()
            },
            delta.column(patch.port_numbers, delta.NUMBERS, rows),
            layouts,
            uses,
            np.zeros(rows, np.int64),
        )
        known = len(self.label_sets), len(self.taint_sets), len(self.port_sets), len(self.layout_sets)
        for numbers, count in zip((found.labels, found.taints, found.ports, layouts), known, strict=True):
            if rows and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
                raise Malformed("a row names an unknown dictionary entry")
        if patch.layout_numbers:
            counts = self.parts.layouts.entries[layouts]
            found.first_use[:] = np.cumsum(counts) - counts
            if len(uses) != int(counts.sum()):
                raise Malformed(f"{len(uses)} amounts of parts for layouts of {int(counts.sum())}")
        return found

    def _write(self, rows: NDArray[np.intp], better: NDArray[np.bool_], columns: RowColumns) -> None:
        for name in columns.resources:
            if name not in self._resources and name != EXCLUSIVE and not is_host_port(name):
                self._new_resource(name)
        better |= (self.labelset[rows] != columns.labels) | (self.taintset[rows] != columns.taints)
        better |= self.portset[rows] != columns.ports
        self.flags[rows] = columns.flags
        self.labelset[rows] = columns.labels
        self.taintset[rows] = columns.taints
        self.portset[rows] = columns.ports
        host = (columns.flags & HOST) != 0
        better |= self.host_label[rows] != host
        self.host_label[rows] = host
        if self.exclusive is None and len(rows) and int(columns.exclusive.max()) >= 0:
            self.exclusive = np.full(len(self.cluster), -1, np.int64)
        if self.exclusive is not None:
            self.exclusive[rows] = columns.exclusive
        for name, resource in self._resources.items():
            if name == EXCLUSIVE or name in self._port_uses:
                continue
            allocatable, requested = columns.resources.get(name, (0, 0))
            free = allocatable - requested
            if resource.claimed is not None:
                free = free - resource.claimed[rows]
            better |= free > resource.free[rows]
            resource.allocatable[rows] = allocatable
            resource.free[rows] = free
        for name, use in self._port_uses.items():
            self._write_port(self._resources[name], use, rows)
        self._improve(rows[better])
        self._requalify(rows)

    def _write_parts(self, rows: NDArray[np.intp], columns: RowColumns, node_sets: list[int]) -> list[int]:
        """Writes what is inside the nodes of rows. Returns the clusters whose parts, or their rows, changed."""
        layouts = columns.layouts
        if self.layout is None:
            if not len(rows) or not layouts.any():
                return []
            self.layout = np.zeros(len(self.cluster), np.int32)
        changed = rows[self.layout[rows] != layouts]
        self.layout[rows] = layouts
        self._improve(changed)
        part_sets: list[int] = []
        for cid in sorted({*self.cluster[changed].tolist(), *node_sets}):
            here = self.rows_of(cid)
            if self.parts.lay_out(cid, int(self._start[cid]), here, self.layout[here]):
                part_sets.append(cid)
        having = np.flatnonzero(layouts)
        counts = self.parts.layouts.entries[layouts[having]]
        used = columns.uses[spread(columns.first_use[having], counts)]
        differing = self.parts.differing(rows[having], counts, used)
        if not differing.any():
            return part_sets
        having, counts = having[differing], counts[differing]
        clusters = self.cluster[rows[having]]
        for cid in np.unique(clusters).tolist():
            own, counts_of = having[clusters == cid], counts[clusters == cid]
            nodes = rows[own]
            used = columns.uses[spread(columns.first_use[own], counts_of)]
            better = self.parts.use(cid, nodes - int(self._start[cid]), used)
            self._improve(nodes[better])
        return part_sets

    def _write_port(self, resource: ResourceColumns, use: PortUse, rows: NDArray[np.intp]) -> None:
        """Derives a host port's amounts from the sets of ports that the rows use."""
        free = use.amount - use.taken(self.port_sets, self.portset[rows])
        resource.allocatable[rows] = use.amount
        resource.free[rows] = free if resource.claimed is None else free - resource.claimed[rows]

    def _requalify(self, rows: NDArray[np.intp]) -> None:
        usable = ((self.flags[rows] & _USABLE) == READY) & self._usable_clusters[self.cluster[rows]]
        self._improve(rows[usable & ~self.usable[rows]])
        self.usable[rows] = usable

    def _derive_exclusive(self, clusters: NDArray[np.int32]) -> None:
        """Derives exclusive cores of nodes without a CPU manager: none if another node of the cluster reports one, else any
        number."""
        resource = self._resources.get(EXCLUSIVE) or self._new_resource(EXCLUSIVE)
        rows = self.rows_in(clusters)
        reported = np.full(len(rows), -1, np.int64) if self.exclusive is None else self.exclusive[rows]
        reporting = np.zeros(self.size, np.bool_)
        reporting[self.cluster[rows[reported >= 0]]] = True
        amount = np.where(reported >= 0, reported, np.where(reporting[self.cluster[rows]], 0, BOUNDLESS))
        free = amount if resource.claimed is None else amount - resource.claimed[rows]
        self._improve(rows[free > resource.free[rows]])
        resource.allocatable[rows] = amount
        resource.free[rows] = free

    # -- memory -------------------------------------------------------------------------------------------------------

    def _resource(self, name: str) -> ResourceColumns | None:
        found = self._resources.get(name)
        if found is None and name == EXCLUSIVE:
            found = self._new_resource(name)
            self._derive_exclusive(np.flatnonzero(self.known).astype(np.int32))
        if found is None and is_host_port(name):
            self._drop_unclaimed_ports()
            found, use = self._new_resource(name), PortUse(name)
            self._port_uses[name] = use
            self._write_port(found, use, np.flatnonzero(self.cluster[: self.n] >= 0))
        return found

    def _drop_unclaimed_ports(self) -> None:
        """Drops the columns of host ports that nobody claims, once there are many."""
        if len(self._port_uses) < MAX_PORT_COLUMNS:
            return
        for name in list(self._port_uses):
            claimed = self._resources[name].claimed
            if claimed is None or not claimed.any():
                del self._resources[name], self._port_uses[name]
                self._sums.drop(name)

    def _ensure_clusters(self, size: int) -> int:
        before, length = len(self._start), super()._ensure_clusters(size)
        if length > before:
            self._sums.grow(length)
        self.clusters.grow(self.size)
        return length
