"""Tells which trees are alike for a request: the same parts, counted from the tree's first row, can meet it in the same ways.

A tree is described by a few numbers for each of its rows. Trees with equal numbers are solved once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import spread

Rows = NDArray[np.int64]
_MIX = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHIFT = np.uint64(29)


class AlikeTrees(NamedTuple):
    """`kinds` has a key for each kind of trees, `tree` the number of one of them, and `kind` the kind of each tree."""

    keys: list[bytes]
    tree: list[int]
    kind: NDArray[np.intp]


def alike(anchors: Rows, leaves: Rows, columns_of: Callable[[Rows], Sequence[Rows]]) -> AlikeTrees:
    """Groups trees by what `columns_of` says of their rows. Keys are equal for equal kinds."""
    sizes = leaves - anchors
    columns = columns_of(spread(anchors, sizes))
    codes = np.array(columns, np.int64)
    starts = np.cumsum(sizes) - sizes
    first, kind = _by_hash(codes, starts, sizes)
    wrong = _differing(codes, starts, sizes, first[kind])
    if len(wrong):  # equal hashes of different trees
        kind = kind.copy()
        kind[wrong] = len(first) + np.arange(len(wrong))
        first = np.concatenate([first, wrong])
    trees = first.tolist()
    keys = [np.ascontiguousarray(codes[:, starts[t] : starts[t] + sizes[t]]).tobytes() for t in trees]
    return AlikeTrees(keys, trees, kind)


def _by_hash(codes: Rows, starts: Rows, sizes: Rows) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    place = (np.arange(codes.shape[1]) - np.repeat(starts, sizes)).astype(np.uint64)
    mixed = np.zeros(codes.shape[1], np.uint64)
    for column in codes:
        mixed = (mixed ^ column.astype(np.uint64)) * _MIX[0]
        mixed ^= mixed >> _SHIFT
    mixed = (mixed + place * _MIX[1]) * _MIX[2]
    mixed ^= mixed >> _SHIFT
    sums = np.add.reduceat(mixed, starts) ^ sizes.astype(np.uint64) * _MIX[1]
    _, first, kind = np.unique(sums, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)


def _differing(codes: Rows, starts: Rows, sizes: Rows, like: NDArray[np.intp]) -> NDArray[np.intp]:
    """Returns the trees that are not as the tree to which they are said to be alike."""
    same = sizes == sizes[like]
    lengths = np.where(same, sizes, 0)
    mine, theirs = spread(starts, lengths), spread(starts[like], lengths)
    unequal = (codes[:, mine] != codes[:, theirs]).any(axis=0)
    if unequal.any():
        same[np.repeat(np.arange(len(sizes)), lengths)[unequal]] = False
    return np.flatnonzero(~same)
