"""The wire format of fleet changes: whole rows as raw columns behind a msgpack header.

Patches on the stream and snapshots of single clusters have the same form. Applying one twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.model.reports import Taint
from moorage.model.slots import PartAmounts

#: Flags of a node row. A node is usable if it is ready and neither unschedulable nor rejected.
READY, UNSCHEDULABLE, REJECTED, HOST = 1, 2, 4, 8
#: Flags of a cluster.
STALE, CORDONED, GONE = 1, 2, 4

SEPARATOR = "\0"
MAX_CLUSTERS = 1 << 21
_MAX_COUNT = 1 << 62


class Epoch(NamedTuple):
    """The generation of an inventory's lease, and the number of its last change."""

    generation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.counter}"


def parse_epoch(text: str) -> Epoch | None:
    """Reads an epoch as a controller answers it, which may be of one's own making."""
    generation, _, counter = text.partition(".")
    return Epoch(int(generation), int(counter)) if generation.isdecimal() and counter.isdecimal() else None


class Malformed(ValueError):
    """The bytes are not a patch, or its columns do not match its header."""


#: Claim → node → what pods take of parts, and how many of them; those that are being deleted come last.
NamedPods = dict[str, dict[str, list[tuple[PartAmounts, int]]]]


class ClusterDelta(msgspec.Struct, array_like=True):
    """A cluster in a patch.

    `version` is the counter of the change: parts that are not newer than the known rows are skipped, and 0 is always applied.
    The next `rows` rows of the patch's columns belong to this cluster.
    """

    id: int
    name: str
    version: int = 0
    state: int = 0
    as_of: float = 0.0
    whole: bool = False  # there are no other rows and claims
    rows: int = 0
    names: str = ""
    gone: list[str] = []
    labels: dict[str, str] | None = None  # None: unchanged
    claims: dict[str, dict[str, int]] = {}  # claim -> node -> pods; {}: no pods any more; node "": not bound
    extras: dict[str, bytes] = {}
    ending: dict[str, dict[str, int]] = {}  # of `claims`: claim -> node -> those pods that are being deleted
    joined_at: float = 0.0  # 0: as before, or not known
    refused: dict[str, list[str]] = {}  # claim -> nodes that did not admit its pods; []: none any more
    words: dict[str, str] = {}  # of `refused`: claim -> what the last of these nodes said
    counted: dict[str, dict[str, int]] = {}  # of `claims`: those pods that what is in use of zones includes
    named: NamedPods = {}  # of `claims`: what pods take of parts, where it is told of each pod

    def names_list(self) -> list[str]:
        return self.names.split(SEPARATOR) if self.rows else []


class FleetDelta(msgspec.Struct, array_like=True):
    """Columns are raw little-endian bytes: one value for each row, or a single one if all are equal."""

    generation: int = 0
    counter: int = 0
    clusters: list[ClusterDelta] = []
    flags: bytes = b""
    label_numbers: bytes = b""
    taint_numbers: bytes = b""
    exclusive: bytes = b""  # exclusive cores; -1: not reported
    resources: dict[str, tuple[bytes, bytes]] = {}  # allocatable, requested
    labels_from: int = 0
    label_sets: list[dict[str, str]] = []
    taints_from: int = 0
    taint_sets: list[list[Taint]] = []
    heard: bytes = b""  # ids of clusters that reported without a change; `heard_at` has the times
    heard_at: bytes = b""
    port_numbers: bytes = b""  # empty: no host ports
    ports_from: int = 0
    port_sets: list[list[str]] = []
    layout_numbers: bytes = b""  # empty: no parts
    layouts_from: int = 0
    layout_sets: list[bytes] = []
    uses: bytes = b""  # what is used of parts: the entries of the layout of each row that has one

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.clusters)


FLAGS = np.dtype("<u1")
NUMBERS = np.dtype("<i4")
AMOUNTS = np.dtype("<i8")
TIMES = np.dtype("<f8")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FleetDelta)


def pack_column(values: NDArray[Any], kind: np.dtype[Any]) -> bytes:
    if len(values) > 1 and (values[0] == values).all():
        values = values[:1]
    return np.ascontiguousarray(values, kind).tobytes()


def column(data: bytes, kind: np.dtype[Any], rows: int) -> NDArray[Any]:
    data = data or bytes(kind.itemsize)
    if len(data) == kind.itemsize:  # one value for all rows; `broadcast_to` takes ten times as long
        return np.ndarray(rows, kind, data, strides=(0,))
    return np.frombuffer(data, kind)


def encode(patch: FleetDelta) -> bytes:
    return _encoder.encode(patch)


def decode(data: bytes) -> FleetDelta:
    """Decodes a patch and checks everything that applying relies on, so that it is applied completely or not at all."""
    try:
        patch = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Malformed(str(error)) from error
    rows = 0
    firsts = (patch.labels_from, patch.taints_from, patch.ports_from, patch.layouts_from)
    for count in (patch.generation, patch.counter, *firsts):
        if not 0 <= count < _MAX_COUNT:
            raise Malformed(f"a count of {count}")
    if len({part.id for part in patch.clusters}) != len(patch.clusters):
        raise Malformed("a cluster comes twice")
    for part in patch.clusters:
        if not (0 <= part.id < MAX_CLUSTERS and 0 <= part.version < _MAX_COUNT and part.rows >= 0):
            raise Malformed(f"cluster number {part.id}, version {part.version}, rows {part.rows}")
        if not 0 <= part.state <= STALE | CORDONED | GONE:
            raise Malformed(f"{part.name}: state {part.state}")
        names = set(part.names_list())
        if len(names) != part.rows or "" in names:
            raise Malformed(f"{part.name}: {part.rows} rows do not have that many names")
        rows += part.rows
    columns: list[tuple[bytes, np.dtype[Any]]] = [
        (patch.flags, FLAGS),
        (patch.label_numbers, NUMBERS),
        (patch.taint_numbers, NUMBERS),
    ]
    none = bytes(NUMBERS.itemsize if rows else 0)
    columns += [
        (patch.exclusive, AMOUNTS),
        (patch.port_numbers or none, NUMBERS),
        (patch.layout_numbers or none, NUMBERS),
    ]
    columns += [(values, AMOUNTS) for pair in patch.resources.values() for values in pair]
    for values, kind in columns:
        if len(values) != rows * kind.itemsize and not (rows and len(values) == kind.itemsize):
            raise Malformed(f"a column of {len(values)} bytes for {rows} rows")
    if len(patch.uses) % AMOUNTS.itemsize:
        raise Malformed(f"amounts of parts in {len(patch.uses)} bytes")
    if len(patch.heard) % 4 or len(patch.heard) * 2 != len(patch.heard_at):
        raise Malformed("times without clusters")
    heard = np.frombuffer(patch.heard, NUMBERS)
    if len(heard) and (int(heard.min()) < 0 or int(heard.max()) >= MAX_CLUSTERS):
        raise Malformed("times of clusters that cannot be")
    return patch


def merge(patches: Iterable[FleetDelta]) -> FleetDelta:
    """Merges snapshots into one patch without dictionary entries, so that loading a fleet takes a few large steps."""
    sources = [(patch, patch.rows) for patch in patches]
    names = {name for patch, _ in sources for name in patch.resources}

    def joined(parts: list[tuple[bytes, int]], kind: np.dtype[Any]) -> bytes:
        return b"".join(data * rows if len(data) == kind.itemsize else data for data, rows in parts)

    def amounts(name: str, which: int) -> bytes:
        zero = (bytes(8), bytes(8))
        return joined([(p.resources.get(name, zero)[which], rows) for p, rows in sources], AMOUNTS)

    return FleetDelta(
        generation=max((p.generation for p, _ in sources), default=0),
        counter=max((p.counter for p, _ in sources), default=0),
        clusters=[part for p, _ in sources for part in p.clusters],
        flags=joined([(p.flags, rows) for p, rows in sources], FLAGS),
        label_numbers=joined([(p.label_numbers, rows) for p, rows in sources], NUMBERS),
        taint_numbers=joined([(p.taint_numbers, rows) for p, rows in sources], NUMBERS),
        exclusive=joined([(p.exclusive, rows) for p, rows in sources], AMOUNTS),
        resources={name: (amounts(name, 0), amounts(name, 1)) for name in sorted(names)},
        port_numbers=joined([(p.port_numbers or bytes(NUMBERS.itemsize), rows) for p, rows in sources], NUMBERS),
        layout_numbers=joined([(p.layout_numbers or bytes(NUMBERS.itemsize), rows) for p, rows in sources], NUMBERS),
        uses=b"".join(p.uses for p, _ in sources),
    )
