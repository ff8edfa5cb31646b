"""Makes parts of what is reported of the inside of a node. What makes no sense is dropped with its descendants, and told.

A layout has the parts with ids without the node's name, so that all nodes of a kind share one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from moorage.model.part_names import HW_NUMA_ROOT, is_class, short_name
from moorage.model.part_reports import (
    InventoryReport,
    PropertyValue,
    ZoneReport,
    ZoneReserve,
)
from moorage.model.shapes import EXCLUSIVE
from moorage.parsing import CAPACITY_MAX

from .class_columns import Inventory
from .device_parts import COUNTERS, MARK, NO_NODE, BadDevice, device_parts, id_of_device, path_of_device, properties_of
from .forest import SHARES, Take
from .inside import AddedNames, Inside, common_source, decode, zone_id
from .reported_amounts import cpu_count, inventory_of

MAX_PARTS = 4096
MAX_DEPTH = 32
#: The part that offers, tied to no zone, what zones report.
ANY = "any"
#: Kinds of parts that are not named by their source.
NODE, ZONE = "node", "zone"
_MAX_ID = 512


class InnerPart(NamedTuple):
    """A part of a layout. `parent` is its parent's position; the node, at position 0, has none, nor have devices and counters
    that several nodes reach."""

    path: str  # its id after the node's name: "" or "/numa-0/card-1"
    parent: int = -1
    kind: str = NODE
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    properties: frozenset[tuple[str, PropertyValue]] = frozenset()
    healthy: bool = True
    inventories: Mapping[str, Inventory] = {}
    consumes: Mapping[str, tuple[Take, ...]] = {}  # by class; of part 0 it is the node's columns
    added_traits: frozenset[str] = frozenset()  # those of its traits and aggregates that are not reported
    added_aggregates: frozenset[str] = frozenset()
    device: int = -1  # its place among the devices of its node; -1: it is none
    unit: tuple[str, int] = ("", 1)  # of a device: the class that counts devices, and how much of it is one
    shared: bool = False  # several nodes reach it: it is in the layout of each
    closed: bool = False  # it counts as unhealthy only because taints keep new pods away

    @property
    def is_elsewhere(self) -> bool:
        """Returns whether it is a device that only other nodes reach."""
        return self.shared and self.device < 0 and self.kind != COUNTERS

    @property
    def is_counted_by_node(self) -> bool:
        """Returns whether it is the devices that an extended resource or huge pages of the node count."""
        return self.path == f"/{self.unit[0]}"


class Entry(NamedTuple):
    """An inventory of a layout."""

    part: int
    resource: str


class Dropped(NamedTuple):
    """A part, or several, that were reported and make no sense."""

    id: str
    why: str

    def __str__(self) -> str:
        return f"part {self.id.removeprefix(MARK).replace('//', '/')[:80]!r}: {self.why}"


class Layout(NamedTuple):
    """The parts of a node in preorder, and their inventories in the order of parts and classes."""

    source: bytes
    inside: Inside
    parts: tuple[InnerPart, ...]
    entries: tuple[Entry, ...]
    at: Mapping[str, int]  # path → position
    entry_at: Mapping[tuple[str, str], int]  # path and class → position among the entries
    dropped: tuple[Dropped, ...]

    @property
    def aligns(self) -> bool:
        """Returns whether the kubelet aligns pods with zones."""
        manager = self.inside.topology_manager
        return manager is not None and manager.policy not in ("", "none")

    @property
    def gives_exclusive(self) -> bool:
        """Returns whether a node agent gives CPUs of zones to pods without a role for themselves."""
        kind = self.inside.roles.get("")
        return kind is not None and kind.exclusive and any(entry.resource == EXCLUSIVE for entry in self.entries)

    @property
    def shared(self) -> list[int]:
        """Returns the positions of the parts that other nodes may reach, too."""
        return [i for i, part in enumerate(self.parts) if part.shared]

    def alike(self, path: str) -> int:
        """Returns the number that the device at a path shares with those that selectors cannot tell from it; 0 for others."""
        at = self.at.get(path)
        device = self.parts[at].device if at is not None else -1
        return self.inside.devices[device].alike if device >= 0 else 0


def consumptions(layout: Layout) -> list[tuple[int, int, int]]:
    """Returns the entries that take of others, not of the node's columns, with these and what one unit takes of them."""
    found: list[tuple[int, int, int]] = []
    for entry, (part, name) in enumerate(layout.entries):
        for take in layout.parts[part].consumes.get(name, ()):
            consumed = layout.entry_at.get((layout.parts[take.part].path, take.resource)) if take.part else None
            if consumed is not None:
                found.append((entry, consumed, take.amount))
    return found


def common_layout(source: bytes) -> Layout:
    """Returns the layout without the identities of devices. Its paths and entries are those of `layout_of`."""
    return layout_of(common_source(source))


@lru_cache(1024)
def layout_of(source: bytes) -> Layout:
    """Returns the layout that the bytes describe. Raises `msgspec.DecodeError` for bytes that are not from `encode`."""
    inside = decode(source)
    if len(common := common_source(source)) < len(source):
        return _with_identities(layout_of(common), source, inside)
    builder = _Builder(inside)
    parts = tuple(_with_names(part, inside.added.get(part.path)) for part in builder.parts()) if source else ()
    entries = tuple(Entry(i, name) for i, part in enumerate(parts) for name in sorted(part.inventories))
    return Layout(
        source,
        inside,
        parts,
        entries,
        {part.path: i for i, part in enumerate(parts)},
        {(parts[i].path, name): n for n, (i, name) in enumerate(entries)},
        tuple(builder.dropped),
    )


def _with_identities(common: Layout, source: bytes, inside: Inside) -> Layout:
    parts = tuple(
        part
        if part.device < 0
        else part._replace(properties=frozenset(properties_of(inside.devices[part.device]).items()))
        for part in common.parts
    )
    return common._replace(source=source, inside=inside, parts=parts)


def _with_names(part: InnerPart, added: AddedNames | None) -> InnerPart:
    if added is None:
        return part
    traits = frozenset(map(short_name, added.traits)) - part.traits
    aggregates = frozenset(added.aggregates) - part.aggregates
    return part._replace(
        traits=part.traits | traits,
        aggregates=part.aggregates | aggregates,
        added_traits=traits,
        added_aggregates=aggregates,
    )


def part_id(node: str, path: str) -> str:
    """Returns the id, unique in its cluster, of a part of a node."""
    return id_of_device(node, path) if path.startswith(MARK) else node + path


def path_of(node: str, ident: str, layout: Layout) -> str:
    """Returns the path of the part with this id in the layout of its node; a path that is not there if it has no such part."""
    path = ident[len(node) :] if ident.startswith(node) else None
    if path is not None and path in layout.at:
        return path
    if MARK + ident in layout.at:
        return MARK + ident
    return path_of_device(node, ident)


def provider_uuid(cluster: str, ident: str) -> str:
    """Returns the uuid of a part of a cluster, PROVIDER/NAME, as the placement interface names it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"moorage:part/{cluster}/{ident}"))


class _Found(NamedTuple):
    """A part as reported, before its place in the tree is known."""

    parent: str
    kind: str
    traits: frozenset[str]
    aggregates: frozenset[str]
    properties: frozenset[tuple[str, PropertyValue]]
    healthy: bool
    inventories: dict[str, Inventory]
    takes: Mapping[str, Sequence[tuple[str, str, int]]] = {}
    device: int = -1
    unit: tuple[str, int] = ("", 1)
    shared: bool = False
    closed: bool = False


class _Builder:
    def __init__(self, inside: Inside) -> None:
        self.dropped: list[Dropped] = []
        self._inside = inside
        self._found: dict[str, _Found] = {}

    def parts(self) -> Iterator[InnerPart]:
        for zone in self._inside.zones:
            self._zone(zone)
        self._tie_to_none()
        for provider in self._inside.providers:
            self._add(
                provider.id,
                str(zone_id(provider.parent)),
                provider.kind,
                provider.traits,
                provider.aggregates,
                provider.inventories,
                provider.properties,
                provider.healthy,
            )
        self._devices()
        ordered = self._in_preorder()
        at = {"": 0, NO_NODE: -1} | {ident: i for i, ident in enumerate(ordered, 1)}
        shared = (self._found[ident] for ident in ordered if self._found[ident].shared)
        reached = (found.aggregates for found in shared if found.device >= 0)
        yield InnerPart("", aggregates=frozenset().union(*reached))
        for ident in ordered:
            found = self._found[ident]
            yield InnerPart(
                ident if ident.startswith(MARK) else f"/{ident}",
                at[found.parent],
                found.kind,
                found.traits,
                found.aggregates,
                found.properties,
                found.healthy,
                found.inventories,
                {name: takes for name in found.inventories if (takes := tuple(self._sources(found, name, at)))},
                device=found.device,
                unit=found.unit,
                shared=found.shared,
                closed=found.closed,
            )

    def _zone(self, zone: ZoneReport) -> None:
        ident = zone_id(zone.id)
        if ident == ANY:
            self._drop(ident, "this id is for what is tied to no zone")
            return
        given: dict[str, str | InventoryReport] = dict(zone.inventories)
        reserved = zone.reserved or ZoneReserve()
        try:
            if zone.cpus != "":
                number, kept = cpu_count(zone.cpus), cpu_count(reserved.cpus)
                given.setdefault("cpu", InventoryReport(total=str(number), reserved=str(kept)))
            if zone.memory:
                given.setdefault("memory", InventoryReport(total=zone.memory, reserved=reserved.memory or "0"))
        except ValueError as error:
            self._drop(ident, f"cpus: {error}")
            return
        traits = [*zone.traits, HW_NUMA_ROOT] if zone.kind == ZONE else zone.traits
        self._add(ident, str(zone_id(zone.parent)), zone.kind, traits, zone.aggregates, given)

    def _devices(self) -> None:
        inside, nothing = self._inside, frozenset[str]()
        zones = (str(zone_id(zone.id)) for zone in inside.zones)
        for part in device_parts(inside.devices, inside.counters, zones):
            if isinstance(part, BadDevice):
                self._drop(part.path, part.why)
            elif part.path in self._found:
                self._drop(part.path, "another part has this id")
            elif len(part.path) > _MAX_ID or "\0" in part.path:
                self._drop(part.path, "this is no id of a part")
            else:
                least = part.unit[1]  # of huge pages; else one
                inventories = {
                    name: Inventory(amount, min_unit=least, max_unit=CAPACITY_MAX, step_size=least)
                    for name, amount in part.inventories.items()
                }
                # The trees that reach a device have an aggregate in common with it.
                common = part.shared and part.kind != COUNTERS
                self._found[part.path] = _Found(
                    part.parent,
                    part.kind,
                    frozenset((SHARES,)) if common else nothing,
                    frozenset((part.path.removeprefix(MARK),)) if common else nothing,
                    frozenset(part.properties.items()),
                    part.healthy,
                    inventories,
                    part.takes,
                    part.device,
                    part.unit,
                    part.shared,
                    part.closed,
                )

    def _tie_to_none(self) -> None:
        """Adds the part that offers what zones report, tied to none of them."""
        node = self._inside.node
        reported = {name for found in self._found.values() for name in found.inventories if name in node}
        if reported:
            inventories = {name: Inventory(node[name], max_unit=CAPACITY_MAX) for name in sorted(reported)}
            nothing: frozenset[str] = frozenset()
            self._found[ANY] = _Found("", ANY, nothing, nothing, frozenset(), True, inventories)

    def _add(
        self,
        ident: str,
        parent: str,
        kind: str,
        traits: Iterable[str],
        aggregates: Iterable[str],
        inventories: Mapping[str, str | InventoryReport],
        properties: Mapping[str, PropertyValue] | None = None,
        healthy: bool = True,
    ) -> None:
        if not ident or len(ident) > _MAX_ID or "\0" in ident or ident.startswith(("/", MARK)):
            self._drop(ident, "this is no id of a part")
            return
        if ident in self._found:
            self._drop(ident, "another part has this id")
            return
        kept: dict[str, Inventory] = {}
        for name, given in inventories.items():
            try:
                resource, inventory = inventory_of(name, given)
            except ValueError as error:
                self._drop(ident, f"{name}: {error}")
                return
            if resource in kept:
                self._drop(ident, f"{name}: this class is given twice")
                return
            kept[resource] = inventory
        self._found[ident] = _Found(
            parent,
            kind,
            frozenset(map(short_name, traits)),
            frozenset(aggregates),
            frozenset((properties or {}).items()),
            healthy,
            kept,
        )

    def _drop(self, ident: str, why: str) -> None:
        self.dropped.append(Dropped(ident, why))

    def _in_preorder(self) -> list[str]:
        """Returns the ids of the parts that hang on the node, and drops the others."""
        children: dict[str, list[str]] = {}
        for ident, found in self._found.items():
            children.setdefault(found.parent, []).append(ident)
        ordered: list[str] = []
        reached: set[str] = set()
        roots = [*children.get("", []), *children.get(NO_NODE, [])]
        open_parts = [(ident, 1) for ident in reversed(roots)]
        while open_parts:
            ident, depth = open_parts.pop()
            reached.add(ident)
            if depth > MAX_DEPTH:
                self._drop(ident, f"it is deeper than {MAX_DEPTH} parts")
                reached.update(_below(ident, children))
                continue
            ordered.append(ident)
            open_parts.extend((child, depth + 1) for child in reversed(children.get(ident, [])))
        for ident, found in self._found.items():
            if ident not in reached and found.parent not in self._found:
                self._drop(ident, f"its parent {found.parent[:80]!r} is unknown or was dropped")
                reached.update(_below(ident, children), (ident,))
        cycle = [ident for ident in self._found if ident not in reached]
        if cycle:
            self._drop(cycle[0], "its parents form a cycle")
        if len(ordered) >= MAX_PARTS:
            self._drop(ordered[MAX_PARTS - 1], f"it and what follows are more than {MAX_PARTS} parts of a node")
            del ordered[MAX_PARTS - 1 :]
        return ordered

    def _sources(self, found: _Found, resource: str, at: Mapping[str, int]) -> Iterator[Take]:
        """Yields what a device takes of counters, and the ancestors that have the same Kubernetes resource: one unit of the
        part is one of theirs."""
        for above, name, amount in found.takes.get(resource, ()):
            yield Take(at[above], name, amount)
        if is_class(resource):
            return
        above = "" if found.shared else found.parent
        while above:
            if resource in self._found[above].inventories:
                yield Take(at[above], resource)
            above = self._found[above].parent
        if resource in self._inside.node:
            yield Take(0, resource)


def _below(ident: str, children: Mapping[str, list[str]]) -> Iterator[str]:
    open_parts = list(children.get(ident, []))
    while open_parts:
        found = open_parts.pop()
        yield found
        open_parts.extend(children.get(found, []))
