"""Writes a fleet: takes rows, and makes patches and snapshots of what really changed.

Inventory has the only writer; tests build their fleets with it, too, so that their rows are made the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint

from . import delta
from .delta import AMOUNTS, FLAGS, GONE, HOST, NUMBERS, SEPARATOR, TIMES, ClusterDelta, FleetDelta, pack_column
from .fleet import Fleet
from .normalize import NodeRow

#: The dictionary is compacted, which makes every follower load the fleet, only if it has more entries than this and more
#: than one for so many rows.
FEW, ROWS_PER_ENTRY = 1024, 64
_label_entry = msgspec.msgpack.Encoder()
Entry = TypeVar("Entry")
_ALL = np.empty(0, np.intp)


class FleetFlush(NamedTuple):
    """The content of one transaction. `snapshots` has bytes by cluster; None if it is gone."""

    counter: int
    patch: bytes
    snapshots: dict[int, bytes | None]
    labels: dict[int, bytes]
    taints: dict[int, bytes]
    clusters: tuple[int, ...]


class _Pending:
    """The changes of a cluster that followers do not know yet."""

    __slots__ = ("claims", "gone", "labels", "rows", "whole")

    def __init__(self) -> None:
        self.whole = False
        self.labels = False
        self.rows: set[str] = set()
        self.gone: set[str] = set()
        self.claims: set[str] = set()


class FleetWriter:
    """Updates a fleet and remembers what followers do not know yet."""

    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self._labels = {frozenset(s.items()): i for i, s in enumerate(self.fleet.label_sets)}
        self._taints = {s: i for i, s in enumerate(self.fleet.taint_sets)}
        self._pending: dict[int, _Pending] = {}
        self._heard: dict[int, float] = {}
        self._labels_sent = self._taints_sent = 1
        self._look_at = FEW

    # -- input -----------------------------------------------------------------------------------------------------------

    def put(
        self,
        cid: int,
        name: str,
        rows: Sequence[NodeRow] = (),
        *,
        whole: bool = False,
        gone: Iterable[str] = (),
        labels: dict[str, str] | None = None,
        state: int | None = None,
        as_of: float = 0.0,
        claims: Mapping[str, dict[str, int]] | None = None,
    ) -> bool:
        """Writes complete rows of a cluster. `whole`: it has no other rows and claims. Returns whether anything changed."""
        fleet = self.fleet
        known = cid < fleet.size and bool(fleet.known[cid])
        before = fleet.places(cid) if known else {}
        patch, changed = self._columns(rows, before, fleet.extras_of(cid) if known else {})
        if whole:
            names = {row.name for row in rows}
            leaving = [node for node in before if node not in names]
        else:
            leaving = [node for node in gone if node in before]
        live = fleet.claims_of(cid)
        claims = dict(claims or {})
        if whole:
            claims = {claim: {} for claim in live if claim not in claims} | claims
        claims = {claim: nodes for claim, nodes in claims.items() if live.get(claim, {}) != nodes}
        if state is None:
            state = fleet.cluster_flags(cid) if known else 0
        if known and labels == fleet.cluster_labels(cid):
            labels = None
        if known and state == fleet.cluster_flags(cid) and not (changed or leaving or claims or labels is not None):
            if as_of > fleet.as_of(cid):
                self.hear(cid, as_of)
            return False
        names_ = [row.name for row in changed]
        part = ClusterDelta(
            id=cid,
            name=name,
            state=state,
            as_of=as_of,
            rows=len(names_),
            names=SEPARATOR.join(names_),
            gone=leaving,
            labels=labels if known else labels or {},
            claims=claims,
            extras={row.name: row.extras for row in changed if row.extras},
        )
        patch.clusters = [part]
        fleet.apply(patch)
        pending = self._pending.setdefault(cid, _Pending())
        pending.whole |= not known
        pending.labels |= labels is not None
        pending.rows.update(names_)
        pending.gone.difference_update(names_)
        pending.gone.update(leaving)
        pending.rows.difference_update(leaving)
        pending.claims.update(claims)
        self._heard.pop(cid, None)
        return True

    def hear(self, cid: int, as_of: float) -> None:
        """Notes a report without a change: only the time of the rows is newer."""
        self._heard[cid] = as_of
        self.fleet.apply(
            FleetDelta(heard=np.array([cid], NUMBERS).tobytes(), heard_at=np.array([as_of], TIMES).tobytes())
        )

    def set_state(self, cid: int, state: int) -> bool:
        return self.put(cid, self.fleet.names[cid], state=state)

    def drop(self, cid: int) -> bool:
        """Removes a cluster from the fleet. Its id stays reserved."""
        if not (cid < self.fleet.size and self.fleet.known[cid]):
            return False
        part = ClusterDelta(id=cid, name=self.fleet.names[cid], state=GONE, whole=True)
        self.fleet.apply(FleetDelta(clusters=[part]))
        pending = self._pending[cid] = _Pending()
        pending.whole = True
        self._heard.pop(cid, None)
        return True

    def row(self, cid: int, node: str) -> NodeRow | None:
        """Returns a node's row as it was written, so that one source's fields can be changed without the others'."""
        fleet = self.fleet
        at = fleet.row_of(cid, node)
        if at is None:
            return None
        rows = np.array([at], np.intp)
        amounts = {n: (int(r.allocatable[at]), int(r.requested(rows)[0])) for n, r in fleet.stored.items()}
        return NodeRow(
            node,
            int(fleet.flags[at]),
            fleet.label_sets[int(fleet.labelset[at])],
            fleet.taint_sets[int(fleet.taintset[at])],
            {n: a for n, (a, _) in amounts.items() if a},
            {n: r for n, (_, r) in amounts.items() if r},
            -1 if fleet.exclusive is None else int(fleet.exclusive[at]),
            fleet.extras_of(cid).get(node, b""),
        )

    def crowded(self) -> bool:
        """Returns whether most entries of the dictionary are not used by any row. Counts them only once the dictionary is twice
        as long as the number of entries used at the last count."""
        fleet = self.fleet
        entries = len(fleet.label_sets) + len(fleet.taint_sets)
        if entries < self._look_at:
            return False
        here = fleet.cluster >= 0
        used = sum(int(np.count_nonzero(np.bincount(of[here]))) for of in (fleet.labelset, fleet.taintset))
        self._look_at = max(FEW, 2 * max(used, 1), int(here.sum()) // ROWS_PER_ENTRY)
        return entries >= self._look_at

    def compact(self) -> None:
        """Drops dictionary entries that no row uses. The numbers of the others change, so every follower must load everything
        afterwards."""
        fleet = self.fleet
        here = fleet.cluster >= 0
        fleet.label_sets = _kept(fleet.labelset, here, fleet.label_sets)
        fleet.taint_sets = _kept(fleet.taintset, here, fleet.taint_sets)
        self._labels, self._taints = {}, {}
        self._labels.update({frozenset(s.items()): i for i, s in enumerate(fleet.label_sets)})
        self._taints.update({s: i for i, s in enumerate(fleet.taint_sets)})
        self._labels_sent = self._taints_sent = 1

    def label_number(self, labels: Mapping[str, str]) -> int:
        key = frozenset(labels.items())
        number = self._labels.get(key)
        if number is None:
            number = self._labels[key] = len(self.fleet.label_sets)
            self.fleet.label_sets.append(dict(labels))
        return number

    def taint_number(self, taints: tuple[Taint, ...]) -> int:
        number = self._taints.get(taints)
        if number is None:
            number = self._taints[taints] = len(self.fleet.taint_sets)
            self.fleet.taint_sets.append(taints)
        return number

    def _columns(
        self, rows: Sequence[NodeRow], before: Mapping[str, int], extras: Mapping[str, bytes]
    ) -> tuple[FleetDelta, list[NodeRow]]:
        """Returns the rows that differ from the current ones, and their columns as a patch."""
        if not rows:
            return FleetDelta(), []
        fleet, count = self.fleet, len(rows)
        flags = np.array([row.flags for row in rows], FLAGS)
        labels = np.array([self.label_number(row.labels) for row in rows], NUMBERS)
        taints = np.array([self.taint_number(row.taints) if row.taints else 0 for row in rows], NUMBERS)
        exclusive = np.array([row.exclusive for row in rows], AMOUNTS)
        names = {name for row in rows for name in row.allocatable} | {name for row in rows for name in row.requested}
        amounts = {
            name: (
                np.array([row.allocatable.get(name, 0) for row in rows], AMOUNTS),
                np.array([row.requested.get(name, 0) for row in rows], AMOUNTS),
            )
            for name in sorted(names)
        }
        if before:
            at = np.array([before.get(row.name, -1) for row in rows], np.intp)
            same = (at >= 0) & (fleet.flags[at] == flags)
            same &= (fleet.labelset[at] == labels) & (fleet.taintset[at] == taints)
            same &= exclusive == (-1 if fleet.exclusive is None else fleet.exclusive[at])
            for name in names | fleet.stored.keys():
                allocatable, requested = amounts.get(name, (0, 0))
                found = fleet.stored.get(name)
                same &= allocatable == (0 if found is None else found.allocatable[at])
                same &= requested == (0 if found is None else found.requested(at))
            if extras or any(row.extras for row in rows):
                same &= np.array([extras.get(row.name, b"") == row.extras for row in rows])
            if same.any():
                keep = np.flatnonzero(~same)
                count = len(keep)
                rows = [rows[i] for i in keep.tolist()]
                flags, labels, taints, exclusive = flags[keep], labels[keep], taints[keep], exclusive[keep]
                amounts = {name: (a[keep], r[keep]) for name, (a, r) in amounts.items()}
        if not count:
            return FleetDelta(), []
        patch = _patch(flags, labels, taints, exclusive, amounts)
        return patch, list(rows)

    # -- output ----------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    @property
    def heard(self) -> bool:
        return bool(self._heard)

    def waits(self, cid: int) -> bool:
        """Returns whether a cluster has changes that followers do not know yet."""
        return cid in self._pending

    def flush(self, generation: int, counter: int, most: int = 1 << 30) -> FleetFlush:
        """Returns the pending changes of at most `most` clusters, as change number `counter`."""
        fleet = self.fleet
        parts: list[ClusterDelta] = []
        runs: list[NDArray[np.intp]] = []
        snapshots: dict[int, bytes | None] = {}
        pending, self._pending = self._pending, {}
        while len(pending) > most:
            cid, what = pending.popitem()
            self._pending[cid] = what
        heard, self._heard = self._heard, {}
        for cid, what in pending.items():
            if fleet.cluster_flags(cid) & GONE:
                parts.append(self._part(cid, counter, _ALL, True))
                snapshots[cid] = None
                continue
            rows = fleet.rows_of(cid)
            snapshots[cid] = self.snapshot(cid, generation, counter, rows)
            if not what.whole:
                places = fleet.places(cid)
                rows = np.array([places[name] for name in what.rows if name in places], np.intp)
            part = self._part(cid, counter, rows, what.whole)
            if not what.whole:
                live = fleet.claims_of(cid)
                part.gone = sorted(what.gone)
                part.claims = {claim: live.get(claim, {}) for claim in what.claims}
                part.labels = part.labels if what.labels else None
            parts.append(part)
            runs.append(rows)
        patch = self._export(np.concatenate(runs) if runs else _ALL)
        patch.generation, patch.counter, patch.clusters = generation, counter, parts
        patch.labels_from, patch.label_sets = self._labels_sent, fleet.label_sets[self._labels_sent :]
        patch.taints_from = self._taints_sent
        patch.taint_sets = [list(s) for s in fleet.taint_sets[self._taints_sent :]]
        patch.heard = np.array(list(heard), NUMBERS).tobytes()
        patch.heard_at = np.array(list(heard.values()), TIMES).tobytes()
        labels, taints = self.dictionary(self._labels_sent, self._taints_sent)
        self._labels_sent, self._taints_sent = len(fleet.label_sets), len(fleet.taint_sets)
        return FleetFlush(counter, delta.encode(patch), snapshots, labels, taints, tuple(pending))

    def again(self, flush: FleetFlush) -> None:
        """Makes the clusters of a flush that was not written pending, with all their rows."""
        for cid in flush.clusters:
            self._pending.setdefault(cid, _Pending()).whole = True
        if flush.labels:
            self._labels_sent = min(self._labels_sent, *flush.labels)
        if flush.taints:
            self._taints_sent = min(self._taints_sent, *flush.taints)

    def sent(self, labels: int, taints: int) -> None:
        """Notes that so many dictionary entries are stored for followers."""
        self._labels_sent, self._taints_sent = max(self._labels_sent, labels), max(self._taints_sent, taints)

    def settle(self) -> None:
        """Clears pending changes, because everything is about to be written and loaded by every follower."""
        self._pending, self._heard = {}, {}

    def dictionary(self, labels_from: int = 1, taints_from: int = 1) -> tuple[dict[int, bytes], dict[int, bytes]]:
        labels, taints = self.fleet.label_sets, self.fleet.taint_sets
        return (
            {i: _label_entry.encode(labels[i]) for i in range(labels_from, len(labels))},
            {i: _label_entry.encode(taints[i]) for i in range(taints_from, len(taints))},
        )

    def snapshot(self, cid: int, generation: int, counter: int, rows: NDArray[np.intp] | None = None) -> bytes:
        rows = self.fleet.rows_of(cid) if rows is None else rows
        patch = self._export(rows)
        patch.generation, patch.counter = generation, counter
        patch.clusters = [self._part(cid, counter, rows, True)]
        return delta.encode(patch)

    def _part(self, cid: int, counter: int, rows: NDArray[np.intp], whole: bool) -> ClusterDelta:
        fleet = self.fleet
        names = fleet.names_at(cid, rows)
        extras = fleet.extras_of(cid)
        return ClusterDelta(
            id=cid,
            name=fleet.names[cid],
            version=counter,
            state=fleet.cluster_flags(cid),
            as_of=fleet.as_of(cid),
            whole=whole,
            rows=len(names),
            names=SEPARATOR.join(names),
            labels=fleet.cluster_labels(cid),
            claims=fleet.claims_of(cid) if whole else {},
            extras={name: extras[name] for name in names if name in extras} if extras else {},
        )

    def _export(self, rows: NDArray[np.intp]) -> FleetDelta:
        fleet = self.fleet
        if not len(rows):
            return FleetDelta()
        amounts = {}
        for name, found in fleet.stored.items():
            allocatable, requested = found.allocatable[rows], found.requested(rows)
            if allocatable.any() or requested.any():
                amounts[name] = (allocatable, requested)
        exclusive = np.full(len(rows), -1, AMOUNTS) if fleet.exclusive is None else fleet.exclusive[rows]
        return _patch(fleet.flags[rows], fleet.labelset[rows], fleet.taintset[rows], exclusive, amounts)


def _kept(numbers: NDArray[np.int32], here: NDArray[np.bool_], sets: list[Entry]) -> list[Entry]:
    used = np.union1d(np.unique(numbers[here]), [0]).astype(np.intp)
    new = np.zeros(len(sets), np.int32)
    new[used] = np.arange(len(used))
    numbers[here] = new[numbers[here]]
    return [sets[i] for i in used.tolist()]


def _patch(
    flags: NDArray[np.uint8],
    labels: NDArray[np.int32],
    taints: NDArray[np.int32],
    exclusive: NDArray[np.int64],
    amounts: Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> FleetDelta:
    return FleetDelta(
        flags=pack_column(flags, FLAGS),
        label_numbers=pack_column(labels, NUMBERS),
        taint_numbers=pack_column(taints, NUMBERS),
        exclusive=pack_column(exclusive, AMOUNTS),
        resources={name: (pack_column(a, AMOUNTS), pack_column(r, AMOUNTS)) for name, (a, r) in amounts.items()},
    )


__all__ = ["HOST", "FleetFlush", "FleetWriter"]
