"""Decodes the answers of controllers (sets, levels, conflicts), merges them and chooses clusters. Pure functions over
masks of clusters."""

from __future__ import annotations

from .choice import (
    Choice,
    ChoiceBasis,
    FailedPlacement,
    FreeCapacity,
    NoChoice,
    OwnRoom,
    ValueParts,
    basis_of,
    choose,
    value_parts,
)
from .cluster_sets import Mask, Scores, decode_set, pack, unpack, unpack_levels
from .decode import CountedGroup, DecodedAnswer, DecodedAppAnswer, DecodedRule, decode_answer
from .merge import CountMismatch, PlacementProblem, WeightedAnswer, disjoint_sets, merge

__all__ = [
    "Choice",
    "ChoiceBasis",
    "CountMismatch",
    "CountedGroup",
    "DecodedAnswer",
    "DecodedAppAnswer",
    "DecodedRule",
    "FailedPlacement",
    "FreeCapacity",
    "Mask",
    "NoChoice",
    "OwnRoom",
    "PlacementProblem",
    "Scores",
    "ValueParts",
    "WeightedAnswer",
    "basis_of",
    "choose",
    "decode_answer",
    "decode_set",
    "disjoint_sets",
    "merge",
    "pack",
    "unpack",
    "unpack_levels",
    "value_parts",
]
