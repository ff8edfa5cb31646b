"""Copies what a decision depends on out of a fleet, and makes a fleet of it again: rows of a few clusters, sums of some more,
and which clusters existed and were usable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moorage.candidates import pack, unpack
from moorage.model.base import Model
from moorage.model.candidates import PackedSet
from moorage.model.reports import Taint
from moorage.model.shared_slots import SharedSlots
from moorage.model.slots import PodParts
from moorage.parts.identities import mentions_identity
from moorage.parts.inside import common_source

from . import delta
from .delta import AMOUNTS, FLAGS, NUMBERS, SEPARATOR, ClusterDelta, FleetDelta, Malformed, pack_column
from .fleet import Fleet
from .normalize import HOSTNAME

#: Sorts after the name of every cluster.
_LAST = "\U0010ffff"
#: What clusters without recorded sums have free: less than nothing, so that they take nothing.
_UNKNOWN = -1

Labels = dict[str, str]


class Excerpt(Model, kw_only=True):
    """A part of a fleet, encoded. `rows` is a patch with the clusters whose rows are known, `amounts` what these rows have
    allocatable and free, by resource. `sums` has what the clusters
    `summed` have free and allocatable, by resource. `joined`: by epoch, the clusters that joined after it. `open_pods`: by
    cluster and node, the pods that may still arrive where a kubelet aligns them. `shared_slots`: by cluster and node, those that several
    machine types share."""

    epoch: str
    size: int
    known: PackedSet
    usable: PackedSet
    names: dict[int, str]
    rows: bytes
    amounts: dict[str, tuple[bytes, bytes]]
    summed: bytes
    sums: dict[str, tuple[bytes, bytes]]
    joined: dict[str, PackedSet] = {}
    open_pods: dict[int, dict[str, list[tuple[PodParts, int]]]] = {}
    shared_slots: dict[int, dict[str, tuple[SharedSlots, ...]]] = {}


@dataclass(slots=True)
class FleetCopy:
    """Copies of columns, not encoded yet: making one must cost a decision little. Numbers of labels and taints refer to the
    lists that were the fleet's then, to which entries are only ever added."""

    epoch: str
    known: NDArray[np.bool_]
    usable: NDArray[np.bool_]
    joined: dict[str, NDArray[np.bool_]]
    names: list[str]  # the fleet's own, and its ids, to which clusters are only ever added
    ids: dict[str, int]
    sums: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
    clusters: list[ClusterDelta]
    flags: NDArray[np.uint8]
    labels: NDArray[np.int32]
    taints: NDArray[np.int32]
    amounts: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
    label_sets: list[Labels]
    taint_sets: list[tuple[Taint, ...]]
    layouts: NDArray[np.int32] | None = None  # None: no row has parts
    uses: NDArray[np.int64] | None = None  # of parts, what is in use or claimed
    layout_sets: Sequence[bytes] = ()
    open_pods: dict[int, dict[str, Mapping[PodParts, int]]] = field(default_factory=dict)
    shared_slots: dict[int, dict[str, tuple[SharedSlots, ...]]] = field(default_factory=dict)

    def encode(self, summed: Sequence[int], named: Iterable[str], mentioned: bytes) -> Excerpt:
        """Returns the copy encoded, with the sums of the clusters `summed`, and the numbers of those that are `named`. Labels
        whose keys `mentioned` does not contain are left out: nobody asks for them."""
        patch = FleetDelta(
            clusters=self.clusters,
            flags=pack_column(self.flags, FLAGS),
            exclusive=pack_column(np.full(len(self.flags), -1), AMOUNTS),
        )
        # Entry 0 of both dictionaries is the empty set.
        sets: dict[tuple[tuple[str, str], ...], int] = {(): 0}
        numbers = np.zeros(len(self.labels), np.int32)
        for number in np.unique(self.labels).tolist():
            kept = tuple(
                (k, v) for k, v in sorted(self.label_sets[number].items()) if k == HOSTNAME or k.encode() in mentioned
            )
            numbers[self.labels == number] = sets.setdefault(kept, len(sets))
        used, of = np.unique(np.append(self.taints, np.int32(0)), return_inverse=True)
        patch.label_numbers = pack_column(numbers, NUMBERS)
        patch.taint_numbers = pack_column(of[:-1], NUMBERS)
        patch.labels_from, patch.label_sets = 1, [dict(entry) for entry in sets][1:]
        patch.taints_from, patch.taint_sets = 1, [list(self.taint_sets[n]) for n in used.tolist()][1:]
        if self.layouts is not None and self.uses is not None:
            layouts, sources = self._layouts_of_rows(self.layouts, mentioned)
            patch.layout_numbers = pack_column(layouts, NUMBERS)
            patch.layouts_from, patch.layout_sets = 1, sources[1:]
            patch.uses = self.uses.astype(AMOUNTS).tobytes()
        names = {cid: self.names[cid] for cid in (*(part.id for part in self.clusters), *summed)}
        numbered = ((cid, name) for name in named if (cid := self.ids.get(name)) is not None and cid < len(self.known))
        names.update((cid, name) for cid, name in numbered if self.known[cid])
        at = np.array(summed, np.intp)
        return Excerpt(
            epoch=self.epoch,
            size=len(self.known),
            known=pack(self.known),
            usable=pack(self.usable),
            names=names,
            rows=delta.encode(patch),
            amounts={name: (pack_column(a, AMOUNTS), pack_column(f, AMOUNTS)) for name, (a, f) in self.amounts.items()},
            summed=at.astype(NUMBERS).tobytes(),
            sums={name: (free[at].tobytes(), total[at].tobytes()) for name, (free, total) in self.sums.items()},
            joined={epoch: pack(mask) for epoch, mask in self.joined.items()},
            open_pods={
                cid: {node: sorted(pods.items()) for node, pods in nodes.items()}
                for cid, nodes in self.open_pods.items()
            },
            shared_slots=self.shared_slots,
        )

    def _layouts_of_rows(self, numbers: NDArray[np.int32], mentioned: bytes) -> tuple[NDArray[np.intp], list[bytes]]:
        """Returns the layouts of rows as numbers of the sources that are returned, too. Identities of devices are left out where
        neither what is `mentioned` nor a DeviceClass asks for them."""
        sources: dict[bytes, int] = {b"": 0}
        used, of = np.unique(numbers, return_inverse=True)
        asked = mentions_identity(mentioned)

        def kept(source: bytes) -> bytes:
            common = common_source(source)
            return source if asked or mentions_identity(common) else common

        places = [sources.setdefault(kept(self.layout_sets[number]), len(sources)) for number in used.tolist()]
        return np.array(places, np.intp)[of], list(sources)


def copy_of(
    fleet: Fleet,
    *,
    rows_of: Collection[int],
    resources: Iterable[str],
    sums: Iterable[str],
    claims: Collection[str],
    epochs: Iterable[str],
) -> FleetCopy:
    """Copies the rows of the clusters `rows_of` with these resources and the pods of these claims, the `sums` of resources, and
    what joined after these epochs. What is claimed is not free in the copy."""
    cids = np.array(sorted(rows_of), np.intp)
    rows = fleet.rows_in(cids)
    amounts = {}
    for name in resources:
        allocatable, free = fleet.allocatable(name), fleet.free(name)
        if allocatable is not None and free is not None:
            amounts[name] = (allocatable[rows], free[rows])
    parts = [_part(fleet, cid, claims) for cid in cids.tolist()]
    columns = {name: fleet.sums(name) for name in sums}
    return FleetCopy(
        str(fleet.epoch),
        fleet.known.copy(),
        fleet.usable_clusters.copy(),
        {epoch: mask for epoch in epochs if (mask := fleet.joined_after(epoch)) is not None},
        fleet.names,
        fleet.ids,
        {name: (free.copy(), total.copy()) for name, (free, total) in columns.items()},
        parts,
        fleet.flags[rows],
        fleet.labelset[rows],
        fleet.taintset[rows],
        amounts,
        fleet.label_sets,
        fleet.taint_sets,
        *_inside_of(fleet, cids.tolist(), rows),
        {cid: dict(fleet.open_pods[cid]) for cid in cids.tolist() if cid in fleet.open_pods},
        {cid: dict(fleet.shared_slots[cid]) for cid in cids.tolist() if cid in fleet.shared_slots},
    )


def _inside_of(
    fleet: Fleet, cids: Sequence[int], rows: NDArray[np.intp]
) -> tuple[NDArray[np.int32] | None, NDArray[np.int64] | None, Sequence[bytes]]:
    """Returns the layouts of rows, and what is in use or claimed of their parts."""
    if fleet.layout is None or not fleet.layout[rows].any():
        return None, None, ()
    uses: list[NDArray[np.int64]] = []
    for cid in cids:
        here = fleet.rows_of(cid)
        offsets = here[fleet.layout[here] > 0] - fleet.first_row(cid)
        if len(offsets):
            uses.append(fleet.parts.used(cid, offsets, claimed=True))
    return fleet.layout[rows], np.concatenate(uses), fleet.layout_sets


def _part(fleet: Fleet, cid: int, claims: Collection[str]) -> ClusterDelta:
    names, live = fleet.nodes_of(cid), fleet.pods.claims_of(cid) if claims else {}
    return ClusterDelta(
        id=cid,
        name=fleet.names[cid],
        state=fleet.cluster_flags(cid),
        whole=True,
        rows=len(names),
        names=SEPARATOR.join(names),
        labels={},
        claims={claim: nodes for claim, nodes in live.items() if claim in claims},
        ending={claim: nodes for claim, nodes in fleet.pods.ending_of(cid).items() if claim in claims}
        if claims
        else {},
        refused={claim: nodes for claim, nodes in fleet.pods.refused_of(cid).items() if claim in claims},
        words={claim: text for claim, text in fleet.pods.refusal_words(cid).items() if claim in claims},
        counted={claim: nodes for claim, nodes in fleet.pods.counted_of(cid).items() if claim in claims},
        named={claim: nodes for claim, nodes in fleet.pods.named_of(cid).items() if claim in claims},
    )


class ExcerptFleet(Fleet):
    """A fleet made of an excerpt. Clusters without recorded sums have nothing free, and their names sort last."""

    def __init__(self, excerpt: Excerpt) -> None:
        super().__init__()
        if not 0 <= excerpt.size <= delta.MAX_CLUSTERS:
            raise Malformed(f"{excerpt.size} clusters")
        self._ensure_clusters(excerpt.size)
        self.names = [f"{_LAST}{cid:07}" for cid in range(excerpt.size)]
        patch = delta.decode(excerpt.rows)
        self.apply(patch)
        rows = self.rows_in(np.array([part.id for part in patch.clusters], np.intp))
        for name, amounts in excerpt.amounts.items():
            resource = self._new_resource(name)
            for column, data in zip((resource.allocatable, resource.free), amounts, strict=True):
                column[rows] = delta.column(data, AMOUNTS, len(rows))
        for cid, name in excerpt.names.items():
            if not 0 <= cid < excerpt.size:
                raise Malformed(f"a cluster number {cid}")
            self.names[cid] = name
        self._known[: self.size] = unpack(excerpt.known, {}, self.size)
        self._usable_clusters[: self.size] = unpack(excerpt.usable, {}, self.size)
        self.ids = {name: cid for cid, name in excerpt.names.items() if self._known[cid]}
        self._requalify(np.flatnonzero(self.cluster[: self.n] >= 0))
        generation, _, counter = excerpt.epoch.partition(".")
        self.epoch = delta.Epoch(int(generation), int(counter))
        self._summed = np.frombuffer(excerpt.summed, NUMBERS).astype(np.intp)
        if len(self._summed) and not 0 <= int(self._summed.min()) <= int(self._summed.max()) < self.size:
            raise Malformed("a sum of a cluster that cannot be")
        self._recorded = {name: self._columns(*pair) for name, pair in excerpt.sums.items()}
        self.open_pods = {
            cid: {node: dict(pods) for node, pods in nodes.items()} for cid, nodes in excerpt.open_pods.items()
        }
        self.shared_slots = excerpt.shared_slots
        self._joined_after = {epoch: unpack(packed, {}, self.size) for epoch, packed in excerpt.joined.items()}

    def _columns(self, free: bytes, allocatable: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        columns = np.full(self.size, _UNKNOWN, np.int64), np.zeros(self.size, np.int64)
        for column, data in zip(columns, (free, allocatable), strict=True):
            column[self._summed] = np.frombuffer(data, AMOUNTS)
        return columns

    def sums(self, resource: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        found = self._recorded.get(resource)
        return self._columns(b"", b"") if found is None else found

    def joined_after(self, epoch: str) -> NDArray[np.bool_] | None:
        return self._joined_after.get(epoch)

    def complete_names(self, names: Sequence[str]) -> None:
        """Names the other clusters as a fleet does now: numbers are never given to another cluster. Those that left before
        it began have their number."""
        for cid, name in enumerate(self.names):
            if name.startswith(_LAST):
                self.names[cid] = (names[cid] if cid < len(names) else "") or f"cluster number {cid}"

    def different_sums(self) -> Mapping[str, list[str]]:
        """Returns, by resource, the clusters whose recorded sum is not that of their rows."""
        found: dict[str, list[str]] = {}
        with_rows = [cid for cid in self._summed.tolist() if len(self.rows_of(cid))]
        for resource, (free, _) in self._recorded.items():
            column = self.free(resource)
            for cid in with_rows:
                rows = self.rows_of(cid)
                rows = rows[self.usable[rows]]
                total = 0 if column is None else int(np.maximum(column[rows], 0).sum())
                if total != free[cid]:
                    found.setdefault(resource, []).append(self.names[cid])
        return found
