"""What controllers answer (sets, levels, conflicts) and how the answers become one choice: pure functions over masks."""

from __future__ import annotations

from .sets import LEVELS, Mask, Scores, pack, pack_levels, read, unpack, unpack_levels

__all__ = ["LEVELS", "Mask", "Scores", "pack", "pack_levels", "read", "unpack", "unpack_levels"]
