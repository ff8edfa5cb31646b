"""The decision log folded, the room it takes from the fleet, and the one way to append to it."""

from __future__ import annotations

from .capacity import Capacity, uncovered
from .committer import MAX_BYTES, MAX_ENTRIES, Committed, Committer, Dropped, Guard
from .existing_placement import ExistingPlacement, existing_placement, kept_slots
from .follower import (
    LOG,
    LedgerFollower,
    LedgerLost,
    decode_commit,
    keep_capacity,
    newest_snapshot,
    open_ledger,
    read_snapshot,
    write_snapshot,
)
from .ledger import ActiveClaim, Changes, Ledger

__all__ = [
    "LOG",
    "MAX_BYTES",
    "MAX_ENTRIES",
    "ActiveClaim",
    "Capacity",
    "Changes",
    "Committed",
    "Committer",
    "Dropped",
    "ExistingPlacement",
    "Guard",
    "Ledger",
    "LedgerFollower",
    "LedgerLost",
    "decode_commit",
    "existing_placement",
    "keep_capacity",
    "kept_slots",
    "newest_snapshot",
    "open_ledger",
    "read_snapshot",
    "uncovered",
    "write_snapshot",
]
