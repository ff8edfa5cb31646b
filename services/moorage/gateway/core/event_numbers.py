"""Finds the sequence numbers of the newest events by their ids, in memory that does not grow."""

from __future__ import annotations

import numpy as np


class EventNumbers:
    """The sequence numbers of the last `limit` events. Ids are kept as 64-bit hashes."""

    def __init__(self, limit: int) -> None:
        self._hashes = np.zeros(limit, np.int64)
        self._seqs = np.zeros(limit, np.int64)  # 0: unused
        self._count = 0

    def put(self, ident: str, seq: int) -> None:
        self._put(hash(ident), seq)

    def _put(self, hashed: int, seq: int) -> None:
        at = self._count % len(self._seqs)
        self._hashes[at], self._seqs[at] = hashed, seq
        self._count += 1

    def get(self, ident: str) -> int | None:
        """Returns the newest sequence number of an id."""
        found = self._seqs[self._hashes == hash(ident)]
        return int(found.max()) or None if found.size else None

    def put_all(self, newer: EventNumbers) -> None:
        """Adds the events of `newer` in their order."""
        limit = len(newer._seqs)
        for number in range(max(0, newer._count - limit), newer._count):
            self._put(int(newer._hashes[number % limit]), int(newer._seqs[number % limit]))
