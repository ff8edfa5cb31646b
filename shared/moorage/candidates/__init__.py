"""What controllers answer (sets, levels, conflicts) and how the answers become one choice: pure functions over masks."""

from __future__ import annotations

from .choice import Choice, NoChoice, Nogood, Room, choose
from .cluster_sets import LEVELS, Mask, Scores, pack, pack_levels, read, unpack, unpack_levels
from .decode import AppOpinion, Group, Opinion, Rule, read_answer
from .merge import Clash, Merged, Voice, disjoint, merge

__all__ = [
    "LEVELS",
    "AppOpinion",
    "Choice",
    "Clash",
    "Group",
    "Mask",
    "Merged",
    "NoChoice",
    "Nogood",
    "Opinion",
    "Room",
    "Rule",
    "Scores",
    "Voice",
    "choose",
    "disjoint",
    "merge",
    "pack",
    "pack_levels",
    "read",
    "read_answer",
    "unpack",
    "unpack_levels",
]
