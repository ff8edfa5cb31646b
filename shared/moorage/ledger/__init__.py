"""The decision log: its folded state, the capacity that its claims use, and the committer that appends to it."""

from __future__ import annotations

from .active_claims import ActiveClaim
from .capacity import Capacity
from .commits import decode_commit, encode_commit, encode_entry
from .committer import MAX_BYTES, MAX_ENTRIES, Committed, Committer, Guard
from .coverage import Coverage, cover
from .displacement import displaced_reason
from .entries import Dropped
from .existing_placement import ExistingPlacement, OwnClaims, existing_placement, own_amounts, own_claims, wanted_on
from .families import CountedClaim, Family, NodeAmounts, open_room
from .follower import (
    LOG,
    LedgerFollower,
    LedgerLost,
    keep_capacity,
    keep_quotas,
    open_ledger,
)
from .ledger import Changes, Ledger
from .own_places import Placed, assign_beside_own
from .room import free_in_common, free_of, is_reached, unshared_of
from .snapshots import newest_snapshot, read_snapshot, write_snapshot
from .takeovers import Wanted

__all__ = [
    "LOG",
    "MAX_BYTES",
    "MAX_ENTRIES",
    "ActiveClaim",
    "Capacity",
    "Changes",
    "Committed",
    "Committer",
    "CountedClaim",
    "Coverage",
    "Dropped",
    "ExistingPlacement",
    "Family",
    "Guard",
    "Ledger",
    "LedgerFollower",
    "LedgerLost",
    "NodeAmounts",
    "OwnClaims",
    "Placed",
    "Wanted",
    "assign_beside_own",
    "cover",
    "decode_commit",
    "displaced_reason",
    "encode_commit",
    "encode_entry",
    "existing_placement",
    "free_in_common",
    "free_of",
    "is_reached",
    "keep_capacity",
    "keep_quotas",
    "newest_snapshot",
    "open_ledger",
    "open_room",
    "own_amounts",
    "own_claims",
    "read_snapshot",
    "unshared_of",
    "wanted_on",
    "write_snapshot",
]
