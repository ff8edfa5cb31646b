"""Keeps all nodes of all clusters as columns, updated in place.

Decisions read only this, so a question about the whole fleet is vector arithmetic, and changes can be asked for by tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint
from moorage.model.shapes import EXCLUSIVE

from . import delta
from .cluster_labels import Clusters
from .columns import Resource, RowColumns, Sums, grown
from .delta import (
    CORDONED,
    GONE,
    HOST,
    READY,
    REJECTED,
    STALE,
    UNSCHEDULABLE,
    ClusterDelta,
    Epoch,
    FleetDelta,
    Malformed,
)
from .table import Table

#: The exclusive cores of a node in a cluster where no node reports a CPU manager.
BOUNDLESS = 1 << 40
_USABLE = READY | UNSCHEDULABLE | REJECTED
_NONE = np.empty(0, np.int32)
_NO_ROWS = np.empty(0, np.intp)


class FleetChange(NamedTuple):
    """The effect of one patch.

    `node_sets` are clusters whose nodes or row numbers changed, so that claims there must be taken again for the nodes that
    left and joined. `reset`: everything was replaced, and nothing is claimed.
    """

    clusters: NDArray[np.int32] = _NONE
    node_sets: NDArray[np.int32] = _NONE
    claims: frozenset[str] = frozenset()
    reset: bool = False
    heard: NDArray[np.int32] = _NONE  # clusters with a newer `as_of`


class Fleet(Table):
    """The columns of the fleet.

    Arrays are replaced when they grow, so read them from here each time. After a reset (`changed_since` returns None) label
    and taint numbers mean other sets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tick = 1
        self.resets = 0
        self.on_change: list[Callable[[FleetChange], None]] = []
        self.epoch = Epoch(0, 0)
        # Columns of clusters.
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self._state: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._known: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._usable_clusters: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._version: NDArray[np.int64] = np.empty(0, np.int64)
        self._as_of: NDArray[np.float64] = np.empty(0, np.float64)
        self._joined: NDArray[np.int64] = np.empty(
            0, np.int64
        )  # counter of the epoch of joining; 0: a member from the start
        self._last_joined = 0
        self.membership = 0  # grows when clusters join
        self._changed: NDArray[np.int64] = np.empty(0, np.int64)
        self._improved_cluster: NDArray[np.int64] = np.empty(0, np.int64)
        self._claims: dict[int, dict[str, dict[str, int]]] = {}
        self._claimed_in: dict[str, tuple[int, ...]] = {}
        self._sums: dict[str, Sums] = {}
        self._restated: NDArray[np.int64] = np.empty(
            0, np.int64
        )  # tick of the last change other than `take`, which updates sums
        self._last_restated = 0
        self._summing: tuple[int, int, NDArray[np.int32], NDArray[np.intp]] = (-1, -1, _NONE, _NO_ROWS)
        self._reset_tick = 0
        # The dictionary. Entry 0 of both is the empty set.
        self.label_sets: list[dict[str, str]] = [{}]
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.clusters = Clusters(self)

    def joined_after(self, epoch: str) -> NDArray[np.bool_] | None:
        """Returns the clusters that joined after this epoch; None if none did."""
        generation, _, counter = epoch.partition(".")
        if not (generation.isdecimal() and counter.isdecimal()) or int(generation) > self.epoch.generation:
            return None
        seen = int(counter) if int(generation) == self.epoch.generation else 0
        return None if seen >= self._last_joined else self._joined[: self.size] > seen

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def known(self) -> NDArray[np.bool_]:
        """The clusters of the fleet, in any state."""
        return self._known[: self.size]

    @property
    def usable_clusters(self) -> NDArray[np.bool_]:
        return self._usable_clusters[: self.size]

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

    def state(self, cid: int) -> str:
        flags = int(self._state[cid])
        return "Stale" if flags & STALE else "Cordoned" if flags & CORDONED else "Ready"

    def cluster_flags(self, cid: int) -> int:
        return int(self._state[cid]) if cid < self.size else GONE

    def cluster_labels(self, cid: int) -> dict[str, str]:
        return self.clusters.labels(cid)

    def seq(self, cid: int) -> int:
        """Returns the number of the cluster's newest change in these rows; it only grows."""
        return int(self._version[cid])

    def as_of(self, cid: int) -> float:
        """Returns the agent's time of the newest report in these rows."""
        return float(self._as_of[cid])

    def extras(self, row: int) -> dict[str, Any]:
        """Returns the reported zones, providers, devices and machines of a node."""
        found = self._extras.get(int(self.cluster[row]), {}).get(self.node_name(row))
        return dict(msgspec.json.decode(found, type=dict[str, Any])) if found else {}

    def extras_of(self, cid: int) -> dict[str, bytes]:
        return self._extras.get(cid, {})

    def claims_of(self, cid: int) -> dict[str, dict[str, int]]:
        """Returns claim → node → pods of a cluster; node "" has the pods that are not bound."""
        return self._claims.get(cid, {})

    def live(self, claim: str, cluster: int | None = None) -> dict[str, int]:
        """Returns node → bound, unfinished pods that carry this claim.

        Name the cluster if it is known: a pod in another cluster that carries the same claim does so by mistake.
        """
        found: dict[str, int] = {}
        for cid in self._claimed_in.get(claim, ()) if cluster is None else (cluster,):
            for node, pods in self._claims.get(cid, {}).get(claim, {}).items():
                if node:
                    found[node] = found.get(node, 0) + pods
        return found

    def present(self, claim: str, cluster: int | None = None) -> int:
        """Returns the number of unfinished pods of a claim, bound or not."""
        cids = self._claimed_in.get(claim, ()) if cluster is None else (cluster,)
        return sum(sum(self._claims.get(cid, {}).get(claim, {}).values()) for cid in cids)

    def sums(self, resource: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns free and allocatable amounts per cluster, over usable nodes; read-only, and current until the next change.

        `take` updates the sums; only clusters that were restated since the last call are summed again.
        """
        found = self._resource(resource)
        if found is None:
            return np.zeros(self.size, np.int64), np.zeros(self.size, np.int64)
        kept = self._sums.get(resource)
        if kept is None:
            kept = self._sums[resource] = Sums(0, np.zeros(self.size, np.int64), np.zeros(self.size, np.int64))
        elif kept.since >= self._last_restated and len(kept.free) == self.size:
            return kept.free, kept.allocatable
        if len(kept.free) < self.size:
            kept.free, kept.allocatable = grown(kept.free, self.size), grown(kept.allocatable, self.size)
        changed, rows = self._to_sum(kept.since)
        of = self.cluster[rows]
        for total, column in ((kept.free, found.free), (kept.allocatable, found.allocatable)):
            total[changed] = 0
            # An overcommitted node does not reduce what other nodes have free.
            np.add.at(total, of, np.maximum(column[rows], 0))
        kept.since = self.tick
        return kept.free, kept.allocatable

    def _to_sum(self, since: int) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """Returns the clusters restated after `since` and their usable rows. Cached: all resources need the same at one tick."""
        known, tick, changed, rows = self._summing
        if (known, tick) != (since, self.tick):
            mask = self._restated[: self.size] > since if since else self.known
            changed = np.flatnonzero(mask).astype(np.int32)
            rows = self.rows_in(changed)
            rows = rows[self.usable[rows]]
            self._summing = (since, self.tick, changed, rows)
        return changed, rows

    # -- changes -------------------------------------------------------------------------------------------------

    def changed_since(self, tick: int) -> NDArray[np.int32] | None:
        """Returns the clusters that changed after `tick`; None if everything was replaced since."""
        if tick == self.tick:
            return _NONE
        if tick < self._reset_tick:
            return None
        return np.flatnonzero(self._changed[: self.size] > tick).astype(np.int32)

    def improved_since(self, tick: int) -> NDArray[np.intp] | None:
        """Returns the rows that may fit something since `tick` that they did not before: they have more free, other labels or
        taints, or are usable again. None if everything was replaced since."""
        if tick < self._reset_tick:
            return None
        rows = self.rows_in(np.flatnonzero(self._improved_cluster[: self.size] > tick))
        return rows[self._improved[rows] > tick]

    def take(self, row: int, resources: Mapping[str, int], sign: int = 1) -> None:
        """Claims resources of a row (sign 1) or releases them (sign -1), in place."""
        cid = int(self.cluster[row])
        if cid < 0:
            raise IndexError(f"row {row} has no node")
        usable = bool(self.usable[row])
        for name, amount in resources.items():
            found = self._resource(name) or self._new_resource(name)
            if found.claimed is None:
                found.claimed = np.zeros(len(found.free), np.int64)
            before = int(found.free[row])
            after = before - sign * amount
            found.claimed[row] += sign * amount
            found.free[row] = after
            if usable and (kept := self._sums.get(name)) is not None and cid < len(kept.free):
                kept.free[cid] += max(after, 0) - max(before, 0)
        self.tick += 1
        self._changed[cid] = self.tick
        if sign < 0:
            self._improved[row] = self._improved_cluster[cid] = self.tick

    def taken(self, row: int) -> dict[str, int]:
        return {n: int(r.claimed[row]) for n, r in self._resources.items() if r.claimed is not None and r.claimed[row]}

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
            claims.update(self._restate_claims(part))
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
        if restated:
            self._requalify(self.rows_in(np.array(restated)))
        cids = np.array(changed, np.int32)
        self._changed[cids] = self._restated[cids] = self.tick
        if changed:
            self._last_restated = self.tick
        if changed and EXCLUSIVE in self._resources:  # derived only once it was asked for
            self._derive_exclusive(cids)
        heard = self._hear(patch)
        if patch.counter or patch.generation:
            self.epoch = max(self.epoch, Epoch(patch.generation, patch.counter))
        change = FleetChange(cids, np.array(node_sets, np.int32), frozenset(claims), False, heard)
        self._announce(change)
        return change

    def adopt(self, other: Fleet) -> None:
        """Takes over the content of `other`, which must not be used any more, in one step. Ticks continue; claims are dropped."""
        tick = max(self.tick, other.tick) + 1
        self._inherit_joined(other)
        self._take_rows(other)
        self._take_clusters(other)
        self.tick = self._reset_tick = tick
        self.resets += 1
        self._changed[: self.size] = self._improved_cluster[: self.size] = self._restated[: self.size] = tick
        self._last_restated = tick
        self._improved[: self.n] = tick
        self._sums = {}
        self.clusters.adopt(other.clusters)
        self._announce(FleetChange(np.flatnonzero(self.known).astype(np.int32), reset=True))

    def _take_clusters(self, other: Fleet) -> None:
        self.epoch = other.epoch
        self.names = other.names
        self.ids = other.ids
        self._state = other._state
        self._known = other._known
        self._usable_clusters = other._usable_clusters
        self._version = other._version
        self._as_of = other._as_of
        self._joined = other._joined
        self._last_joined = other._last_joined
        self.membership = other.membership
        self._changed = other._changed
        self._improved_cluster = other._improved_cluster
        self._claims = other._claims
        self._claimed_in = other._claimed_in
        self._restated = other._restated
        self._summing = other._summing
        self.label_sets = other.label_sets
        self.taint_sets = other.taint_sets

    def _inherit_joined(self, other: Fleet) -> None:
        """Keeps the epochs of joining that are known here; clusters new to this fleet count as joined at `other`'s epoch."""
        before = np.zeros(other.size, np.bool_)
        before[: self.size] = self.known[: other.size]
        same = self.epoch.generation == other.epoch.generation
        at = np.zeros(other.size, np.int64)
        if same:
            at[: self.size] = self._joined[: self.size][: other.size]
        if self.size:
            at[other.known & ~before] = max(1, other.epoch.counter)
        other._joined[: other.size] = at
        other._last_joined = int(at.max(initial=0))
        other.membership += self.membership + 1

    def _announce(self, change: FleetChange) -> None:
        for callback in self.on_change:
            callback(change)

    def _learn(self, patch: FleetDelta) -> None:
        if patch.labels_from > len(self.label_sets) or patch.taints_from > len(self.taint_sets):
            raise Malformed("dictionary entries are missing")
        if patch.label_sets:
            self.label_sets[patch.labels_from : patch.labels_from + len(patch.label_sets)] = [
                {intern(k): intern(v) for k, v in entry.items()} for entry in patch.label_sets
            ]
        if patch.taint_sets:
            sets = [tuple(entry) for entry in patch.taint_sets]
            self.taint_sets[patch.taints_from : patch.taints_from + len(sets)] = sets

    def _columns_of(self, patch: FleetDelta, rows: int) -> RowColumns:
        found = RowColumns(
            delta.column(patch.flags, delta.FLAGS, rows),
            delta.column(patch.label_numbers, delta.NUMBERS, rows),
            delta.column(patch.taint_numbers, delta.NUMBERS, rows),
            delta.column(patch.exclusive, delta.AMOUNTS, rows),
            {
                name: (delta.column(a, delta.AMOUNTS, rows), delta.column(r, delta.AMOUNTS, rows))
                for name, (a, r) in patch.resources.items()
            },
        )
        for numbers, sets in ((found.labels, self.label_sets), (found.taints, self.taint_sets)):
            if rows and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(sets):
                raise Malformed("a row names an unknown dictionary entry")
        return found

    def _restate(self, part: ClusterDelta, counter: int) -> bool:
        """Writes a cluster's name, labels and state. Returns whether that changes which of its rows are usable."""
        cid = part.id
        self._as_of[cid] = max(float(self._as_of[cid]), part.as_of)
        gone = bool(part.state & GONE)
        if part.name != self.names[cid]:
            self.ids.pop(self.names[cid], None)
            self.names[cid] = part.name
        if gone:
            self.ids.pop(part.name, None)
        else:
            self.ids[part.name] = cid
        if not gone and not self._known[cid]:
            self._join(cid, counter)
        self._known[cid] = not gone
        if part.labels is not None or gone:
            self.clusters.relabel(cid, part.name, part.labels or {})
        if part.state == self._state[cid]:
            return False
        self._state[cid] = part.state
        self._usable_clusters[cid] = part.state == 0
        return True

    def _join(self, cid: int, counter: int) -> None:
        self._joined[cid] = counter
        self._last_joined = max(self._last_joined, counter)
        self.membership += 1

    def _restate_claims(self, part: ClusterDelta) -> set[str]:
        mine = self._claims.get(part.id, {})
        claims = part.claims
        if part.whole:
            claims = {claim: {} for claim in mine if claim not in claims} | claims
        for claim, nodes in claims.items():
            where = self._claimed_in.get(claim, ())
            if nodes:
                self._claims.setdefault(part.id, {})[claim] = nodes
                if part.id not in where:
                    self._claimed_in[claim] = (*where, part.id)
            else:
                self._claims.get(part.id, {}).pop(claim, None)
                where = tuple(cid for cid in where if cid != part.id)
                if where:
                    self._claimed_in[claim] = where
                else:
                    self._claimed_in.pop(claim, None)
        if not self._claims.get(part.id, True):
            del self._claims[part.id]
        return set(claims)

    def _write(self, rows: NDArray[np.intp], better: NDArray[np.bool_], columns: RowColumns) -> None:
        for name in columns.resources:
            if name not in self._resources and name != EXCLUSIVE:
                self._new_resource(name)
        better |= (self.labelset[rows] != columns.labels) | (self.taintset[rows] != columns.taints)
        self.flags[rows] = columns.flags
        self.labelset[rows] = columns.labels
        self.taintset[rows] = columns.taints
        host = (columns.flags & HOST) != 0
        better |= self.host_label[rows] != host
        self.host_label[rows] = host
        if self.exclusive is None and len(rows) and int(columns.exclusive.max()) >= 0:
            self.exclusive = np.full(len(self.cluster), -1, np.int64)
        if self.exclusive is not None:
            self.exclusive[rows] = columns.exclusive
        for name, resource in self._resources.items():
            if name == EXCLUSIVE:
                continue
            allocatable, requested = columns.resources.get(name, (0, 0))
            free = allocatable - requested
            if resource.claimed is not None:
                free = free - resource.claimed[rows]
            better |= free > resource.free[rows]
            resource.allocatable[rows] = allocatable
            resource.free[rows] = free
        self._improve(rows[better])
        self._requalify(rows)

    def _requalify(self, rows: NDArray[np.intp]) -> None:
        usable = ((self.flags[rows] & _USABLE) == READY) & self._usable_clusters[self.cluster[rows]]
        self._improve(rows[usable & ~self.usable[rows]])
        self.usable[rows] = usable

    def _improve(self, rows: NDArray[np.intp]) -> None:
        self._improved[rows] = self.tick
        self._improved_cluster[self.cluster[rows]] = self.tick

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

    def _hear(self, patch: FleetDelta) -> NDArray[np.int32]:
        heard = np.frombuffer(patch.heard, delta.NUMBERS).astype(np.int32)
        times = np.frombuffer(patch.heard_at, delta.TIMES)
        inside = heard < self.size
        heard, times = heard[inside], times[inside]
        self._as_of[heard] = np.maximum(self._as_of[heard], times)
        return heard

    # -- memory -------------------------------------------------------------------------------------------------------

    def _resource(self, name: str) -> Resource | None:
        found = self._resources.get(name)
        if found is None and name == EXCLUSIVE:
            found = self._new_resource(name)
            self._derive_exclusive(np.flatnonzero(self.known).astype(np.int32))
        return found

    def _ensure_clusters(self, size: int) -> None:
        if size <= self.size:
            return
        if size > len(self._start):
            length = max(size, len(self._start) * 3 // 2, 64)
            for name in ("_start", "_length", "_state", "_known", "_usable_clusters", "_version", "_as_of"):
                setattr(self, name, grown(getattr(self, name), length))
            for name in ("_changed", "_improved_cluster", "_restated", "_joined"):
                setattr(self, name, grown(getattr(self, name), length))
            self._state[self.size :] = GONE
        self.names += [""] * (size - self.size)
        self._nodes += [""] * (size - self.size)
        self.size = size
        self.clusters.grow(size)
