"""Remembers on which Nodes Pods of an owner were not bound, so that its next Pods try others. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

#: Seconds until the next attempt, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
_NONE: frozenset[str] = frozenset()


def pause_after(attempts: int) -> float:
    """Returns for how many seconds nothing is tried after so many failed attempts."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempts - 1, 10))


class _Failed(NamedTuple):
    attempts: int
    until: float  # 0: it may be tried again


class AvoidedNodes:
    """Owners are named by uid."""

    def __init__(self) -> None:
        self._failed: dict[str, dict[str, _Failed]] = {}
        self._avoided: dict[str, frozenset[str]] = {}

    def of(self, owner: str) -> frozenset[str]:
        return self._avoided.get(owner, _NONE)

    def note_failure(self, owner: str, node: str, now: float) -> None:
        nodes = self._failed.setdefault(owner, {})
        attempts = nodes[node].attempts + 1 if node in nodes else 1
        nodes[node] = _Failed(attempts, now + pause_after(attempts))
        self._avoided[owner] = self.of(owner) | {node}

    def note_success(self, owner: str, node: str) -> None:
        if owner in self._failed and self._failed[owner].pop(node, None) is not None:
            self._avoided[owner] = self.of(owner) - {node}

    def expire(self, now: float, owners: Collection[str]) -> set[str]:
        """Lets Nodes be tried again whose time has come, and forgets all owners but these. Returns the owners that may try again."""
        ended = set()
        for owner in list(self._failed):
            nodes = self._failed[owner]
            over = {node for node, failed in nodes.items() if failed.until and failed.until <= now}
            if owner not in owners:
                del self._failed[owner]
                self._avoided.pop(owner, None)
            elif over:
                nodes |= {node: nodes[node]._replace(until=0.0) for node in over}
                self._avoided[owner] = self.of(owner) - over
                ended.add(owner)
        return ended

    def next_time(self) -> float | None:
        times = [failed.until for nodes in self._failed.values() for failed in nodes.values() if failed.until]
        return min(times, default=None)
