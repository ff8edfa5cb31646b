"""Keeps the columns of clusters: names, state, versions, and when they were heard of and joined."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import grown

from . import delta
from .delta import CORDONED, GONE, STALE, ClusterDelta, Epoch, FleetDelta, parse_epoch
from .table import Table


class ClusterColumns(Table):
    """The rows of nodes, and a number for each cluster that stays its own, with what is known of it as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = Epoch(0, 0)
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self._state: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._known: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._usable_clusters: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._version: NDArray[np.int64] = np.empty(0, np.int64)
        self._as_of: NDArray[np.float64] = np.empty(0, np.float64)
        self._joined_at: NDArray[np.float64] = np.empty(0, np.float64)
        #: Counter of the epoch of joining; 0: a member from the start.
        self._joined: NDArray[np.int64] = np.empty(0, np.int64)
        self._last_joined = 0
        self.membership = 0  # grows when clusters join

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def known(self) -> NDArray[np.bool_]:
        """Returns the clusters of the fleet, in any state."""
        return self._known[: self.size]

    @property
    def usable_clusters(self) -> NDArray[np.bool_]:
        return self._usable_clusters[: self.size]

    def state(self, cid: int) -> str:
        flags = int(self._state[cid])
        return "Stale" if flags & STALE else "Cordoned" if flags & CORDONED else "Ready"

    def having_flag(self, flag: int) -> NDArray[np.bool_]:
        """Returns the clusters of the fleet with this flag."""
        having: NDArray[np.bool_] = self.known & ((self._state[: self.size] & flag) != 0)
        return having

    def cluster_flags(self, cid: int) -> int:
        return int(self._state[cid]) if cid < self.size else GONE

    def seq(self, cid: int) -> int:
        """Returns the number of the cluster's newest change in these rows; it only grows."""
        return int(self._version[cid])

    def as_of(self, cid: int) -> float:
        """Returns the agent's time of the newest report in these rows."""
        return float(self._as_of[cid])

    def report_age(self, cid: int, now: float) -> float:
        """Returns the seconds since the newest report in these rows, `inf` if they are not from a report: the cluster has been
        silent since before they were written."""
        as_of = self.as_of(cid)
        return max(0.0, now - as_of) if as_of > 0 else math.inf

    def joined_at(self, cid: int) -> float:
        """Returns the time when the cluster joined the fleet; 0 if it is not known."""
        return float(self._joined_at[cid])

    def joined_after(self, epoch: str) -> NDArray[np.bool_] | None:
        """Returns the clusters that joined after this epoch; None if none did."""
        of = parse_epoch(epoch)
        if of is None or of.generation > self.epoch.generation:
            return None
        seen = of.counter if of.generation == self.epoch.generation else 0
        return None if seen >= self._last_joined else self._joined[: self.size] > seen

    # -- writing -------------------------------------------------------------------------------------------------------

    def _restate(self, part: ClusterDelta, counter: int) -> bool:
        """Writes a cluster's name and state. Returns whether that changes which of its rows are usable."""
        cid = part.id
        self._as_of[cid] = max(float(self._as_of[cid]), part.as_of)
        self._joined_at[cid] = part.joined_at or self._joined_at[cid]
        gone = bool(part.state & GONE)
        if part.name != self.names[cid]:
            self.ids.pop(self.names[cid], None)
            self.names[cid] = part.name
        if gone:
            self.ids.pop(part.name, None)
        else:
            self.ids[part.name] = cid
        if not gone and not self._known[cid]:
            self._join(cid, counter)
        self._known[cid] = not gone
        if part.state == self._state[cid]:
            return False
        self._state[cid] = part.state
        self._usable_clusters[cid] = part.state == 0
        return True

    def _join(self, cid: int, counter: int) -> None:
        self._joined[cid] = counter
        self._last_joined = max(self._last_joined, counter)
        self.membership += 1

    def _hear(self, patch: FleetDelta) -> NDArray[np.int32]:
        """Notes when clusters without changes were heard. Returns these clusters."""
        refreshed = np.frombuffer(patch.heard, delta.NUMBERS).astype(np.int32)
        times = np.frombuffer(patch.heard_at, delta.TIMES)
        inside = refreshed < self.size
        refreshed, times = refreshed[inside], times[inside]
        self._as_of[refreshed] = np.maximum(self._as_of[refreshed], times)
        return refreshed

    def _take_clusters(self, other: ClusterColumns) -> None:
        """Takes over all columns of clusters of `other`, which must not be used any more."""
        self.epoch = other.epoch
        self.names = other.names
        self.ids = other.ids
        self._state = other._state
        self._known = other._known
        self._usable_clusters = other._usable_clusters
        self._version = other._version
        self._as_of = other._as_of
        self._joined_at = other._joined_at
        self._joined = other._joined
        self._last_joined = other._last_joined
        self.membership = other.membership

    def _inherit_joined(self, other: ClusterColumns) -> None:
        """Keeps the epochs of joining that are known here; clusters new to this fleet count as joined at `other`'s epoch."""
        before = np.zeros(other.size, np.bool_)
        before[: self.size] = self.known[: other.size]
        same = self.epoch.generation == other.epoch.generation
        at = np.zeros(other.size, np.int64)
        if same:
            at[: self.size] = self._joined[: self.size][: other.size]
        if self.size:
            at[other.known & ~before] = max(1, other.epoch.counter)
        other._joined[: other.size] = at
        other._last_joined = int(at.max(initial=0))
        other.membership += self.membership + 1

    def _ensure_clusters(self, size: int) -> int:
        """Makes room for clusters up to this number. Returns the length of the columns of clusters."""
        if size <= self.size:
            return len(self._start)
        if size > len(self._start):
            length = max(size, len(self._start) * 3 // 2, 64)
            self._start, self._length = grown(self._start, length), grown(self._length, length)
            self._state, self._known = grown(self._state, length), grown(self._known, length)
            self._usable_clusters = grown(self._usable_clusters, length)
            self._version, self._joined = grown(self._version, length), grown(self._joined, length)
            self._as_of, self._joined_at = grown(self._as_of, length), grown(self._joined_at, length)
            self._state[self.size :] = GONE
        self.names += [""] * (size - self.size)
        self._nodes += [""] * (size - self.size)
        self.size = size
        return len(self._start)
