"""Remembers on which Nodes fewer slots of a type find room than the Nodes have in all, because other Pods are there. Pure.

A cluster that lays slots out alone does not know of other Pods. What it knows is which reservations the scheduler could not bind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .handover_records import ReservationPod

#: Seconds for which a reservation must be unschedulable: others may be about to leave its place.
PATIENCE = 10.0
#: Seconds until a Node is tried again, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0


class _Limit(NamedTuple):
    most: int
    until: float
    pause: float


class SlotLimits:
    """The limits of one group, by type and Node."""

    def __init__(self) -> None:
        self._limits: dict[tuple[str, str], _Limit] = {}
        self._look_at = 0.0  # when a reservation will have been unschedulable for long enough

    def observe(
        self, reservations: Iterable[ReservationPod], slots: Mapping[str, Mapping[str, int]], now: float
    ) -> None:
        """Notes the Nodes of reservations that find no room. `slots`: by type and Node."""
        stuck: Counter[tuple[str, str]] = Counter()
        self._look_at = 0.0
        for pod in reservations:
            if not pod.unschedulable or pod.bound or pod.deleting or not pod.node:
                continue
            due = pod.unschedulable_since + PATIENCE
            if due <= now:
                stuck[pod.type, pod.node] += 1
            else:
                self._look_at = min(due, self._look_at or due)
        for key, count in stuck.items():
            before = self._limits.get(key)
            least = max(0, slots.get(key[0], {}).get(key[1], 0) - count)
            if before is None or now > before.until + LONGEST_PAUSE:
                self._limits[key] = _Limit(least, now + FIRST_PAUSE, FIRST_PAUSE)
            elif now < before.until:
                self._limits[key] = before._replace(most=min(before.most, least))
            else:
                pause = min(LONGEST_PAUSE, 2 * before.pause)
                self._limits[key] = _Limit(least, now + pause, pause)

    def most(self, machine_type: str, node: str, now: float) -> int | None:
        """Returns how many slots of a type a Node has room for; None where nothing speaks against what it has in all."""
        limit = self._limits.get((machine_type, node))
        return limit.most if limit is not None and now < limit.until else None

    def next_time(self, now: float) -> float | None:
        """Returns when to look again."""
        times = [limit.until for limit in self._limits.values() if limit.until > now]
        return min([*times, *([self._look_at] if self._look_at > now else [])], default=None)
