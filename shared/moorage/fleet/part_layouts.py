"""Keeps the layouts of nodes as columns: what the nodes of one kind have in common of what is inside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from moorage.collections.blocks import grown
from moorage.parts.inside import check_identities, common_source
from moorage.parts.layout import Layout, layout_of

from .part_class import Rows

if TYPE_CHECKING:
    from .parts import FleetParts


class _Columns:
    """Columns of equal length that are appended to."""

    def __init__(self, *names: str) -> None:
        self.n = 0
        self.columns: dict[str, Rows] = dict.fromkeys(names, np.empty(0, np.int64))

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Appends rows that have a value for each column, in their order."""
        first, self.n = self.n, self.n + len(rows)
        if not rows:
            return
        for (name, column), values in zip(self.columns.items(), np.array(rows, np.int64).T, strict=True):
            if self.n > len(column):
                column = self.columns[name] = grown(column, max(self.n, 2 * len(column), 64))
            column[first : self.n] = values

    def __getitem__(self, name: str) -> Rows:
        return self.columns[name]


class LayoutList(Sequence[Layout]):
    """Layouts by number, without the identities of devices. They are read again when they are needed."""

    def __init__(self) -> None:
        self._sources: list[bytes] = [b""]

    def append(self, source: bytes) -> None:
        self._sources.append(source)

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, number: int) -> Layout: ...
    @overload
    def __getitem__(self, number: slice) -> list[Layout]: ...
    def __getitem__(self, number: int | slice) -> Layout | list[Layout]:
        found = self._sources[number]
        return layout_of(found) if isinstance(found, bytes) else [layout_of(source) for source in found]


class _Common(NamedTuple):
    """Holds what is the same in layouts that differ only in the identities of devices. `number`: of the first of them."""

    source: bytes
    devices: int
    columns: tuple[int, ...]
    number: int


class PartLayouts:
    """The columns of all layouts, one after the other. Number 0 is a node without parts. Layouts that differ only in the
    identities of devices share their columns, which do not have these."""

    def __init__(self) -> None:
        self.found = LayoutList()
        self.sources: list[bytes] = [b""]
        self.any_aligns = False  # the kubelet of a node does
        self.extended_resources: set[str] = set()  # that a DeviceClass serves on some node, or has served
        self.any_gives_exclusive = False  # the agent of a node gives CPUs of zones
        self._layouts = _Columns("first", "size", "first_entry", "entries", "aligns", "shares", "common")
        self._layouts.append([(0, 0, 0, 0, 0, 0, 0)])
        self._common: dict[bytes, _Common] = {}  # by source without identities
        self.part = _Columns(
            "parent", "leave", "kind", "traits", "aggregates", "properties", "healthy", "closed", "unit", "unit_size"
        )
        self.entry = _Columns("part", "resource", "capacity", "min_unit", "max_unit", "step_size", "of_node")

    @property
    def first(self) -> Rows:
        """Returns, by number, the first of the layout's rows in `part`."""
        return self._layouts["first"]

    @property
    def size(self) -> Rows:
        return self._layouts["size"]

    @property
    def first_entry(self) -> Rows:
        return self._layouts["first_entry"]

    @property
    def entries(self) -> Rows:
        """Returns, by number, how many inventories the layout has."""
        return self._layouts["entries"]

    @property
    def common(self) -> Rows:
        """Returns, by number, the first number of those that differ only in the identities of devices."""
        return self._layouts["common"]

    def own(self, number: int) -> Layout:
        """Returns a layout with the identities of its devices."""
        return layout_of(self.sources[number])

    @property
    def aligns(self) -> NDArray[np.bool_]:
        """Returns, by number, whether the kubelet of such nodes aligns pods with zones."""
        found: NDArray[np.bool_] = self._layouts["aligns"][: self._layouts.n] > 0
        return found

    @property
    def shares(self) -> Rows:
        """Returns, by number, how many parts of the layout other nodes reach, too."""
        return self._layouts["shares"]

    def append(self, source: bytes, parts: FleetParts) -> None:
        source_in_common = common_source(source)
        common = self._common.get(source_in_common)
        if common is None:
            layout = layout_of(source_in_common)
            columns = self._append_columns(layout, parts)
            common = _Common(source_in_common, len(layout.inside.devices), columns, len(self.sources))
            self._common[source_in_common] = common
        check_identities(source, common.devices)
        self._layouts.append([(*common.columns, common.number)])
        self.found.append(common.source)
        self.sources.append(source)

    def _append_columns(self, layout: Layout, parts: FleetParts) -> tuple[int, ...]:
        self.any_aligns |= layout.aligns
        self.any_gives_exclusive |= layout.gives_exclusive
        self.extended_resources |= layout.inside.extended_resources
        leave = list(range(1, len(layout.parts) + 1))
        for i in range(len(layout.parts) - 1, 0, -1):
            above = layout.parts[i].parent
            if above >= 0:
                leave[above] = max(leave[above], leave[i])
        first, first_entry = self.part.n, self.entry.n
        self.part.append(
            [
                (
                    found.parent,
                    end,
                    parts.kind_number(found.kind),
                    parts.traits.number(found.traits),
                    parts.aggregates.number(found.aggregates),
                    parts.properties.number(found.properties),
                    found.healthy,
                    found.closed,
                    parts.class_number(found.unit[0]) if found.unit[0] else -1,
                    found.unit[1],
                )
                for found, end in zip(layout.parts, leave, strict=True)
            ]
        )
        self.entry.append([self._entry(layout, at, resource, parts) for at, resource in layout.entries])
        return first, len(layout.parts), first_entry, len(layout.entries), int(layout.aligns), len(layout.shared)

    def _entry(self, layout: Layout, at: int, resource: str, parts: FleetParts) -> tuple[int, ...]:
        inventory = layout.parts[at].inventories[resource]
        of_node = any(not take.part for take in layout.parts[at].consumes.get(resource, ()))
        limits = inventory.min_unit, inventory.max_unit, inventory.step_size
        return at, parts.class_number(resource), inventory.capacity, *limits, of_node
