"""The decision log: its folded state, the capacity that its claims use, and the committer that appends to it."""

from __future__ import annotations

from .capacity import Capacity, uncovered
from .commits import decode_commit, encode_commit, encode_entry
from .committer import MAX_BYTES, MAX_ENTRIES, Committed, Committer, Guard
from .entries import Dropped
from .existing_placement import ExistingPlacement, existing_placement, kept_slots
from .follower import (
    LOG,
    LedgerFollower,
    LedgerLost,
    keep_capacity,
    open_ledger,
)
from .ledger import ActiveClaim, Changes, Ledger
from .snapshots import newest_snapshot, read_snapshot, write_snapshot

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
    "encode_commit",
    "encode_entry",
    "existing_placement",
    "keep_capacity",
    "kept_slots",
    "newest_snapshot",
    "open_ledger",
    "read_snapshot",
    "uncovered",
    "write_snapshot",
]
