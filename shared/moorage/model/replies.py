"""The outcome of one request of a scatter-gather: the answer of a responder, or its timeout."""

from __future__ import annotations

from typing import NamedTuple


class Reply(NamedTuple):
    outcome: str  # answered | timeout | skipped (not asked)
    data: bytes
    took_ms: float
    error: str = ""
