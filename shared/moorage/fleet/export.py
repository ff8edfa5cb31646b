"""Makes patches of rows of a fleet, and the snapshot of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from . import delta
from .delta import AMOUNTS, FLAGS, NUMBERS, SEPARATOR, ClusterDelta, FleetDelta, pack_column
from .fleet import Fleet

NO_ROWS = np.empty(0, np.intp)


def encode_snapshot(
    fleet: Fleet, cid: int, generation: int, counter: int, rows: NDArray[np.intp] | None = None
) -> bytes:
    """Encodes all rows of a cluster, which may be given."""
    rows = fleet.rows_of(cid) if rows is None else rows
    patch = export(fleet, rows, [cid])
    patch.generation, patch.counter = generation, counter
    patch.clusters = [cluster_delta(fleet, cid, counter, rows, True)]
    return delta.encode(patch)


def cluster_delta(fleet: Fleet, cid: int, counter: int, rows: NDArray[np.intp], whole: bool) -> ClusterDelta:
    """Returns what a patch says of a cluster, without the columns of its rows."""
    names = fleet.names_at(cid, rows)
    extras = fleet.extras_of(cid)
    return ClusterDelta(
        id=cid,
        name=fleet.names[cid],
        version=counter,
        state=fleet.cluster_flags(cid),
        as_of=fleet.as_of(cid),
        joined_at=fleet.joined_at(cid),
        whole=whole,
        rows=len(names),
        names=SEPARATOR.join(names),
        labels=fleet.cluster_labels(cid),
        claims=fleet.pods.claims_of(cid) if whole else {},
        extras={name: extras[name] for name in names if name in extras} if extras else {},
        ending=fleet.pods.ending_of(cid) if whole else {},
        refused=fleet.pods.refused_of(cid) if whole else {},
        words=fleet.pods.refusal_words(cid) if whole else {},
        counted=fleet.pods.counted_of(cid) if whole else {},
        named=fleet.pods.named_of(cid) if whole else {},
    )


def export(fleet: Fleet, rows: NDArray[np.intp], clusters: Iterable[int]) -> FleetDelta:
    """Returns the columns of rows, which are those of the clusters one after the other."""
    if not len(rows):
        return FleetDelta()
    amounts = {}
    for name, found in fleet.stored.items():
        allocatable, requested = found.allocatable[rows], found.requested(rows)
        if allocatable.any() or requested.any():
            amounts[name] = (allocatable, requested)
    exclusive = np.full(len(rows), -1, AMOUNTS) if fleet.exclusive is None else fleet.exclusive[rows]
    labels, taints, ports = fleet.labelset[rows], fleet.taintset[rows], fleet.portset[rows]
    patch = columns_of(fleet.flags[rows], labels, taints, ports, exclusive, amounts)
    if fleet.layout is not None and fleet.layout[rows].any():
        patch.layout_numbers = pack_column(fleet.layout[rows], NUMBERS)
        of = fleet.cluster[rows]
        patch.uses = np.concatenate([parts_used(fleet, cid, rows[of == cid]) for cid in clusters]).tobytes()
    return patch


def columns_of(
    flags: NDArray[np.uint8],
    labels: NDArray[np.int32],
    taints: NDArray[np.int32],
    ports: NDArray[np.int32],
    exclusive: NDArray[np.int64],
    amounts: Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> FleetDelta:
    """Returns a patch of these columns."""
    return FleetDelta(
        flags=pack_column(flags, FLAGS),
        label_numbers=pack_column(labels, NUMBERS),
        taint_numbers=pack_column(taints, NUMBERS),
        exclusive=pack_column(exclusive, AMOUNTS),
        resources={name: (pack_column(a, AMOUNTS), pack_column(r, AMOUNTS)) for name, (a, r) in amounts.items()},
        port_numbers=pack_column(ports, NUMBERS),
    )


def parts_used(fleet: Fleet, cid: int, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Returns what is used of the parts of those rows of a cluster that have some."""
    having = rows[fleet.layout[rows] > 0] if fleet.layout is not None else NO_ROWS
    return fleet.parts.used(cid, having - fleet.first_row(cid)) if len(having) else np.empty(0, np.int64)
