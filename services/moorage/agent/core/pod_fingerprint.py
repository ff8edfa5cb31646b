"""Computes the fingerprint with which a NodeResourceTopology tells which pods it counts: `pfp0v001` of
https://github.com/k8stopologyawareschedwg/podfingerprint, a hash (XXH64) over the sorted hashes of the pods' names."""

from __future__ import annotations

from collections.abc import Iterable

VERSION = "pfp0v001"
_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def pod_hash(namespace: str, name: str) -> int:
    """Returns the hash of a pod's name, which its namespace seeds."""
    return xxh64(name.encode(), xxh64(namespace.encode()))


def fingerprint(hashes: Iterable[int]) -> str:
    """Returns the fingerprint of the pods with these hashes."""
    return f"{VERSION}{xxh64(b''.join(h.to_bytes(8, 'little') for h in sorted(hashes))):016x}"


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _round(state: int, lane: int) -> int:
    return _rotated((state + lane * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes, seed: int = 0) -> int:
    """Returns the hash XXH64."""
    size, at = len(data), 0
    if size >= 32:
        states = [seed + _P1 + _P2 & _MASK, seed + _P2 & _MASK, seed, seed - _P1 & _MASK]
        while at + 32 <= size:
            for i in range(4):
                states[i] = _round(states[i], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        found = sum(_rotated(state, bits) for state, bits in zip(states, (1, 7, 12, 18), strict=True)) & _MASK
        for state in states:
            found = ((found ^ _round(0, state)) * _P1 + _P4) & _MASK
    else:
        found = seed + _P5 & _MASK
    found = found + size & _MASK
    while at + 8 <= size:
        found = (_rotated(found ^ _round(0, int.from_bytes(data[at : at + 8], "little")), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        lane = int.from_bytes(data[at : at + 4], "little")
        found = (_rotated(found ^ lane * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32
