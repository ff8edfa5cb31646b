"""Encodes sets of clusters for the wire and decodes them strictly.

Built-in controllers send packed sets of dense cluster ids, others may send plain names. Inside a process a set is a boolean
mask over dense cluster ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyroaring
from numpy.typing import NDArray

from moorage.model.candidates import LEVELS, Level, PackedSet, WireSet

Mask = NDArray[np.bool_]
Scores = NDArray[np.float64]
#: 0 is the lowest.
Ranks = NDArray[np.int64]


class Unpacked(NamedTuple):
    mask: Mask
    unknown: int  # names or ids that this process does not know: ignored, but counted


def pack(mask: Mask) -> PackedSet:
    """Encodes a mask as the shorter of a roaring bitmap and packed bits. Bits are shorter for random sets of density 0.5;
    nearly empty or nearly full sets are a few bytes of roaring."""
    bits = np.packbits(mask).tobytes().rstrip(b"\0")
    count = int(np.count_nonzero(mask))
    runs = int(np.count_nonzero(mask[1:] & ~mask[:-1])) + 1 if count else 0
    # Estimate the bitmap's size first, because building one costs more: a header of 8 bytes, then 8 per container.
    if 16 + min(2 * count, 4 * runs) < len(bits):
        bitmap = pyroaring.BitMap(array("I", np.flatnonzero(mask).astype(np.uint32).tobytes()))
        bitmap.run_optimize()
        data = bytes(bitmap.serialize())
        if len(data) < len(bits):
            return PackedSet(format="roaring", data=data)
    return PackedSet(format="bits", data=bits)


def _from_bits(data: bytes, size: int) -> Unpacked:
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
    if bits.size >= size:
        return Unpacked(bits[:size].astype(np.bool_), int(np.count_nonzero(bits[size:])))
    mask = np.zeros(size, dtype=np.bool_)
    mask[: bits.size] = bits
    return Unpacked(mask, 0)


def _from_roaring(data: bytes, size: int) -> Unpacked:
    if not data:
        raise ValueError("an empty roaring bitmap is not valid")
    try:
        bitmap = pyroaring.BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise ValueError("not a roaring bitmap") from error
    # A run of a few bytes can hold four billion ids, so unknown ids are cut off before it becomes an array.
    known = bitmap & pyroaring.BitMap(range(size)) if size else pyroaring.BitMap()
    ids = np.frombuffer(known.to_array(), dtype=np.uint32)
    if ids.size and (int(ids[-1]) >= size or np.any(ids[1:] <= ids[:-1])):
        raise ValueError("a roaring bitmap whose containers are out of order")
    mask = np.zeros(size, dtype=np.bool_)
    mask[ids] = True
    return Unpacked(mask, len(bitmap) - int(ids.size))


def decode_set(wire: WireSet, ids: Mapping[str, int], size: int) -> Unpacked:
    """Decodes a set, and raises ValueError for anything but names or a well-formed packed set. Unknown names, and ids of
    clusters that joined after the newest one known here, are left out and counted."""
    if isinstance(wire, list):
        mask = np.zeros(size, dtype=np.bool_)
        known = [i for i in map(ids.get, wire) if i is not None and i < size]
        mask[known] = True
        return Unpacked(mask, len(wire) - len(known))
    # A controller may know many clusters that are not known here yet, but never more than this allows.
    if len(wire.data) > 65_536 + size:
        raise ValueError(f"a set of {len(wire.data)} bytes for {size} clusters")
    if wire.format == "bits":
        return _from_bits(wire.data, size)
    return _from_roaring(wire.data, size)


def unpack(wire: WireSet, ids: Mapping[str, int], size: int) -> Mask:
    return decode_set(wire, ids, size).mask


def unpack_levels(levels: list[Level], ids: Mapping[str, int], size: int) -> Scores:
    """Decodes levels. A cluster in no level scores 0, one in several the highest. Values outside 0..1 are refused."""
    if len(levels) > LEVELS:
        raise ValueError(f"{len(levels)} levels of score; at most {LEVELS} are allowed")
    scores = np.zeros(size, dtype=np.float64)
    for level in levels:
        if not 0.0 <= level.value <= 1.0:
            raise ValueError(f"a score of {level.value} is outside 0..1")
        mask = unpack(level.clusters, ids, size)
        scores[mask] = np.maximum(scores[mask], level.value)
    return scores


def unpack_ranks(sets: list[WireSet], ids: Mapping[str, int], size: int, most: int) -> Ranks:
    """Decodes disjoint sets, the best first, into ranks: the highest for the first, 0 for clusters in none. A cluster in several has
    the best of them. Raises ValueError for more than `most` sets."""
    if len(sets) > most:
        raise ValueError(f"{len(sets)} ranks of clusters; at most {most} are allowed")
    ranks = np.zeros(size, np.int64)
    for number, wire in enumerate(sets):
        mask = unpack(wire, ids, size)
        ranks[mask & (ranks == 0)] = len(sets) - number
    return ranks
