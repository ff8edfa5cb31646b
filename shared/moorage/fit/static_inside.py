"""Tells what all nodes of a layout have in common: their zones, what these offer, and what takes of what."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from moorage.collections import LruDict
from moorage.model.part_names import HW_NUMA_ROOT
from moorage.model.part_requests import PartGroup
from moorage.model.shapes import EXCLUSIVE
from moorage.parts.device_parts import COUNTERS
from moorage.parts.device_table import DeviceTable, reads_identity
from moorage.parts.kubelet import TopologyManager
from moorage.parts.layout import InnerPart, Layout


class StaticInside:
    """The tables that all nodes of a layout share."""

    _known: LruDict[bytes, StaticInside] = LruDict(1024)

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        parts = layout.parts
        self.zones = [i for i, part in enumerate(parts) if HW_NUMA_ROOT in part.traits and part.healthy]
        below = [False] * len(parts)
        for i, part in enumerate(parts):
            below[i] = i in self.zones or (part.parent >= 0 and below[part.parent])
        self.zone_classes = frozenset(n for i, p in enumerate(parts) if below[i] and p.healthy for n in p.inventories)
        self.reported = frozenset(n for i in self.zones for n in parts[i].inventories)
        #: The most that a zone has of each class.
        self.largest: dict[str, int] = {}
        for name, inventory in ((n, inventory) for i in self.zones for n, inventory in parts[i].inventories.items()):
            self.largest[name] = max(self.largest.get(name, 0), inventory.total - inventory.reserved)
        self.classes = frozenset(entry.resource for entry in layout.entries)
        inside = layout.inside
        self.table = DeviceTable(inside.devices, inside.device_classes, inside.incomplete_pools)
        #: DeviceClasses whose expressions read identities of devices.
        self.identity_classes = {c.name for c in inside.device_classes if any(map(reads_identity, c.selectors))}
        #: What devices, and the counters above them, offer.
        self.device_classes = {name for p in parts if p.device >= 0 or p.kind == COUNTERS for name in p.inventories}
        reported = layout.inside.topology_manager
        cpu = layout.inside.cpu_manager
        self.manager = TopologyManager()
        if reported is not None and self.zones:
            self.manager = TopologyManager(reported.policy, reported.scope, cpu != "none")  # type: ignore[arg-type]
        self.gives_exclusive = layout.gives_exclusive
        #: By entry, the entries of parts below that take of it, and how much one unit of each takes.
        self.consumers: dict[int, dict[int, int]] = {}
        for (path, name), entry in layout.entry_at.items():
            for consumed, amount in consumed_entries(layout, parts[layout.at[path]], name):
                self.consumers.setdefault(consumed, {})[entry] = amount

    def role_terms(self, group: PartGroup) -> object:
        """Returns what a request for the role of a group depends on."""
        kind = self.layout.inside.roles.get(group.role.name) if group.role is not None else None
        return kind, EXCLUSIVE in self.zone_classes, self.largest.get("cpu", 0)

    def taken_for(self, classes: Collection[str]) -> set[str]:
        """Returns the other classes of which units of these classes take."""
        entries = self.layout.entries
        return {
            entries[consumed].resource
            for consumed, below in self.consumers.items()
            if any(entries[entry].resource in classes for entry in below)
        }

    @classmethod
    def of(cls, layout: Layout) -> StaticInside:
        found = cls._known.use(layout.source)
        if found is None:
            found = cls._known[layout.source] = cls(layout)
        return found


def consumed_entries(layout: Layout, part: InnerPart, name: str) -> Iterator[tuple[int, int]]:
    """Yields the entries, not the node's columns, of which a part's class takes, and how much one unit takes."""
    for take in part.consumes.get(name, ()):
        consumed = layout.entry_at.get((layout.parts[take.part].path, take.resource)) if take.part else None
        if consumed is not None:
            yield consumed, take.amount
