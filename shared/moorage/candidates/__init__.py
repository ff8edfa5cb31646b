"""What controllers answer (sets, levels, conflicts) and how the answers become one choice: pure functions over masks."""

from __future__ import annotations

from .choice import Choice, FailedPlacement, FreeCapacity, NoChoice, choose
from .cluster_sets import LEVELS, Mask, Scores, pack, pack_levels, read, unpack, unpack_levels
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
    "disjoint_sets",
    "merge",
    "pack",
    "pack_levels",
    "read",
    "unpack",
    "unpack_levels",
]
