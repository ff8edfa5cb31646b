"""Remembers on which Nodes fewer slots of a type find room than the Nodes have in all, because other Pods are there. Pure.

A cluster that lays slots out alone does not know of other Pods. What it knows is which reservations the scheduler could not bind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from .handover_records import ReservationPod

#: Seconds for which a reservation must be unschedulable: others may be about to leave its place.
PATIENCE = 10.0
#: Seconds until a Node is tried again, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
Counts = Mapping[str, Mapping[str, int]]


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
        self, reservations: Iterable[ReservationPod], slots: Counts, taken: Callable[[], Counts], now: float
    ) -> None:
        """Notes the Nodes of reservations that find no room. `slots`: by type and Node; `taken`: those that guests have or get."""
        there: Counter[tuple[str, str]] = Counter()
        stuck: Counter[tuple[str, str]] = Counter()
        self._look_at = 0.0
        for pod in reservations:
            if pod.deleting or not pod.node:
                continue
            there[pod.type, pod.node] += 1
            if not pod.unschedulable or pod.bound:
                continue
            due = pod.unschedulable_since + PATIENCE
            if due <= now:
                stuck[pod.type, pod.node] += 1
            else:
                self._look_at = min(due, self._look_at or due)
        guests = taken() if stuck else {}
        for key, count in stuck.items():
            machine_type, node = key
            most = slots.get(machine_type, {}).get(node, 0)
            if there[key] + guests.get(machine_type, {}).get(node, 0) > most:
                continue  # some of those that find no room are about to leave: their slots are not counted any more
            before = self._limits.get(key)
            least = most - count
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
