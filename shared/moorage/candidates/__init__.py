"""Decodes the answers of controllers (sets, levels, conflicts), merges them and chooses clusters. Pure functions over
masks of clusters."""

from __future__ import annotations

from .choice import Choice, FailedPlacement, FreeCapacity, NoChoice, choose
from .cluster_sets import LEVELS, Mask, Scores, decode_set, pack, pack_levels, unpack, unpack_levels
from .decode import AffinityRule, CountedGroup, DecodedAnswer, DecodedAppAnswer, decode_answer
from .merge import CountMismatch, PlacementProblem, WeightedAnswer, disjoint_sets, merge

__all__ = [
    "LEVELS",
    "AffinityRule",
    "Choice",
    "CountMismatch",
    "CountedGroup",
    "DecodedAnswer",
    "DecodedAppAnswer",
    "FailedPlacement",
    "FreeCapacity",
    "Mask",
    "NoChoice",
    "PlacementProblem",
    "Scores",
    "WeightedAnswer",
    "choose",
    "decode_answer",
    "decode_set",
    "disjoint_sets",
    "merge",
    "pack",
    "pack_levels",
    "unpack",
    "unpack_levels",
]
