"""Writes a fleet: takes rows, and makes patches and snapshots of what really changed.

Inventory has the only writer; tests build their fleets with it, too, so that their rows are made the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint

from . import delta
from .delta import (
    AMOUNTS,
    FLAGS,
    GONE,
    HOST,
    NUMBERS,
    SEPARATOR,
    TIMES,
    ClusterDelta,
    FleetDelta,
    NamedPods,
    pack_column,
)
from .export import NO_ROWS, cluster_delta, columns_of, encode_snapshot, export, parts_used
from .fleet import Fleet
from .normalize import NodeRow

#: The dictionary is compacted, which makes every follower load the fleet, only if it has more entries than this and more
#: than one for so many rows.
FEW, ROWS_PER_ENTRY = 1024, 64
_entry = msgspec.msgpack.Encoder()
Entry = TypeVar("Entry")


class Dictionary(NamedTuple):
    """Encoded entries of the dictionary, by number."""

    labels: dict[int, bytes]
    taints: dict[int, bytes]
    ports: dict[int, bytes]
    layouts: dict[int, bytes] = {}


class Entries(NamedTuple):
    """Numbers of entries of each kind."""

    labels: int = 1
    taints: int = 1
    ports: int = 1
    layouts: int = 1


class FleetFlush(NamedTuple):
    """The content of one transaction. `snapshots` has bytes by cluster; None if it is gone."""

    counter: int
    patch: bytes
    snapshots: dict[int, bytes | None]
    dictionary: Dictionary
    clusters: tuple[int, ...]


class _Pending:
    """The changes of a cluster that followers do not know yet."""

    __slots__ = ("claims", "gone", "labels", "refused", "rows", "whole")

    def __init__(self) -> None:
        self.whole = False
        self.labels = False
        self.rows: set[str] = set()
        self.gone: set[str] = set()
        self.claims: set[str] = set()
        self.refused: set[str] = set()


class FleetWriter:
    """Updates a fleet and remembers what followers do not know yet."""

    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self._labels = {frozenset(s.items()): i for i, s in enumerate(self.fleet.label_sets)}
        self._taints = {s: i for i, s in enumerate(self.fleet.taint_sets)}
        self._ports = {s: i for i, s in enumerate(self.fleet.port_sets)}
        self._layouts = {s: i for i, s in enumerate(self.fleet.layout_sets)}
        self._pending: dict[int, _Pending] = {}
        self._heard: dict[int, float] = {}
        self._sent = Entries()
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
        ending: Mapping[str, dict[str, int]] | None = None,
        refused: Mapping[str, list[str]] | None = None,
        words: Mapping[str, str] | None = None,
        counted: Mapping[str, dict[str, int]] | None = None,
        named: NamedPods | None = None,
        joined_at: float = 0.0,
    ) -> bool:
        """Writes complete rows of a cluster. `whole`: it has no other rows and claims. `ending`: which of the pods in
        `claims` are being deleted. `refused`: nodes that did not admit pods of these claims; [] for none any more. `words`:
        what the last of them said. `counted`: which of the pods in `claims` are included in what is in use of zones. `named`:
        what pods in `claims` take of parts, where that is told. Returns whether anything changed."""
        fleet = self.fleet
        known = cid < fleet.size and bool(fleet.known[cid])
        before = fleet.places(cid) if known else {}
        patch, changed = self._columns(cid, rows, before, fleet.extras_of(cid) if known else {})
        if whole:
            names = {row.name for row in rows}
            leaving = [node for node in before if node not in names]
        else:
            leaving = [node for node in gone if node in before]
        live = fleet.pods.claims_of(cid)
        claims = dict(claims or {})
        if whole:
            claims = {claim: {} for claim in live if claim not in claims} | claims
        ending, ended = ending or {}, fleet.pods.ending_of(cid)
        counted, had = counted or {}, fleet.pods.counted_of(cid)
        named, named_before = named or {}, fleet.pods.named_of(cid)
        claims = {
            claim: nodes
            for claim, nodes in claims.items()
            if live.get(claim, {}) != nodes
            or ended.get(claim, {}) != ending.get(claim, {})
            or had.get(claim, {}) != counted.get(claim, {})
            or named_before.get(claim, {}) != named.get(claim, {})
        }
        known_refused = fleet.pods.refused_of(cid)
        refused = {c: nodes for c, nodes in (refused or {}).items() if known_refused.get(c, []) != nodes}
        if state is None:
            state = fleet.cluster_flags(cid) if known else 0
        if known and labels == fleet.cluster_labels(cid):
            labels = None
        same = not (changed or leaving or claims or refused or labels is not None)
        if known and state == fleet.cluster_flags(cid) and same:
            if as_of > fleet.as_of(cid):
                self.refresh(cid, as_of)
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
            ending={claim: ending[claim] for claim in claims if claim in ending},
            joined_at=joined_at,
            refused=refused,
            words={claim: text for claim, text in (words or {}).items() if refused.get(claim)},
            counted={claim: counted[claim] for claim in claims if claim in counted},
            named={claim: named[claim] for claim in claims if claim in named},
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
        pending.refused.update(refused)
        self._heard.pop(cid, None)
        return True

    def refresh(self, cid: int, as_of: float) -> None:
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
            fleet.port_sets[int(fleet.portset[at])],
            fleet.inside_source(at),
            tuple(parts_used(fleet, cid, rows).tolist()),
        )

    def crowded(self) -> bool:
        """Returns whether most entries of the dictionary are not used by any row. Counts them only once the dictionary is
        twice as long as the number of entries used at the last count."""
        fleet = self.fleet
        entries = sum(self.entries)
        if entries < self._look_at:
            return False
        here = fleet.cluster >= 0
        numbers = [fleet.labelset, fleet.taintset, fleet.portset]
        numbers += [] if fleet.layout is None else [fleet.layout]
        used = sum(int(np.count_nonzero(np.bincount(of[here]))) for of in numbers)
        self._look_at = max(FEW, 2 * max(used, 1), int(here.sum()) // ROWS_PER_ENTRY)
        return entries >= self._look_at

    def compact(self) -> None:
        """Drops dictionary entries that no row uses. The numbers of the others change, so every follower must load
        everything afterwards."""
        fleet = self.fleet
        here = fleet.cluster >= 0
        fleet.label_sets = _kept(fleet.labelset, here, fleet.label_sets)
        fleet.taint_sets = _kept(fleet.taintset, here, fleet.taint_sets)
        fleet.port_sets = _kept(fleet.portset, here, fleet.port_sets)
        if fleet.layout is not None:
            fleet.layout_sets = fleet.parts.renumber(_kept(fleet.layout, here, fleet.layout_sets))
        self._labels = {frozenset(s.items()): i for i, s in enumerate(fleet.label_sets)}
        self._taints = {s: i for i, s in enumerate(fleet.taint_sets)}
        self._ports = {s: i for i, s in enumerate(fleet.port_sets)}
        self._layouts = {s: i for i, s in enumerate(fleet.layout_sets)}
        self._sent = Entries()

    @property
    def entries(self) -> Entries:
        """Returns the entries that the dictionary has."""
        fleet = self.fleet
        sets: tuple[Sequence[Any], ...] = fleet.label_sets, fleet.taint_sets, fleet.port_sets, fleet.layout_sets
        return Entries(*map(len, sets))

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

    def port_number(self, ports: tuple[str, ...]) -> int:
        number = self._ports.get(ports)
        if number is None:
            number = self._ports[ports] = len(self.fleet.port_sets)
            self.fleet.port_sets.append(ports)
        return number

    def layout_number(self, source: bytes) -> int:
        number = self._layouts.get(source)
        if number is None:
            number = self._layouts[source] = len(self.fleet.layout_sets)
            self.fleet.layout_sets.append(source)
            self.fleet.parts.learn([source])
        return number

    def _columns(
        self, cid: int, rows: Sequence[NodeRow], before: Mapping[str, int], extras: Mapping[str, bytes]
    ) -> tuple[FleetDelta, list[NodeRow]]:
        """Returns the rows that differ from the current ones, and their columns as a patch."""
        if not rows:
            return FleetDelta(), []
        fleet, count = self.fleet, len(rows)
        flags = np.array([row.flags for row in rows], FLAGS)
        labels = np.array([self.label_number(row.labels) for row in rows], NUMBERS)
        taints = np.array([self.taint_number(row.taints) if row.taints else 0 for row in rows], NUMBERS)
        ports = np.array([self.port_number(row.host_ports) if row.host_ports else 0 for row in rows], NUMBERS)
        exclusive = np.array([row.exclusive for row in rows], AMOUNTS)
        layouts = np.array([self.layout_number(row.inside) if row.inside else 0 for row in rows], NUMBERS)
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
            same &= (fleet.labelset[at] == labels) & (fleet.taintset[at] == taints) & (fleet.portset[at] == ports)
            same &= exclusive == (-1 if fleet.exclusive is None else fleet.exclusive[at])
            same &= layouts == (0 if fleet.layout is None else fleet.layout[at])
            same &= ~self._uses_differ(cid, rows, at, np.flatnonzero(same & (layouts > 0)))
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
                flags, labels, taints, ports = flags[keep], labels[keep], taints[keep], ports[keep]
                exclusive, layouts = exclusive[keep], layouts[keep]
                amounts = {name: (a[keep], r[keep]) for name, (a, r) in amounts.items()}
        if not count:
            return FleetDelta(), []
        patch = columns_of(flags, labels, taints, ports, exclusive, amounts)
        if layouts.any():
            patch.layout_numbers = pack_column(layouts, NUMBERS)
            patch.uses = np.array([amount for row in rows for amount in row.in_use], AMOUNTS).tobytes()
        return patch, list(rows)

    def _uses_differ(
        self, cid: int, rows: Sequence[NodeRow], at: NDArray[np.intp], having: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """Tells which of the rows use other amounts of their parts than before: of those in `having`, whose layouts stay."""
        differ = np.zeros(len(rows), np.bool_)
        if len(having):
            before = np.split(
                parts_used(self.fleet, cid, at[having]), np.cumsum([len(rows[i].in_use) for i in having.tolist()])[:-1]
            )
            for i, amounts in zip(having.tolist(), before, strict=True):
                differ[i] = tuple(amounts.tolist()) != rows[i].in_use
        return differ

    # -- output ----------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    @property
    def has_refreshed(self) -> bool:
        return bool(self._heard)

    def waits(self, cid: int) -> bool:
        """Returns whether a cluster has changes that followers do not know yet."""
        return cid in self._pending

    def flush(self, generation: int, counter: int, most: int = 1 << 30) -> FleetFlush:
        """Returns the pending changes of at most `most` clusters, as change number `counter`."""
        fleet = self.fleet
        parts: list[ClusterDelta] = []
        runs: list[NDArray[np.intp]] = []
        runs_of: list[int] = []
        snapshots: dict[int, bytes | None] = {}
        pending, self._pending = self._pending, {}
        while len(pending) > most:
            cid, what = pending.popitem()
            self._pending[cid] = what
        heard, self._heard = self._heard, {}
        for cid, what in pending.items():
            if fleet.cluster_flags(cid) & GONE:
                parts.append(cluster_delta(fleet, cid, counter, NO_ROWS, True))
                snapshots[cid] = None
                continue
            rows = fleet.rows_of(cid)
            snapshots[cid] = self.snapshot(cid, generation, counter, rows)
            if not what.whole:
                places = fleet.places(cid)
                rows = np.array([places[name] for name in what.rows if name in places], np.intp)
            part = cluster_delta(fleet, cid, counter, rows, what.whole)
            if not what.whole:
                live = fleet.pods.claims_of(cid)
                part.gone = sorted(what.gone)
                part.claims = {claim: live.get(claim, {}) for claim in what.claims}
                ending = fleet.pods.ending_of(cid)
                part.ending = {claim: ending[claim] for claim in what.claims if claim in ending}
                counted = fleet.pods.counted_of(cid)
                part.counted = {claim: counted[claim] for claim in what.claims if claim in counted}
                named = fleet.pods.named_of(cid)
                part.named = {claim: named[claim] for claim in what.claims if claim in named}
                part.refused = {claim: fleet.pods.refused_of(cid).get(claim, []) for claim in what.refused}
                part.words = {c: text for c, text in fleet.pods.refusal_words(cid).items() if c in what.refused}
                part.labels = part.labels if what.labels else None
            parts.append(part)
            runs.append(rows)
            runs_of.append(cid)
        patch = export(fleet, np.concatenate(runs) if runs else NO_ROWS, runs_of)
        patch.generation, patch.counter, patch.clusters = generation, counter, parts
        sent = self._sent
        patch.labels_from, patch.label_sets = sent.labels, fleet.label_sets[sent.labels :]
        patch.taints_from, patch.taint_sets = sent.taints, [list(s) for s in fleet.taint_sets[sent.taints :]]
        patch.ports_from, patch.port_sets = sent.ports, [list(s) for s in fleet.port_sets[sent.ports :]]
        patch.layouts_from, patch.layout_sets = sent.layouts, fleet.layout_sets[sent.layouts :]
        patch.heard = np.array(list(heard), NUMBERS).tobytes()
        patch.heard_at = np.array(list(heard.values()), TIMES).tobytes()
        self._sent = self.entries
        return FleetFlush(counter, delta.encode(patch), snapshots, self.dictionary(sent), tuple(pending))

    def again(self, flush: FleetFlush) -> None:
        """Makes the clusters of a flush that was not written pending, with all their rows."""
        for cid in flush.clusters:
            self._pending.setdefault(cid, _Pending()).whole = True
        self._sent = Entries(*(min((sent, *new)) for sent, new in zip(self._sent, flush.dictionary, strict=True)))

    def sent(self, entries: Entries) -> None:
        """Notes that so many dictionary entries are stored for followers."""
        self._sent = Entries(*map(max, self._sent, entries))

    def settle(self) -> None:
        """Clears pending changes, because everything is about to be written and loaded by every follower."""
        self._pending, self._heard = {}, {}

    def dictionary(self, after: Entries = Entries()) -> Dictionary:  # noqa: B008
        """Returns the entries that follow so many of each kind."""
        fleet = self.fleet
        sets: tuple[Sequence[Any], ...] = fleet.label_sets, fleet.taint_sets, fleet.port_sets, fleet.layout_sets
        return Dictionary(
            *(
                {i: _entry.encode(entries[i]) for i in range(first, len(entries))}
                for entries, first in zip(sets, after, strict=True)
            )
        )

    def snapshot(self, cid: int, generation: int, counter: int, rows: NDArray[np.intp] | None = None) -> bytes:
        return encode_snapshot(self.fleet, cid, generation, counter, rows)


def _kept(numbers: NDArray[np.int32], here: NDArray[np.bool_], sets: list[Entry]) -> list[Entry]:
    used = np.union1d(np.unique(numbers[here]), [0]).astype(np.intp)
    new = np.zeros(len(sets), np.int32)
    new[used] = np.arange(len(used))
    numbers[here] = new[numbers[here]]
    return [sets[i] for i in used.tolist()]


__all__ = ["HOST", "FleetFlush", "FleetWriter"]
