"""Tells what consumers can take of devices: whole ones, capacities of those that are divided, and what that takes of counters.

Counters have inventories that only the search for candidates sees: no class is named as these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet
from moorage.model.part_reports import CapacityPolicy
from moorage.parsing import CAPACITY_MAX, parse_nanos
from moorage.parts import Forest
from moorage.parts.class_columns import Rows
from moorage.parts.device_parts import COUNTERS, MARK
from moorage.parts.device_parts import class_of as class_of_device
from moorage.parts.layout import InnerPart, Layout

_NANO = 10**9
#: Begins the names of the classes that counters have here.
_OF_COUNTERS = "="


class UnitLimits(NamedTuple):
    """The amounts of a class that one consumer may have."""

    least: int = 1
    step: int = 1
    most: int = CAPACITY_MAX


def is_offered(part: InnerPart) -> bool:
    """Returns whether consumers can take of a part. They cannot take counters, nor devices that are divided and take of counters as a
    whole, nor those that a resource of the node counts: the node offers these."""
    if part.path.startswith(MARK) and part.device < 0:
        return False
    if part.device >= 0 and not part.unit[0] and part.consumes:
        return False
    if part.shared and any(not take.part for takes in part.consumes.values() for take in takes):
        return False
    return not part.is_counted_by_node


def limits_of(layout: Layout, part: InnerPart, name: str) -> UnitLimits | None:
    """Returns the limits of a class of a device that is divided, as its policy has them; None if there are none."""
    report = layout.inside.devices[part.device] if part.device >= 0 else None
    for capacity, policy in report.policies.items() if report is not None and report.divisible else ():
        if class_of_device(capacity) == name:
            return _limits(policy)
    return None


def _limits(policy: CapacityPolicy) -> UnitLimits:
    try:
        values = [_up(value) for value in policy.values]
        least, step = _up(policy.minimum or "1"), _up(policy.step or "1")
        most = parse_nanos(policy.maximum) // _NANO if policy.maximum else CAPACITY_MAX
    except ValueError:
        return UnitLimits(most=0)  # what cannot be read is not given
    if values:
        return UnitLimits(min(values), gcd(*values), max(values))
    return UnitLimits(least, gcd(least, step) if policy.minimum else 1, most)


def _up(text: str) -> int:
    return max(1, -(-parse_nanos(text) // _NANO))


class DeviceTable:
    """Holds what layouts say of the classes of devices, by row in the table of layouts."""

    def __init__(self, fleet: Fleet, forest: Forest) -> None:
        self._fleet, self._forest = fleet, forest
        self._read = 1  # layouts
        self._limits: dict[str, dict[int, UnitLimits]] = {}
        self._takes: dict[str, dict[int, int]] = {}  # numbers of the forest
        self._columns: dict[tuple[str, str], NDArray[np.int64]] = {}

    def learn(self) -> None:
        """Reads the layouts that are new."""
        layouts = self._fleet.parts.layouts
        for number in range(self._read, len(layouts.found)):
            layout = layouts.found[number]
            first = int(layouts.first[number])
            for at, part in enumerate(layout.parts) if layout.inside.devices else ():
                for name in part.inventories:  # also of devices that only other nodes reach
                    if (limits := limits_of(layout, part, name)) is not None:
                        self._limits.setdefault(name, {})[first + at] = limits
                    if takes := tuple(sorted(_taken_of_counters(layout, part, name))):
                        self._takes.setdefault(name, {})[first + at] = self._forest.takes_number(takes)
        if self._read < len(layouts.found):
            self._read = len(layouts.found)
            self._columns.clear()

    def limits(self, name: str) -> tuple[Rows, Rows, Rows] | None:
        """Returns the least amounts, the steps and the most of a class; None if no device limits it."""
        known = self._limits.get(name)
        if not known:
            return None
        least, step, most = (
            self._column(name, field, missing, {row: getattr(found, field) for row, found in known.items()})
            for field, missing in zip(UnitLimits._fields, UnitLimits(), strict=True)
        )
        return least, step, most

    def takes(self, name: str) -> Rows | None:
        """Returns the numbers of what units of a class take of counters; None if they take nothing."""
        known = self._takes.get(name)
        return self._column(name, "takes", 0, known) if known else None

    def _column(self, name: str, of: str, missing: int, values: Mapping[int, int]) -> NDArray[np.int64]:
        found = self._columns.get((name, of))
        if found is None:
            found = np.full(self._fleet.parts.layouts.part.n, missing, np.int64)
            found[list(values)] = list(values.values())
            self._columns[name, of] = found
        return found

    # -- counters -------------------------------------------------------------------------------------------------------

    def counters_in(self, cid: int, source: Rows) -> dict[str, tuple[Rows, Rows]]:
        """Returns, by its class here, what the cluster's parts have of each counter, and what of it is free, in the order of the
        entries. `source`: by row of the cluster's parts, the row in the table of layouts."""
        found: dict[str, tuple[Rows, Rows]] = {}
        if not self._takes:
            return found
        parts, begin = self._fleet.parts, self._fleet.parts.rows_of(cid).start
        for name, of_class in ((name, parts.classes[name]) for name in self._takes):
            run = of_class.run(cid)
            rows, claimed = of_class.row[run], of_class.claimed[run]
            numbers = np.asarray(self.takes(name))[source[rows - begin]]
            for number in np.unique(numbers[numbers > 0]).tolist():
                here = numbers == number
                for counter, amount in self._forest.takes(number):
                    _, free = self._counter(found, cid, counter)
                    at = self._places(cid, counter, parts.parent[rows[here]])
                    np.subtract.at(free, at, claimed[here] * amount)
        return found

    def _counter(self, found: dict[str, tuple[Rows, Rows]], cid: int, counter: str) -> tuple[Rows, Rows]:
        if counter not in found:
            columns = self._fleet.parts.classes[counter.removeprefix(_OF_COUNTERS)]
            run = columns.run(cid)
            found[counter] = columns.capacity[run], columns.capacity[run] - columns.used[run] - columns.claimed[run]
        return found[counter]

    def _places(self, cid: int, counter: str, rows: Rows) -> Rows:
        """Returns the entries, from the cluster's first one, of rows that have a counter."""
        columns = self._fleet.parts.classes[counter.removeprefix(_OF_COUNTERS)]
        places: Rows = columns.positions(cid, rows) - columns.run(cid).start
        return places

    def rows_of(self, cid: int, counter: str) -> Rows:
        columns = self._fleet.parts.classes[counter.removeprefix(_OF_COUNTERS)]
        rows: Rows = columns.row[columns.run(cid)]
        return rows

    def limited(
        self, cid: int, numbers: Rows, rows: Rows, free: Rows, counters: Mapping[str, tuple[Rows, Rows]]
    ) -> Rows:
        """Returns what is free of parts that take so much of their parents, as far as these have it."""
        found = free.copy()
        for number in np.unique(numbers[numbers > 0]).tolist():
            here = np.flatnonzero(numbers == number)
            for counter, amount in self._forest.takes(number):
                left = counters[counter][1][self._places(cid, counter, self._fleet.parts.parent[rows[here]])]
                found[here] = np.minimum(found[here], left // amount)
        return found


def _taken_of_counters(layout: Layout, part: InnerPart, name: str) -> Iterator[tuple[str, int]]:
    for take in part.consumes.get(name, ()):
        if take.part == part.parent and layout.parts[take.part].kind == COUNTERS and take.amount:
            yield _OF_COUNTERS + take.resource, take.amount


def is_counter(name: str) -> bool:
    """Returns whether a class is a counter's."""
    return name.startswith(_OF_COUNTERS)
